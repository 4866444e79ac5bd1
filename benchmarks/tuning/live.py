"""`ringtune bench tuner --live`: sessions of `ringtune tune` between network namespaces, and their results.

A job of the live bench plays a profile's gradients (`netlab/replay_worker.py`) on hosts made of network namespaces, its
ranks asleep where they would compute. Its setting comes from a real ``ringtune tune`` that starts such a job on these
hosts. Then the job is measured on a small grid, and at last the default, the grid's best setting and the tuner's are
measured again, in turn, every other round backwards: the best of a grid is partly luck, so fresh measurements are
compared.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from ringtune import layout
from ringtune.benchmarks.harness.statistics import median_interval, paired_ratio_interval
from ringtune.benchmarks.netlab import network
from ringtune.benchmarks.netlab.network import Host
from ringtune.benchmarks.netlab.testbed import Bed, Shape, document
from ringtune.benchmarks.tuning.recording import Play, grid
from ringtune.errors import RingtuneError, UsageError
from ringtune.knobs import DEFAULTS, Knobs
from ringtune.timeline.runs.growing_lines import GrowingLines
from ringtune.tuner.journal import parse_line
from ringtune.tuner.messages import describe, milliseconds, percent
from ringtune.tuner.model.workload import Workload
from ringtune.tuner.records import ResultRecord, parse
from ringtune.tuner.scoring import Interval

CASES = ("2x1@1gbit", "4x1@1gbit", "2x1@10gbit", "4x1@10gbit")
FUSION = (256 << 10, 2 << 20, 16 << 20, 128 << 20)
CYCLE_NS = (100_000, 1_000_000, 10_000_000)
"""The small grid; the default is a point of it."""

SETTLE_STEPS, STEPS, ROUNDS = 2, 6, 8
"""Of a block of the last measurement: the first steps under a setting count for nothing."""

_MOST_STEPS = 3000
_SECONDS = 600.0
_CASE = re.compile(r"(\d+)x(\d+)@([\w.]+)")


@dataclass(frozen=True)
class Case:
    """A job on a network."""

    shape: Shape
    rate: str

    @property
    def label(self) -> str:
        """For tables."""
        return f"{self.shape.hosts} x {self.shape.slots} at {self.rate}"


@dataclass(frozen=True)
class Ended:
    """The result of a session."""

    decision: str
    knobs: Knobs
    trials: int
    lost_ns: int
    reason: str


@dataclass(frozen=True)
class Found:
    """A case, measured.

    Attributes:
        ended: The session.
        grid: Step times in ns by `FUSION` and `CYCLE_NS`.
        times: Step times in ns of each setting, a round each: ``default``, ``grid optimum``, ``tuned``.
        knobs: These settings.
    """

    case: Case
    ended: Ended
    grid: list[list[float]]
    times: dict[str, list[float]]
    knobs: dict[str, Knobs]

    def over_default(self, name: str) -> Interval:
        """A setting's step time over the default's, with its 95 % interval."""
        return paired_ratio_interval(self.times[name], self.times["default"])

    @property
    def worse(self) -> bool:
        """Whether the tuned setting is certainly slower than the default; the default itself never is."""
        return self.knobs["tuned"] != self.knobs["default"] and self.over_default("tuned").low > 1.0


def parse_case(text: str) -> Case:
    """Return the case in ``HOSTSxSLOTS@RATE``.

    Raises:
        UsageError: It is none, or a job of one rank.
    """
    match = _CASE.fullmatch(text.strip())
    if match is None or int(match[1]) < 2 or not int(match[2]):
        raise UsageError(f"--case {text}: expected HOSTSxSLOTS@RATE with two hosts or more, for example 2x1@10gbit")
    network.rate_number(match[3])
    return Case(Shape(int(match[1]), int(match[2])), match[3])


def run_case(bed: Bed, case: Case, work: Workload, folder: Path) -> Found:
    """Tune, measure the grid, and measure what matters again.

    Args:
        bed: With enough hosts.
        case: What is run.
        work: The step.
        folder: For the session's run folder, its study and its output.

    Raises:
        RingtuneError: The session failed, or a rank.
    """
    bed.shape_links(case.rate)
    ended = _tune(bed.hosts[: case.shape.hosts], case, work, folder)
    job = bed.job(case.shape)

    def play(knobs: Knobs, steps: int) -> list[list[int]]:
        return job.play(work, knobs, steps)

    times = grid(play, FUSION, CYCLE_NS).step_ns
    settings = {"default": DEFAULTS, "grid optimum": best_of(times), "tuned": ended.knobs}
    return Found(case, ended, times, again(play, settings), settings)


def best_of(times: Sequence[Sequence[float]]) -> Knobs:
    """Return the fastest setting of the grid."""
    row, column = np.unravel_index(np.argmin(np.array(times)), (len(FUSION), len(CYCLE_NS)))
    return Knobs.from_dict({"fusion_bytes": FUSION[row], "cycle_time_ns": CYCLE_NS[column]})


def again(play: Play, settings: dict[str, Knobs]) -> dict[str, list[float]]:
    """Measure settings in turn; returns a median step of the slowest rank for each round.

    Equal settings are measured each for itself: how far they seem apart is the noise of the comparison.
    """
    times: dict[str, list[float]] = {name: [] for name in settings}
    for number in range(ROUNDS):
        for name in settings if number % 2 == 0 else reversed(settings):
            ranks = np.array(play(settings[name], SETTLE_STEPS + STEPS))
            times[name].append(float(np.median(ranks.max(axis=0)[SETTLE_STEPS:])))
    return times


def _tune(hosts: Sequence[Host], case: Case, work: Workload, folder: Path) -> Ended:
    """Run a session of `ringtune tune` to its end."""
    folder.mkdir(parents=True, exist_ok=True)
    step, run = folder / "step.json", folder / "run"
    step.write_text(json.dumps(document(work)), encoding="utf-8")
    ranks = ",".join(f"{host.address}:{case.shape.slots}" for host in hosts)
    command = [sys.executable, "-m", "ringtune.cli", "tune", "-np", str(case.shape.ranks), "-H", ranks]
    command += ["--run-dir", str(run), "--study", str(folder / "study.db"), "--seed", "0"]
    command += [sys.executable, "-m", "ringtune.benchmarks.tuning.profiled_worker", str(step), str(_MOST_STEPS)]
    network.reach(hosts, folder)
    path = f"{folder}:{os.environ['PATH']}"
    with (folder / "tune.log").open("w+", encoding="utf-8") as said:
        try:
            done = subprocess.run(
                command, env={**os.environ, "PATH": path}, stdin=subprocess.DEVNULL, stdout=said,
                stderr=subprocess.STDOUT, timeout=_SECONDS, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise RingtuneError(f"{case.label}: 'ringtune tune' did not end within {_SECONDS:.0f} s") from None
    if done.returncode:
        lines = (folder / "tune.log").read_text(encoding="utf-8").strip().splitlines()
        raise RingtuneError(f"{case.label}: 'ringtune tune' ended with {done.returncode}: {'; '.join(lines[-3:])}")
    return read_end(run)


def read_end(run: Path) -> Ended:
    """Return the result of the session in a run folder.

    Raises:
        RingtuneError: Its journal holds no result.
    """
    events = (parse_line(line) for line in GrowingLines(layout.tuning_journal(run)).read())
    records = [parse(event) for event in events if event is not None]
    results = [record for record in records if isinstance(record, ResultRecord)]
    if not results:
        raise RingtuneError(f"{run}: the tuning session has no result")
    end = results[-1]
    return Ended(end.decision, end.knobs, end.trials, end.lost_ns, end.reason)


def table(found: Sequence[Found]) -> Table:
    """Return the cases as a table."""
    made = Table(title="default, grid optimum and tuned, measured again in turn", caption="[95 % intervals]")
    made.add_column("", no_wrap=True)
    for name in ("setting", "step", "over the default"):
        made.add_column(name, justify="right")
    for one in found:
        made.add_section()
        for name, knobs in one.knobs.items():
            label = f"{one.case.label}: {name}"
            made.add_row(label, describe(knobs), _spread_ms(median_interval(one.times[name])), _ratio(one, name))
        ended = one.ended
        end = f"{ended.decision}, {ended.trials} trials, lost {ended.lost_ns / 1e9:.2f} s"
        made.add_row("  session", end, "", "")
    return made


def _ratio(found: Found, name: str) -> str:
    if name == "default":
        return ""
    ratio = found.over_default(name)
    return f"{percent(ratio.median - 1)} [{percent(ratio.low - 1)}, {percent(ratio.high - 1)}]"


def _spread_ms(interval: Interval) -> str:
    return f"{milliseconds(interval.median)} [{interval.low / 1e6:.1f}, {interval.high / 1e6:.1f}]"


def as_json(found: Found) -> dict[str, Any]:
    """Return a case for the record; times in ns."""
    return {
        "case": found.case.label,
        "session": {
            "decision": found.ended.decision,
            "trials": found.ended.trials,
            "lost_ns": found.ended.lost_ns,
            "reason": found.ended.reason,
        },
        "grid": {"fusion_bytes": list(FUSION), "cycle_time_ns": list(CYCLE_NS), "step_ns": found.grid},
        "settings": {
            name: {
                "knobs": knobs.as_dict(),
                "step_ns": median_interval(found.times[name]).as_dict(),
                "over_default": found.over_default(name).as_dict(),
                "rounds_ns": found.times[name],
            }
            for name, knobs in found.knobs.items()
        },
        "worse_than_default": found.worse,
    }
