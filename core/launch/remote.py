"""How the rank agent of a rank is reached: directly on this machine, by ssh or a batch system on another."""

from __future__ import annotations

import contextlib
import secrets
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ringtune.errors import RingtuneError
from ringtune.launch.allocation import StepCommand
from ringtune.launch.options import LaunchOptions
from ringtune.launch.routes import LAUNCHER, Probe

RANK_AGENT = Path(__file__).with_name("rank_agent.py")
HOST_PROBE = Path(__file__).with_name("host_probe.py")
_REACH_TIMEOUT_S = 20
_DEVICES = (
    "CUDA_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK",
)


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
    if (step := step_of(options)) is not None:
        return [*step(host), *rank_agent_command()]
    return [*ssh_command(host, options), f"exec {shlex.join(rank_agent_command())}"]


def step_of(options: LaunchOptions) -> StepCommand | None:
    """Return what starts processes on the hosts of the job's allocation; None where ssh does it."""
    return None if options.allocation is None else options.allocation.step


def variables_of_host(options: LaunchOptions) -> tuple[str, ...]:
    """Return the variables that what starts processes on a host sets there: which of its GPUs are the job's."""
    return () if step_of(options) is None else _DEVICES


def proof(options: LaunchOptions) -> str:
    """Return what a rank agent proves a good end with, where its starter's exit code does not."""
    return "" if step_of(options) is None else f"\0{secrets.token_hex(8)}\n"


def starter_of(options: LaunchOptions) -> str:
    """Return the name of the program that starts processes on other hosts."""
    return "ssh" if options.allocation is None else options.allocation.starter


@contextlib.contextmanager
def probing(hosts: Iterable[str], options: LaunchOptions) -> Iterator[dict[str, Probe]]:
    """Run a probe on every host meanwhile, and on this machine by `LAUNCHER` if there are other hosts; yield them.

    Raises:
        RingtuneError: A host cannot be reached, or lacks the interpreter or the package at the same path.
    """
    names = list(dict.fromkeys(hosts))
    probes: dict[str, Probe] = {}
    try:
        if names:
            here = Probe(_probe_command())
            probes[LAUNCHER] = here
            here.wait(_REACH_TIMEOUT_S)
            with ThreadPoolExecutor(max_workers=min(32, len(names))) as pool:
                problems = list(pool.map(lambda host: _start_probe(host, options, probes), names))
            if any(problems):
                raise RingtuneError("; ".join(problem for problem in problems if problem))
        yield {name: probes[name] for name in (LAUNCHER, *names) if name in probes}
    finally:
        for probe in probes.values():
            probe.close()


def _start_probe(host: str, options: LaunchOptions, probes: dict[str, Probe]) -> str:
    """Start a probe on a host; return what is wrong, else an empty text."""
    python, file = shlex.quote(sys.executable), shlex.quote(str(HOST_PROBE))
    step, starter = step_of(options), starter_of(options)
    command = f"test -x {python} || exit 96; test -r {file} || exit 97; exec {python} -I -S {file}"
    # What a batch system starts need not pass a shell: it gets plain words.
    words = [*ssh_command(host, options), command] if step is None else [*step(host), *_probe_command()]
    try:
        probes[host] = Probe(words)
        ended = probes[host].wait(_REACH_TIMEOUT_S)
    except FileNotFoundError:
        return f"host {host}: there is no {starter} on this machine to reach it with"
    except subprocess.TimeoutExpired:
        return f"host {host} cannot be reached by {starter}: no answer within {_REACH_TIMEOUT_S} s"
    if ended is None:
        return ""
    code, said = ended
    if step is None and code in (96, 97):
        lacking = sys.executable if code == 96 else str(HOST_PROBE)
        return f"host {host} has no {lacking}: install ringtune there at the same path, or share the folder"
    lines = said.strip().splitlines()
    return f"host {host} cannot be reached by {starter}: {lines[-1] if lines else f'{starter} ended with {code}'}"


def _probe_command() -> list[str]:
    return [sys.executable, "-I", "-S", str(HOST_PROBE)]
