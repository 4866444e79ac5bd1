"""Fault trials: a job of a few ranks, one of which meets a fault at a random moment of a phase.

``python -m tests.launch.trials --rounds 3`` runs every fault in every phase so often, over shared memory and TCP in
turn, and prints the table of `core/launch/README.md`.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.launch.trial_worker import OPERATIONS, PHASES
from tests.namespaces import machines

WORKER = Path(__file__).with_name("trial_worker.py")
NETWORK = ("cable out", "dropped", "half open")
"""No carrier; nothing arrives any more, and nothing says so; the same, and the peer is gone."""
SILENT = ("frozen", "frozen rank 0", *NETWORK)
"""Faults of which only the missing signs of life tell."""
FAULTS = ("killed", "exit", "raise", "exit 0", "out of memory", *SILENT)
REASONS = {"raise": "PlannedError: planned", "out of memory": "MemoryError: planned", "exit": "exited with code 3"}
"""What the victim itself says of its end, where it still can."""
SIZE = 3
LIVENESS_S = 2.0
START_S = 10.0
HANG_S = 90.0
"""A launcher that runs for so long after the fault hangs: after 60 s it says for whom it waits, and ends those that
stand stopped."""
STARTED_S = 300.0
"""By then the fault has come, or the work has ended."""
_MARK = "TRIAL_MARK"


@dataclass(frozen=True)
class Trial:
    fault: str
    phase: str
    transport: str
    victim: int
    delay_s: float

    @staticmethod
    def drawn(fault: str, phase: str, transport: str, rng: random.Random) -> Trial:
        """Draw the victim and the moment; the phases begin at once and last long, but for the first and the last."""
        victim = 0 if fault == "frozen rank 0" else rng.randrange(1 if fault == "frozen" else 0, SIZE)
        longest_s = {"rendezvous": 0.05, "shutdown": 0.004}.get(phase, 0.5)
        return Trial(fault, phase, transport, victim, rng.uniform(0.0005, longest_s))


@dataclass
class Found:
    """What came of a trial.

    Attributes:
        trial: The trial.
        met: Whether the fault came before the victim's work had ended.
        told: What the survivors were told: rank -> (class of the error, text, seconds after the fault); the class is
            empty where their work ended well. A rank that was ended from outside is not there.
        code: The launcher's exit code; None in a job without launcher.
        took_s: Seconds from the fault to the end of launcher or ranks.
        wrong: Sentences that say what was not right.
    """

    trial: Trial
    met: bool = False
    told: dict[int, tuple[str, str, float]] = field(default_factory=dict)
    code: int | None = None
    took_s: float = 0.0
    wrong: list[str] = field(default_factory=list)


def run(trial: Trial) -> Found:
    """Run one trial in a folder of its own."""
    folder = Path(tempfile.mkdtemp(prefix="rt-trial-"))
    mark = f"{os.getpid()}.{time.monotonic_ns()}"
    memory = {file.name for file in Path("/dev/shm").iterdir()}
    environ = {
        **os.environ,
        _MARK: mark,
        "TRIAL_FAULT": "frozen" if trial.fault == "frozen rank 0" else trial.fault,
        "TRIAL_PHASE": trial.phase,
        "TRIAL_VICTIM": str(trial.victim),
        "TRIAL_DELAY_S": str(trial.delay_s),
        "TRIAL_FOLDER": str(folder),
        "RINGTUNE_TRANSPORT": trial.transport,
        # Of the other faults a starved rank shall not make one more.
        "RINGTUNE_LIVENESS_TIMEOUT": str(LIVENESS_S if trial.fault in SILENT else HANG_S),
        "RINGTUNE_START_TIMEOUT": str(START_S),
        "OMP_NUM_THREADS": "1",
        "PYTHONFAULTHANDLER": "",
    }
    try:
        said = _over_network(trial, environ, folder) if trial.fault in NETWORK else _launched(environ)
        found = _read(trial, folder, *said)
        left = [process for process in psutil.process_iter() if _marked(process, mark)]
        for process in left:
            found.wrong.append(f"left behind: process {process.pid}")
            process.kill()
        new = sorted({file.name for file in Path("/dev/shm").iterdir()} - memory)
        found.wrong.extend(f"left behind: /dev/shm/{name}" for name in new if name.startswith("ringtune"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return found


def _launched(environ: dict[str, str]) -> tuple[int | None, str, float]:
    """Run the ranks under `ringtune run`; return its code, what it said, and when it ended."""
    command = [sys.executable, "-m", "ringtune.cli", "run", "-np", str(SIZE), "--no-run-dir", sys.executable, WORKER]
    fault, missed = (Path(environ["TRIAL_FOLDER"]) / name for name in ("fault", "missed"))
    with tempfile.TemporaryFile() as output:
        launcher = subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        # A starved machine may need long to start three ranks, which is no hang.
        came_by = time.monotonic() + STARTED_S
        while launcher.poll() is None and not (fault.exists() or missed.exists()) and time.monotonic() < came_by:
            time.sleep(0.01)
        try:
            code: int | None = launcher.wait(HANG_S)
        except subprocess.TimeoutExpired:
            code = None
            launcher.send_signal(signal.SIGUSR1)  # it hands that on, and each rank tells where it stands
            time.sleep(3.0)
            launcher.kill()
            launcher.wait()
        output.seek(0)
        return code, output.read().decode("utf-8", "replace"), time.monotonic()


def _over_network(trial: Trial, environ: dict[str, str], folder: Path) -> tuple[int | None, str, float]:
    """Run each rank in a network of its own and cut the victim's off; return nothing, what they said, and the end."""
    from ringtune import native

    secret = "trial" * 8
    with machines(SIZE) as spaces, tempfile.TemporaryFile() as output:
        gateway = re.sub(r"\d+$", "1", next(iter(spaces)))
        store = native.load().StoreServer(gateway, 0, secret)
        ranks = []
        for rank, space in enumerate(spaces.values()):
            own = {
                **environ,
                "RINGTUNE_RANK": str(rank),
                "RINGTUNE_SIZE": str(SIZE),
                "RINGTUNE_STORE": f"{gateway}:{store.port}",
                "RINGTUNE_SECRET": secret,
                "RINGTUNE_LAUNCHER": "1",
                "RINGTUNE_HOSTNAME": f"host{rank}",
            }
            command = ["ip", "netns", "exec", space, sys.executable, str(WORKER)]
            ranks.append(subprocess.Popen(command, env=own, stdin=subprocess.DEVNULL, stdout=output, stderr=output))
        try:
            victim, cut = ranks[trial.victim], f"{list(spaces.values())[trial.victim]}o"
            deadline = time.monotonic() + HANG_S
            while victim.poll() is None and not (folder / "ready").exists() and time.monotonic() < deadline:
                time.sleep(0.001)
            if (folder / "ready").exists():
                state = ["down"] if trial.fault == "cable out" else ["nomaster"]
                subprocess.run(["ip", "link", "set", cut, *state], check=True)
                (folder / "fault").write_text(json.dumps(time.monotonic()))
                if trial.fault == "half open":
                    victim.kill()
            for rank, process in enumerate(ranks):
                if rank != trial.victim:
                    process.wait(max(1.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            pass
        finally:
            ended = time.monotonic()
            for process in ranks:
                process.kill()
                process.wait()
            store.close()
        output.seek(0)
        return None, output.read().decode("utf-8", "replace"), ended


def _read(trial: Trial, folder: Path, code: int | None, said: str, ended: float) -> Found:
    fault = folder / "fault"
    found = Found(trial, fault.exists() and not (folder / "missed").exists(), code=code)
    at = json.loads(fault.read_text()) if fault.exists() else ended
    found.took_s = ended - at
    for rank in range(SIZE):
        if (file := folder / f"rank-{rank}").exists():
            outcome = json.loads(file.read_text())
            found.told[rank] = (outcome["kind"], outcome["text"], outcome["at"] - at)
    _judge(found, said)
    return found


def _judge(found: Found, said: str) -> None:
    """Say what breaks the rules: nothing hangs; who is told of an error is told of the victim, and in time."""
    trial, wrong = found.trial, found.wrong
    launched = trial.fault not in NETWORK
    if found.took_s > HANG_S - 5 or (launched and found.code is None):
        wrong.append(f"hang: {said[-8000:]}")
        return
    if "terminate called" in said or "Fatal Python error" in said or "core dumped" in said:
        wrong.append(f"a rank aborted: {said[-2000:]}")
    if not found.met:
        return
    bound_s = 6.0
    if trial.fault in SILENT:
        bound_s += START_S if trial.phase == "rendezvous" else LIVENESS_S
    for rank, (kind, text, after_s) in found.told.items():
        if not kind:
            if trial.phase not in ("rendezvous", "shutdown"):
                wrong.append(f"rank {rank} ended well although rank {trial.victim} did not")
            continue
        if not re.search(rf"\branks? [\d, ]*\b{trial.victim}\b", text):
            wrong.append(f"rank {rank} was not told of rank {trial.victim}: {kind}: {text}")
        if trial.phase in OPERATIONS:
            host = f"host{trial.victim}" if trial.fault in NETWORK else "localhost"
            for what in (f"rank {trial.victim} on host {host}", OPERATIONS[trial.phase], REASONS.get(trial.fault, "")):
                if what not in text:
                    wrong.append(f"rank {rank} was not told of {what!r}: {kind}: {text}")
        if after_s > bound_s:
            wrong.append(f"rank {rank} was told after {after_s:.1f} s: {kind}: {text}")
    if launched and found.code == 0 and trial.phase != "shutdown":
        wrong.append(f"the launcher ended with 0: {said[-800:]}")


def _marked(process: psutil.Process, mark: str) -> bool:
    try:
        return process.environ().get(_MARK) == mark and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def drawn(rounds: int, seed: int) -> Iterator[Trial]:
    """Yield every fault in every phase so often, over shared memory and TCP in turn."""
    rng = random.Random(seed)
    for turn, (fault, phase) in itertools.product(range(rounds), itertools.product(FAULTS, PHASES)):
        transport = "tcp" if fault in NETWORK or (turn + FAULTS.index(fault) + PHASES.index(phase)) % 2 else "auto"
        yield Trial.drawn(fault, phase, transport, rng)


def table(all_found: Sequence[Found]) -> str:
    """Return what survivors were told, within how many seconds of the fault, and when the launcher ended after it."""
    met = [found for found in all_found if found.met]

    def longest(fault: str, phase: str, of: Callable[[Found], list[float]]) -> str:
        seconds = [
            one for found in met if (found.trial.fault, found.trial.phase) == (fault, phase) for one in of(found)
        ]
        return f"{max(0.0, *seconds):.1f}" if seconds else "-"

    def rows(title: str, of: Callable[[Found], list[float]]) -> list[str]:
        lines = [f"| {title} | {' | '.join(PHASES)} |", "|---" * (len(PHASES) + 1) + "|"]
        for fault in FAULTS:
            cells = [longest(fault, phase, of) for phase in PHASES]
            if any(cell != "-" for cell in cells):
                lines.append(f"| {fault} | {' | '.join(cells)} |")
        return lines

    kinds = []
    for fault in FAULTS:
        told = {kind for found in met if found.trial.fault == fault for kind, _, _ in found.told.values() if kind}
        kinds += [f"* {fault}: {', '.join(sorted(told))}"] if told else []
    said = rows("told within (s)", lambda found: [after for kind, _, after in found.told.values() if kind])
    ended = rows("launcher ended within (s)", lambda found: [] if found.code is None else [found.took_s])
    return "\n".join([*kinds, "", *said, "", *ended])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1, help="of every fault in every phase")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--fault", choices=FAULTS, action="append")
    parser.add_argument("--phase", choices=PHASES, action="append")
    given = parser.parse_args()
    all_found = []
    for trial in drawn(given.rounds, given.seed):
        if trial.fault not in (given.fault or FAULTS) or trial.phase not in (given.phase or PHASES):
            continue
        found = run(trial)
        all_found.append(found)
        told = {rank: (kind, round(after_s, 1)) for rank, (kind, _, after_s) in found.told.items()}
        print(dataclasses.astuple(trial), "met" if found.met else "missed", found.code, told, flush=True)
        for sentence in found.wrong:
            print("  WRONG", sentence, flush=True)
    wrong = sum(bool(found.wrong) for found in all_found)
    print(table(all_found))
    print(f"seed {given.seed}: {len(all_found)} trials, {sum(found.met for found in all_found)} met, {wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
