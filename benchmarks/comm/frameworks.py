"""`ringtune bench frameworks`: sums inside compiled code of frameworks.

Beside each front end of ringtune runs the framework's own way, and ringtune without a framework, in one race. In a
second one a training's step runs beside the same step of as many processes that do not communicate. A framework is run
by this Python, or by that of its environment in `build/frameworks`; one that is nowhere is named.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ringtune import layout
from ringtune.benchmarks.comm.framework_steps import BATCH, WIDTHS
from ringtune.benchmarks.harness.environments import SUBJECT
from ringtune.benchmarks.harness.jobs import thread_variables
from ringtune.benchmarks.harness.peers import ALONE
from ringtune.benchmarks.harness.progress import open_progress
from ringtune.benchmarks.harness.race.patterns import exact_sums
from ringtune.benchmarks.harness.racejob import JobPlan
from ringtune.benchmarks.harness.races import Budget, CaseResult, Outcome, open_race
from ringtune.benchmarks.harness.statistics import paired_ratio_interval, quartiles, share_text, step_ns
from ringtune.benchmarks.training.profiles import load_profile
from ringtune.errors import UsageError
from ringtune.timeline.units import bytes_text, time_text

FRAMEWORKS: Mapping[str, tuple[str, ...]] = {
    "tensorflow": ("tf.distribute",),
    "jax": ("jax-gloo", "mpi4jax"),
    "keras": (),
    "mxnet": (),
}
"""Framework -> its other ways to sum over processes without servers."""
_MODULES = {"keras": ("keras", "torch")}
"""What a framework's programs import, where it is more than a module of its name."""
PACKAGES = {"mpi4jax": "mpi4jax"}
"""Ways that need a package beside the framework, which is built against MPI: it is looked for, and not required."""
COMPILED = ("tensorflow", "jax")
"""Those whose programs are compiled: entering the runtime costs them next to nothing."""
ALLOWED_NS, ALLOWED_SHARE = 15_000.0, 0.10
"""What a sum in a compiled program may take longer than one without a framework."""
_PROGRAM_BYTES = 3 << 29
"""Summed by a program of large tensors: the first sum of one of TensorFlow goes into new memory, whose pages cost."""
_STEPS_NS = 200_000_000
"""Of a burst of steps: long enough for the clocks, short enough that a slow spell hits both."""
_LOOK_S = 60
_ENVIRONMENTS = Path(__file__).resolve().parents[2] / "build" / "frameworks"


@dataclass(frozen=True)
class FrameworksRequest:
    """What the user asked for.

    Args:
        ranks: ranks of each job.
        sizes_bytes: sizes of single tensors.
        profile: whose gradients are summed together.
        seconds: measured per case and contender.
        threads: compute threads per rank.
        pythons: framework -> Python that has it.
        absent: framework -> why it cannot run.
    """

    ranks: int
    sizes_bytes: Sequence[int]
    profile: str
    seconds: float
    threads: int
    pythons: Mapping[str, str]
    absent: Mapping[str, str] = field(default_factory=dict)


