"""`ringtune bench predict`: what `ringtune predict` says beside what jobs then measure.

Jobs play a profile's gradients (`netlab/replay_worker.py`) over network namespaces with shaped links. The model sees
the timeline of one job at each rate only: two hosts of one rank, the default setting and a small fusion buffer; and
what this machine's cores need for a byte between the two (`effort`, anew in every round). Then other settings, sizes,
rates and numbers of ranks are predicted and measured, all of them in turn for some rounds. What was measured is kept in
a folder, so that a long measurement can be made in pieces.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from ringtune import layout, runfolder
from ringtune.benchmarks.harness.progress import open_console
from ringtune.benchmarks.harness.statistics import median_interval
from ringtune.benchmarks.netlab import network
from ringtune.benchmarks.netlab.testbed import Bed, Shape, lighter, share_of_bytes
from ringtune.benchmarks.predict import published
from ringtune.benchmarks.predict.effort import keep_effort, kept_efforts, measure_effort, typical
from ringtune.errors import UsageError
from ringtune.knobs import DEFAULTS, Knobs
from ringtune.timeline import load
from ringtune.tuner.model.calibrate import Model, calibrate
from ringtune.tuner.model.questions import Answer, Change, ask
from ringtune.tuner.model.workload import Workload

SKIPPED_STEPS = 6
"""Steps until the runtime follows its step schedule."""

_CALM, _TRIES = 0.05, 3
"""The share of a core that others may use while a job is measured, and how often that is tried."""

PAIR = Shape(2, 1)
SMALL = {"fusion_bytes": 256 << 10}
"""Shows the calibration batches of other sizes than the default setting does."""

_PROFILES = ("resnet50", "resnet101", "vgg16")


@dataclass(frozen=True)
class Case:
    """A job to predict and to measure.

    Args:
        label: for tables.
        shape: of the job.
        rate: of the links, as `network.link_rate` reads it.
        work: the step it plays.
        knobs: other than the default ones.
    """

    label: str
    shape: Shape
    rate: str
    work: Workload
    knobs: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """A prediction beside the medians of its jobs' steps, one a round, in ns."""

    case: Case
    answer: Answer
    measured_ns: tuple[float, ...]

    @property
    def error(self) -> float:
        """Predicted over the median measured, less 1."""
        return self.answer.step_ns.value / statistics.median(self.measured_ns) - 1.0

    @property
    def spread(self) -> float:
        """How far repeats of the very case lie apart: the longest over the shortest, less 1."""
        return max(self.measured_ns) / min(self.measured_ns) - 1.0


def cases(works: Sequence[Workload], rate: str) -> list[Case]:
    """What is predicted at `rate`; the first is what was calibrated, of the others nothing was seen.

    Args:
        works: the one that is calibrated, and others.
        rate: of the links.
    """
    first = works[0]
    base = Case("2 hosts (calibrated)", PAIR, rate, first)
    two, four, eight = (replace(base, label=f"{count} hosts", shape=Shape(count, 1)) for count in (2, 4, 8))
    half = f"{network.rate_number(rate) / 2 / 1e6:g}mbit"
    settings = (
        ("fusion 1 MiB", {"fusion_bytes": 1 << 20}),
        ("fusion 64 MiB, cycle 10 ms", {"fusion_bytes": 64 << 20, "cycle_time_ns": 10_000_000}),
        ("every step negotiated", {"step_schedule": 0}),
    )
    found = [base, four, eight, replace(base, label="2 hosts of 2 ranks", shape=Shape(2, 2))]
    found += [
        replace(size, label=f"{size.label}, {name}", knobs=knobs)
        for name, knobs in settings
        for size in (two, four, eight)
    ]
    found += [replace(size, label=f"{size.label}, {half}", rate=half) for size in (two, four)]
    found += [
        replace(size, label=f"{size.label}, {work.name}", work=work) for work in works[1:] for size in (two, four)
    ]
    return found


def predicted(model: Model, case: Case, rate: str) -> Answer:
    """What the model calibrated at `rate` says of `case`."""
    scale = network.rate_number(case.rate) / network.rate_number(rate)
    seen = model
    if case.work.name != model.work.name:
        seen = replace(model, work=case.work, draws=tuple((case.work, link) for _, link in model.draws))
    bandwidth = model.cluster.network.bytes_per_s * scale
    knobs = {**DEFAULTS.as_dict(), **case.knobs}
    shape = case.shape
    # The hosts are this machine's; the calibration's copies were those of its ranks on these cores.
    cores = max(len(os.sched_getaffinity(0)), PAIR.ranks)
    change = Change(case.label, shape.ranks, shape.slots, knobs=knobs, bandwidth=bandwidth, cores=cores)
    return ask(seen, change)


@dataclass(frozen=True)
class Plan:
    """The extent of the measurement.

    Args:
        rates: of the links.
        rounds: over all cases.
        steps: of each job.
        seconds: after which the measurement stops, to be taken up later.
    """

    rates: Sequence[str]
    rounds: int
    steps: int
    seconds: float


