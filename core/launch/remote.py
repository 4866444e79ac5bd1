"""How the rank agent of a rank is reached: directly on this machine, through ssh on another."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ringtune.errors import RingtuneError
from ringtune.launch.options import LaunchOptions

RANK_AGENT = Path(__file__).with_name("rank_agent.py")
_REACH_TIMEOUT_S = 20


def rank_agent_command() -> list[str]:
    """Return the command of a rank agent on this machine: isolated from the user's Python settings, quick to start."""
    return [sys.executable, "-I", "-S", str(RANK_AGENT)]


def ssh_command(host: str, options: LaunchOptions) -> list[str]:
    """Return ``ssh ... host`` without the remote command.

    It never prompts, since the ranks' output would hide the question, and notices a host that went away.
    """
    command = ["ssh", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10"]
    command += ["-o", "ServerAliveInterval=10", "-o", "ServerAliveCountMax=3"]
    if options.ssh_port is not None:
        command += ["-p", str(options.ssh_port)]
    if options.ssh_identity_file is not None:
        command += ["-i", str(options.ssh_identity_file)]
    return [*command, host]


def remote_rank_agent_command(host: str, options: LaunchOptions) -> list[str]:
    """Return the command that starts a rank agent on another host; ringtune lies at the same path there."""
    return [*ssh_command(host, options), f"exec {shlex.join(rank_agent_command())}"]


def require_reachable(hosts: Iterable[str], options: LaunchOptions) -> None:
    """Check that every host can be reached and has the same Python and ringtune at the same path.

    Raises:
        RingtuneError: A host cannot be reached, or lacks the interpreter or the package.
    """
    names = sorted(set(hosts))
    if not names:
        return
    with ThreadPoolExecutor(max_workers=min(32, len(names))) as pool:
        problems = [problem for problem in pool.map(lambda host: _problem_of(host, options), names) if problem]
    if problems:
        raise RingtuneError("; ".join(problems))


def _problem_of(host: str, options: LaunchOptions) -> str:
    probe = f"test -x {shlex.quote(sys.executable)} || exit 96; test -r {shlex.quote(str(RANK_AGENT))} || exit 97"
    try:
        result = subprocess.run(
            [*ssh_command(host, options), probe],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_REACH_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        return f"host {host}: there is no ssh on this machine to reach it with"
    except subprocess.TimeoutExpired:
        return f"host {host} cannot be reached by ssh: no answer within {_REACH_TIMEOUT_S} s"
    if result.returncode == 0:
        return ""
    if result.returncode in (96, 97):
        lacking = sys.executable if result.returncode == 96 else str(RANK_AGENT)
        return f"host {host} has no {lacking}: install ringtune there at the same path, or share the folder"
    said = result.stderr.decode("utf-8", "replace").strip().splitlines()
    return f"host {host} cannot be reached by ssh: {said[-1] if said else f'ssh ended with {result.returncode}'}"