def find_pythons(frameworks: Sequence[str], given: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Returns by framework the Python that has it, and for those that are absent why.

    Args:
        frameworks: names.
        given: Pythons that the user has named.

    Raises:
        UsageError: no such framework.
    """
    pythons, absent = {}, {}
    for name in [*frameworks, *given]:
        if name not in FRAMEWORKS:
            raise UsageError(f"unknown framework {name!r}; known: {', '.join(FRAMEWORKS)}")
    for name in frameworks:
        kept = _ENVIRONMENTS / name / "bin" / "python"
        if name in given:
            pythons[name] = given[name]
        elif all(importlib.util.find_spec(module) is not None for module in _MODULES.get(name, (name,))):
            pythons[name] = sys.executable
        elif kept.exists() and (_ENVIRONMENTS / name / "requirements").exists():
            pythons[name] = str(kept)
        else:
            absent[name] = f"this Python has none; 'make test-frameworks FRAMEWORKS={name}' makes one that has"
    for name, python in pythons.items():
        for way in FRAMEWORKS[name]:
            if way in PACKAGES and not _has(python, PACKAGES[way]):
                absent[way] = f"{python} -m pip install {PACKAGES[way]}; it is built against MPI, whose mpirun it needs"
    return pythons, absent


def _has(python: str, package: str) -> bool:
    """Whether a Python has a package, without importing it."""
    program = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
    try:
        return subprocess.run([python, "-c", program], check=False, timeout=_LOOK_S).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def run_frameworks(request: FrameworksRequest, console: Console) -> dict[str, Any]:
    """Measures, prints the table and returns the record for `--json`.

    Raises:
        RingtuneError: a job of ringtune's own failed, a wrong result included.
    """
    created_unix_ns = time.time_ns()
    cases = _cases(request)
    outcome = Outcome()
    with ExitStack() as stack:
        reporter = stack.enter_context(open_progress(console, "frameworks", len(cases)))
        for name, reason in request.absent.items():
            reporter.say(f"absent: {name} ({reason})")
        race = open_race(_plans(request), stack, outcome, reporter)
        for label, sizes_bytes, chain in cases:
            task = {"sizes_bytes": list(sizes_bytes), "dtype": "float32", "chain": chain}
            result = race.run_case(task, Budget(request.seconds))
            result.times_ns = {name: [one / chain for one in times] for name, times in result.times_ns.items()}
            outcome.results.append(result)
            medians = {name: quartiles(times).median for name, times in result.times_ns.items()}
            reporter.advance(f"{label}: " + ", ".join(f"{name} {time_text(value)}" for name, value in medians.items()))
    record = frameworks_record(request, [label for label, _, _ in cases], outcome)
    console.print(frameworks_table(record))
    record["steps"] = _run_steps(request, console)
    if record["steps"]:
        console.print(steps_table(record))
    return record | {"created_unix_ns": created_unix_ns}


def _run_steps(request: FrameworksRequest, console: Console) -> dict[str, Any]:
    """Returns for each framework what steps take."""
    outcome, steps = Outcome(), {}
    for name, python in request.pythons.items():
        with ExitStack() as stack:
            reporter = stack.enter_context(open_progress(console, f"steps of {name}", 1))
            plans = [
                _plan(f"{SUBJECT}.{name}", f"step:{name}", python, request),
                _plan(ALONE, f"alone:{name}", python, request),
            ]
            race = open_race(plans, stack, outcome, reporter, step_ns)
            budget = Budget(request.seconds, min_rounds=5, burst_ns=_STEPS_NS, calibrations=2)
            steps[name] = step_record(race.run_case({}, budget).times_ns)
            reporter.advance("")
    return steps


def step_record(times_ns: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Returns the record of a framework's steps (nanoseconds per step).

    Args:
        times_ns: samples of ringtune's front end and of processes that are alone.
    """
    [ours] = [name for name in times_ns if name != ALONE]
    return {
        "times": {name: {**quartiles(values).as_dict(), "samples": values} for name, values in times_ns.items()},
        # 1: as fast as processes that do not communicate.
        "to_alone": paired_ratio_interval(times_ns[ALONE], times_ns[ours]).as_dict(),
    }


def steps_table(record: dict[str, Any]) -> Table:
    """Returns the table of the steps."""
    title = f"steps of a training, {record['ranks']} ranks: {'-'.join(map(str, WIDTHS))}, batch {BATCH}"
    caption = "median and quartiles; to alone: beside as many processes that do not communicate (95 % interval)"
    table = Table(title=title, caption=caption)
    for column in ("", "step", "alone", "to alone"):
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    for name, step in record["steps"].items():
        times = [
            f"{time_text(one['median'])} \\[{time_text(one['low'])}, {time_text(one['high'])}]"
            for one in (step["times"][f"{SUBJECT}.{name}"], step["times"][ALONE])
        ]
        table.add_row(name, *times, share_text(step["to_alone"]).replace("[", "\\["))
    return table


def _cases(request: FrameworksRequest) -> list[tuple[str, Sequence[int], int]]:
    """Returns label, sizes, and sums in a row."""
    single = [(bytes_text(size), (size,), _chain(size, request.ranks)) for size in request.sizes_bytes]
    profile = load_profile(request.profile)
    return [
        *single,
        (
            f"{profile.name}: {len(profile.sizes_bytes)} tensors",
            tuple(profile.sizes_bytes),
            _chain(sum(profile.sizes_bytes), request.ranks),
        ),
    ]


def _chain(size_bytes: int, ranks: int) -> int:
    """Returns how often tensors are summed in a program: of what entering it costs, a sum of small ones has 1/100."""
    return min(100, max(3, _PROGRAM_BYTES // size_bytes), exact_sums("float32", ranks) // 2)


def _plans(request: FrameworksRequest) -> list[JobPlan]:
    alone = "torch" if importlib.util.find_spec("torch") is not None else "numpy"
    plans = [_plan(SUBJECT, alone, sys.executable, request)]
    for name, python in request.pythons.items():
        plans.append(_plan(f"{SUBJECT}.{name}", name, python, request))
        plans += [_plan(own, own, python, request) for own in FRAMEWORKS[name] if own not in request.absent]
    return plans


def _plan(name: str, contender: str, python: str, request: FrameworksRequest) -> JobPlan:
    def commands(join: str) -> list[list[str]]:
        run = [python, "-m", "ringtune.cli", "run", "-np", str(request.ranks), "--no-run-dir"]
        if contender == "mpi4jax":
            run = ["mpirun", "--oversubscribe", "-np", str(request.ranks)]
        worker = "ringtune.benchmarks.comm.frameworks_worker"
        return [[*run, python, "-m", worker, join, str(request.threads), contender]]

    environ = {**os.environ, **thread_variables(request.threads), "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "2"}
    if contender == "mpi4jax":  # by the mpirun of its environment, where MPI is a package there
        environ["PATH"] = f"{Path(python).parent}{os.pathsep}{environ.get('PATH', os.defpath)}"
    if os.geteuid() == 0:  # Open MPI asks for it
        environ |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return JobPlan(name, {name: contender}, request.ranks, commands, environ)


def frameworks_record(request: FrameworksRequest, labels: Sequence[str], outcome: Outcome) -> dict[str, Any]:
    """Returns the record of what was measured (nanoseconds per sum, by case and contender)."""
    return {
        "format": layout.FORMAT,
        "benchmark": "frameworks",
        "command": ["ringtune", *sys.argv[1:]],
        "ranks": request.ranks,
        "threads_per_rank": request.threads,
        "unit": "ns",
        "about": outcome.about,
        "absent": dict(request.absent),
        "failed": outcome.failed,
        "cases": [_case_record(label, result) for label, result in zip(labels, outcome.results, strict=True)],
    }


def _case_record(label: str, result: CaseResult) -> dict[str, Any]:
    times = result.times_ns
    alone = times.get(SUBJECT)
    fronts: dict[str, Any] = {}
    for name, ways in FRAMEWORKS.items():
        ours = times.get(f"{SUBJECT}.{name}")
        if ours is None or alone is None:
            continue
        fronts[name] = {
            # Above 1: ringtune is that many times faster than the framework's own way.
            "own_ways": {own: paired_ratio_interval(times[own], ours).as_dict() for own in ways if own in times},
            "more_than_alone_ns": quartiles([one - other for one, other in zip(ours, alone, strict=True)]).as_dict(),
        }
    return {
        "label": label,
        "times": {name: {**quartiles(values).as_dict(), "samples": values} for name, values in times.items()},
        "unsupported": result.unsupported,
        "frameworks": fronts,
    }


def frameworks_table(record: dict[str, Any]) -> Table:
    """Returns the table that ends the benchmark."""
    caption = "median and quartiles per sum on the slowest rank; ratios above 1: ringtune is faster (95 % interval)"
    table = Table(title=f"sums in compiled code, {record['ranks']} ranks, float32", caption=caption, show_lines=True)
    for column in ("", "", "time", "more than without", "to the best own way"):
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    for case in record["cases"]:
        for index, (name, times) in enumerate(case["times"].items()):
            front = case["frameworks"].get(name.removeprefix(f"{SUBJECT}."), None)
            more = time_text(front["more_than_alone_ns"]["median"]) if front else ""
            ratio = min(front["own_ways"].values(), key=lambda one: one["median"], default=None) if front else None
            shown = f"{ratio['median']:.2f} \\[{ratio['low']:.2f}, {ratio['high']:.2f}]" if ratio else ""
            time_shown = f"{time_text(times['median'])} \\[{time_text(times['low'])}, {time_text(times['high'])}]"
            table.add_row(case["label"] if index == 0 else "", name, time_shown, more, shown)
    return table


def too_slow(record: dict[str, Any]) -> list[str]:
    """Returns a sentence for each front end that is behind its framework's own way, or far behind ringtune alone."""
    said = []
    for case in record["cases"]:
        alone = case["times"][SUBJECT]["median"]
        for name, front in case["frameworks"].items():
            said += [
                f"{case['label']}: {name} is {ratio['median']:.2f} times as fast as {own}"
                for own, ratio in front["own_ways"].items()
                if ratio["median"] < 1
            ]
            allowed = ALLOWED_NS + ALLOWED_SHARE * alone
            more = front["more_than_alone_ns"]["median"]
            if name in COMPILED and more > allowed:
                said.append(f"{case['label']}: {name} takes {time_text(more)} more, allowed are {time_text(allowed)}")
    return said