class Kept:
    """A folder of what was measured: ``samples.jsonl``, the calibrations' run folders and ``effort.jsonl``.

    Raises:
        UsageError: it holds another measurement's.
    """

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        about = folder / "measurement.json"
        wanted = {"format": layout.FORMAT, "rates": list(plan.rates), "steps": plan.steps}
        if about.is_file() and json.loads(about.read_text(encoding="utf-8")) != wanted:
            raise UsageError(f"{folder} holds a measurement with other options; name another --state")
        runfolder.write_json(about, wanted)
        self._file = folder / "samples.jsonl"

    def samples(self) -> dict[tuple[str, str], list[float]]:
        """Step times in ns by rate and label, one a round."""
        found: dict[tuple[str, str], list[float]] = {}
        if self._file.is_file():
            for line in self._file.read_text(encoding="utf-8").splitlines():
                sample = json.loads(line)
                found.setdefault((sample["rate"], sample["label"]), []).append(sample["step_ns"])
        return found

    def add(self, rate: str, label: str, step_ns: float) -> None:
        """Keep one more."""
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"rate": rate, "label": label, "step_ns": step_ns}) + "\n")

    @property
    def effort(self) -> Path:
        """Where the cores' work for a byte is or will be."""
        return self.folder / "effort.jsonl"

    def calibration(self, rate: str) -> Path:
        """Where the calibration's run folder of this rate is or will be."""
        return self.folder / f"calibration-{rate}"


def run_prediction(profiles: Path, scale: float, plan: Plan, kept: Kept, console: Console) -> dict[str, Any] | None:
    """Measures, predicts and prints; returns the record, None when the time was over before the last round.

    Raises:
        UsageError: root or a program is missing.
        RingtuneError: a rank failed.
    """
    lacking = network.missing()
    if lacking is not None:
        raise UsageError(f"'ringtune bench predict' makes hosts of network namespaces and needs {lacking}")
    wanted = {rate: cases(read_profiles(profiles, scale, rate), rate) for rate in plan.rates}
    if not _measure(wanted, plan, kept, console):
        return None
    samples, records = kept.samples(), []
    for rate, some in wanted.items():
        model = calibrated(kept, rate, some[0].work.name)
        rows = [
            Row(case, predicted(model, case, rate), tuple(samples[rate, case.label][: plan.rounds])) for case in some
        ]
        console.print(_table(rows, f"{some[0].work.name} at {rate}, {plan.rounds} rounds of {plan.steps} steps"))
        records.append(_record(rows, rate))
    return {
        "format": layout.FORMAT,
        "benchmark": "predict",
        "command": ["ringtune", *sys.argv[1:]],
        "created_unix_ns": time.time_ns(),
        "unit": "ns",
        "rates": records,
    }


def calibrated(kept: Kept, rate: str, name: str) -> Model:
    """The model of what was measured between two hosts at this rate."""
    model, effort = calibrate(load(kept.calibration(rate)), name), typical(kept_efforts(kept.effort))
    draws = tuple((work, replace(cluster, effort=effort)) for work, cluster in model.draws)
    return replace(model, cluster=replace(model.cluster, effort=effort), draws=draws)


def _measure(wanted: dict[str, list[Case]], plan: Plan, kept: Kept, console: Console) -> bool:
    """Whether everything is measured."""
    end = time.monotonic() + plan.seconds
    todo = list(_todo(wanted, plan, kept))
    new = [rate for rate in plan.rates if not kept.calibration(rate).is_dir()]
    if not todo and not new:
        return True
    with Bed(max(case.shape.hosts for some in wanted.values() for case in some)) as bed:
        for rate in new:
            console.print(f"calibration at {rate}")
            record(bed, wanted[rate][0], plan.steps, kept.calibration(rate))
        for left, (number, rate, case) in zip(range(len(todo), 0, -1), todo, strict=True):
            if time.monotonic() > end:
                console.print(f"the time is over: {left} jobs are left; the same command goes on with them")
                return False
            if len(kept_efforts(kept.effort)) <= number:
                console.print("the cores' work for a byte")
                keep_effort(kept.effort, measure_effort(bed, PAIR))
            console.print(f"{rate}: {case.label}")
            kept.add(rate, case.label, measure(bed, case, plan.steps))
    return True


def _todo(wanted: dict[str, list[Case]], plan: Plan, kept: Kept) -> Iterator[tuple[int, str, Case]]:
    """Round by round, with their numbers; every other backwards, so that a slow spell hits different cases."""
    done = {key: len(times) for key, times in kept.samples().items()}
    for number in range(plan.rounds):
        everything = [(rate, case) for rate, some in wanted.items() for case in some]
        for rate, case in everything if number % 2 == 0 else reversed(everything):
            if done.get((rate, case.label), 0) <= number:
                yield number, rate, case


def measure(bed: Bed, case: Case, steps: int) -> float:
    """Median step of the case, mean over its ranks, in ns; of some tries while others use the cores, the calmest one's.

    Raises:
        JobLost: a rank failed.
    """
    bed.shape_links(case.rate)
    job, knobs = bed.job(case.shape), Knobs(**{**DEFAULTS.as_dict(), **case.knobs})
    seen: dict[float, float] = {}
    while len(seen) < _TRIES and min(seen, default=1.0) > _CALM:
        begin, before = time.monotonic(), job.others_s()
        played = np.array(job.play(case.work, knobs, steps))
        others = (job.others_s() - before) / (time.monotonic() - begin)
        seen[others] = float(np.median(played[:, SKIPPED_STEPS:], axis=1).mean())
    return seen[min(seen)]


def record(bed: Bed, case: Case, steps: int, run: Path) -> None:
    """Leaves the timeline of the case's job in a run folder: under its own setting, and longer under `SMALL`.

    Latency is found from the small batches, and eight hosts pay it 14 times as often as two.

    Raises:
        JobLost: a rank failed.
    """
    bed.shape_links(case.rate)
    with bed.own_job(case.shape, run) as job:
        job.play(case.work, replace(DEFAULTS, **SMALL), 4 * steps, record=True)
        job.play(case.work, DEFAULTS, 2 * steps, record=True)


def read_profiles(folder: Path, scale: float, rate: str) -> list[Workload]:
    """The profiles with `scale` of their bytes at 10 Gbit/s, with as much less as the rate is lower otherwise."""
    share = scale * share_of_bytes(rate)
    return [lighter(published.read_profile(folder, name), share) for name in _PROFILES]


def _table(rows: list[Row], title: str) -> Table:
    table = Table(title=title)
    table.add_column("", no_wrap=True)
    for name in ("measured", "repeats differ by", "predicted", "error"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        seen = median_interval(row.measured_ns)
        table.add_row(
            row.case.label,
            f"{seen.median / 1e6:.1f} [{seen.low / 1e6:.1f}, {seen.high / 1e6:.1f}] ms",
            f"{100 * row.spread:.1f} %",
            f"{row.answer.step_ns.value / 1e6:.1f} ms",
            f"{100 * row.error:+.1f} %",
        )
    errors = [abs(row.error) for row in rows[1:]]
    spreads = [row.spread for row in rows]
    table.caption = (
        f"[95 % interval of the repeats' median]; not calibrated: mean {100 * statistics.mean(errors):.1f} %, "
        f"worst {100 * max(errors):.1f} %; repeats of a case differ by {100 * statistics.median(spreads):.1f} % "
        f"(median), {100 * max(spreads):.1f} % (worst)"
    )
    return table


def _record(rows: list[Row], rate: str) -> dict[str, Any]:
    errors = [abs(row.error) for row in rows[1:]]
    return {
        "rate": rate,
        "mean_error": statistics.mean(errors),
        "worst_error": max(errors),
        "cases": [
            {
                "label": row.case.label,
                "measured": list(row.measured_ns),
                "measured_interval": median_interval(row.measured_ns).as_dict(),
                "predicted": row.answer.as_dict(),
                "error": row.error,
            }
            for row in rows
        ],
    }


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--profiles", type=click.Path(path_type=Path), required=True, help="Folder of backward profiles.")
@click.option(
    "--rate", "rates", multiple=True, default=("1gbit", "10gbit"), show_default=True, help="Rates of the links."
)
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--steps", type=click.IntRange(min=12), default=16, show_default=True, help="Steps of each job.")
@click.option(
    "--scale",
    type=click.FloatRange(min=0.0, min_open=True),
    default=1.0,
    show_default=True,
    help="Share of the bytes at 10 Gbit/s; at lower rates they are fewer in proportion.",
)
@click.option(
    "--seconds", type=click.FloatRange(min=1.0), default=3600.0, help="Stop after this time; the same command goes on."
)
@click.option("--state", type=click.Path(path_type=Path), help="Folder of the measurements; default: runs/bench-...")
@click.option("--published", "against_published", is_flag=True, help="Predict Horovod's published results instead.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the record to this file.")
def predict(profiles: Path, json_file: Path | None, against_published: bool, **values: Any) -> int:
    """Predict jobs that were not seen in calibration, measure them, and print every miss."""
    console = open_console()
    if against_published:
        record = published.run_published(profiles, console)
    else:
        plan = Plan(values["rates"], values["rounds"], values["steps"], values["seconds"])
        kept = Kept(values["state"] or runfolder.planned_folder("bench-predict"), plan)
        console.print(f"measurements: {kept.folder}", soft_wrap=True)
        found = run_prediction(profiles, values["scale"], plan, kept, console)
        if found is None:
            return 0
        record = found
    if json_file is not None:
        runfolder.write_json(json_file, record)
    return 0
