"""`ringtune bench tuner`: sessions on landscapes, table by procedure, by noise and by landscape; what is required."""

from __future__ import annotations

import fnmatch
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits

from ringtune import layout, runfolder
from ringtune.benchmarks.harness.progress import open_console
from ringtune.benchmarks.netlab import network
from ringtune.benchmarks.netlab.testbed import Bed, Shape, lighter, share_of_bytes
from ringtune.benchmarks.predict.published import read_profile
from ringtune.benchmarks.tuning import live
from ringtune.benchmarks.tuning.landscapes import AS_MEASURED, NOISES, Landscape, modelled, read_grid, synthetic
from ringtune.benchmarks.tuning.procedures import PROCEDURES
from ringtune.benchmarks.tuning.recording import record
from ringtune.benchmarks.tuning.session import COLD, RINGTUNE, Outcome, play
from ringtune.errors import RingtuneError, UsageError
from ringtune.knobs import Knobs

GRIDS = Path(__file__).parent / "grids"
NEAR_SHARE, HARMLESS_SHARE = 0.90, 0.99
SAVE_EVERY_S = 20.0

Case = tuple[Landscape, str, str, int]
"""A session to play: landscape, names of noise and procedure, seed."""


def landscapes(profiles: Path | None, pattern: str) -> list[Landscape]:
    """Return the landscapes whose name fits a pattern; those of the model need the folder of profiles.

    Raises:
        UsageError: None fits.
    """
    made = [*synthetic(), *(place for path in sorted(GRIDS.glob("*.json")) for place in read_grid(path))]
    if profiles is not None:
        made += modelled(profiles)
    chosen = [place for place in made if fnmatch.fnmatchcase(place.name, pattern)]
    if not chosen:
        raise UsageError(f"no landscape is named {pattern!r}; there are: {'; '.join(place.name for place in made)}")
    return chosen


def run_sessions(cases: Sequence[Case], jobs: int) -> Iterator[Outcome]:
    """Play sessions, in so many processes; yields each as it ends, in the order of the cases."""
    places = {case[0].name: case[0] for case in cases}
    for place in places.values():
        _ = place.optimum_ns  # kept in the landscape, with every step time that was played for it
    pool = ProcessPoolExecutor(jobs, initializer=_begin, initargs=(places,))
    try:
        yield from pool.map(_play, [(case[0].name, *case[1:]) for case in cases], chunksize=4)
    finally:
        pool.shutdown(cancel_futures=True)  # a caller that stops reading must not wait for thousands of sessions


def left(cases: Sequence[Case], known: Iterable[Outcome]) -> list[Case]:
    """Return the cases that were not played yet."""
    played = {(one.landscape, one.noise, one.procedure, one.seed) for one in known}
    return [case for case in cases if (case[0].name, *case[1:]) not in played]


_PLACES: dict[str, Landscape] = {}
"""The landscapes, in a process that plays sessions."""


def _begin(places: dict[str, Landscape]) -> None:
    import torch

    torch.set_num_threads(1)
    _PLACES.update(places)


def _play(case: tuple[str, str, str, int]) -> Outcome:
    name, noise, procedure, seed = case
    with threadpool_limits(
        1
    ):  # the sampler's matrices are tiny: with more threads BLAS waits for them, 4 times as long
        return play(_PLACES[name], noise, procedure, seed)


def by_group(outcomes: Iterable[Outcome], group: Callable[[Outcome], str]) -> dict[str, list[Outcome]]:
    """Return outcomes by group, in the order in which groups come."""
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(group(outcome), []).append(outcome)
    return groups


def figures(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Return the results of a group of sessions; times lost in steps of the default."""
    lost = sorted(outcome.deepest for outcome in outcomes)
    return {
        "sessions": len(outcomes),
        "near": sum(outcome.near for outcome in outcomes) / len(outcomes),
        "harmless": sum(not outcome.harmful for outcome in outcomes) / len(outcomes),
        "to_optimum": sum(outcome.to_optimum for outcome in outcomes) / len(outcomes),
        "worst_to_default": max(outcome.to_default for outcome in outcomes),
        "steps": median(outcome.steps for outcome in outcomes),
        "lost": median(outcome.lost for outcome in outcomes),
        "deepest": median(lost),
        "deepest_95": lost[min(int(0.95 * len(lost)), len(lost) - 1)],
        "improved": sum(outcome.to_default < -1e-9 for outcome in outcomes) / len(outcomes),
        "break_even": _break_even(outcomes),
    }


def _break_even(outcomes: Sequence[Outcome]) -> float:
    """Median over the sessions that improved anything; NaN when none did."""
    better = [outcome.break_even for outcome in outcomes if outcome.to_default < -1e-9]
    return median(better) if better else math.nan


def table(groups: dict[str, list[Outcome]], title: str) -> Table:
    """Return the figures of groups."""
    made = Table(title=title, caption="lost time in steps of the default; break-even of the sessions that improved")
    made.add_column("", no_wrap=True)
    for name in (
        "sessions", "within 3 % of the optimum", "not below the default by 1 %", "over the optimum", "worst end",
        "steps", "lost", "deepest", "95 %", "break-even",
    ):  # fmt: skip
        made.add_column(name, justify="right")
    for name, outcomes in groups.items():
        f = figures(outcomes)
        made.add_row(
            name,
            f"{f['sessions']:.0f}",
            f"{f['near']:.1%}",
            f"{f['harmless']:.1%}",
            f"{f['to_optimum']:.1%}",
            f"{f['worst_to_default']:+.1%}",
            f"{f['steps']:.0f}",
            f"{f['lost']:.0f}",
            f"{f['deepest']:.0f}",
            f"{f['deepest_95']:.0f}",
            "-" if math.isnan(f["break_even"]) else f"{f['break_even']:.0f}",
        )
    return made


def missed(outcomes: Sequence[Outcome]) -> list[str]:
    """Return a sentence for each requirement that ringtune's sessions do not meet."""
    ours = [outcome for outcome in outcomes if outcome.procedure == RINGTUNE]
    if not ours:
        return ["no session of ringtune's was played"]
    f, said = figures(ours), []
    if f["near"] < NEAR_SHARE:
        said.append(f"within 3 % of the optimum in {f['near']:.1%} of the sessions, required {NEAR_SHARE:.0%}")
    if f["harmless"] < HARMLESS_SHARE:
        said.append(f"not more than 1 % below the default in {f['harmless']:.1%}, required {HARMLESS_SHARE:.0%}")
    return said


def _print(outcomes: Sequence[Outcome], console: Console) -> None:
    console.print(table(by_group(outcomes, lambda one: one.procedure), "all sessions"))
    ours = [outcome for outcome in outcomes if outcome.procedure == RINGTUNE]
    if not ours:
        return
    console.print(table(by_group(ours, lambda one: one.noise), "ringtune, by noise"))
    console.print(table(by_group(ours, lambda one: one.landscape), "ringtune, by landscape"))


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--profiles", type=click.Path(path_type=Path), help="Folder of backward profiles, for the model's jobs.")
@click.option(
    "--landscapes", "pattern", default="*", show_default=True, help="Landscapes whose name fits this pattern."
)
@click.option(
    "--noise", "noises", multiple=True, type=click.Choice([*NOISES, AS_MEASURED]), help="May be repeated; default: all."
)
@click.option("--procedures", default="all", show_default=True, help="Comma-separated.")
@click.option("--seeds", type=click.IntRange(min=1), default=20, show_default=True, help="Sessions of each kind.")
@click.option("--first-seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Processes.")
@click.option(
    "--add",
    "parts",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Record of an earlier piece, which is not played again; may be repeated.",
)
@click.option("--require", is_flag=True, help="Exit 1 when ringtune misses a requirement.")
@click.option(
    "--json",
    "json_file",
    type=click.Path(path_type=Path),
    help="Write the record to this file, every 20 s and at the end.",
)
@click.option(
    "--record",
    "grid",
    nargs=4,
    metavar="HOSTS SLOTS RATE PROFILE",
    help="Measure a landscape on network namespaces instead (root), into --json: ranks on hosts, links, the step.",
)
@click.option(
    "--live", is_flag=True, help="Tune real jobs on network namespaces (root) instead, and measure what comes of it."
)
@click.option(
    "--case",
    "live_cases",
    multiple=True,
    metavar="HOSTSxSLOTS@RATE",
    help=f"--live: a job; may be repeated; default: {', '.join(live.CASES)}.",
)
@click.option(
    "--state", type=click.Path(path_type=Path), help="--live: folder of the sessions; default: runs/bench-..."
)
@click.option(
    "--scale",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    help="--record, --live: share of the bytes; --live plays as much less of it as a rate is below 10 Gbit/s.",
)
def tuner(profiles: Path | None, pattern: str, json_file: Path | None, **values: Any) -> int:
    """Tune jobs whose best setting is known, beside other ways to search.

    Nothing is measured and any machine will do, but for --record and --live.
    """
    if values["grid"]:
        _measure(profiles, json_file, values["grid"], values["scale"])
        return 0
    if values["live"]:
        _live(profiles, json_file, values)
        return 0
    if values["live_cases"] or values["state"] is not None:
        raise UsageError("--case and --state are for --live")
    procedures = _procedures(values["procedures"])
    seeds = range(values["first_seed"], values["first_seed"] + values["seeds"])
    places = landscapes(profiles, pattern)
    cases = [
        (place, noise, procedure, seed)
        for seed in seeds
        for procedure in procedures
        for place in places
        for noise in place.noises
        if not values["noises"] or noise in values["noises"]
    ]
    outcomes = [*(outcome for part in values["parts"] for outcome in read_record(part))]
    _gather(outcomes, run_sessions(left(cases, outcomes), values["jobs"]), json_file)
    _print(outcomes, open_console())
    said = missed(outcomes) if values["require"] else []
    if said:
        raise RingtuneError("; ".join(said))
    return 0


def _gather(outcomes: list[Outcome], coming: Iterator[Outcome], json_file: Path | None) -> None:
    """Take sessions as they end; the file has them soon after, so that hours are not lost with the process."""

    def save() -> float:
        if json_file is not None:
            runfolder.write_json(json_file, _record(outcomes))
        return time.monotonic()

    saved = time.monotonic()
    try:
        for outcome in coming:
            outcomes.append(outcome)
            if time.monotonic() - saved >= SAVE_EVERY_S:
                saved = save()
    finally:
        save()


def _measure(profiles: Path | None, json_file: Path | None, asked: Sequence[str], scale: float) -> None:
    """Record a landscape and write it.

    Raises:
        UsageError: Something that it needs is not given.
        RingtuneError: It cannot be measured here.
    """
    hosts, slots, rate, profile = asked
    if profiles is None or json_file is None or not (hosts.isdigit() and slots.isdigit() and int(hosts) * int(slots)):
        raise UsageError("--record HOSTS SLOTS RATE PROFILE needs whole numbers, --profiles FOLDER and --json FILE")
    shape, work = Shape(int(hosts), int(slots)), read_profile(profiles, profile)
    name = f"{profile} times {scale:g}, {hosts} x {slots} at {rate}"
    runfolder.write_json(json_file, record(name, shape, rate, lighter(work, scale)))


def _live(profiles: Path | None, json_file: Path | None, values: dict[str, Any]) -> None:
    """Tune real jobs and compare.

    Raises:
        UsageError: Something that it needs is not given or not here.
        RingtuneError: A job failed, or a tuned setting is slower than the default.
    """
    lacking = network.missing()
    if profiles is None or lacking is not None:
        raise UsageError(f"--live makes hosts of network namespaces and needs {lacking or '--profiles FOLDER'}")
    cases = [live.parse_case(text) for text in values["live_cases"] or live.CASES]
    folder = (values["state"] or runfolder.planned_folder("bench-tuner")).absolute()
    console, found = open_console(), []
    with Bed(max(case.shape.hosts for case in cases)) as bed:
        for number, case in enumerate(cases):
            console.print(f"{case.label}: tuning, then measuring; sessions: {folder}", soft_wrap=True)
            work = lighter(read_profile(profiles, "resnet50"), values["scale"] * share_of_bytes(case.rate))
            found.append(live.run_case(bed, case, work, folder / str(number)))
    console.print(live.table(found))
    if json_file is not None:
        runfolder.write_json(json_file, _heading("step_ns: ns") | {"cases": [live.as_json(one) for one in found]})
    worse = [one.case.label for one in found if one.worse]
    if worse:
        raise RingtuneError(f"slower than the default when measured again: {'; '.join(worse)}")


def read_record(path: Path) -> list[Outcome]:
    """Return the outcomes that an earlier run has written with `--json`.

    Raises:
        UsageError: The file holds none.
    """
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["outcomes"]
        ends = [math.inf if row["break_even"] is None else row["break_even"] for row in rows]
        return [
            Outcome(**{**row, "knobs": Knobs.from_dict(row["knobs"]), "break_even": end})
            for row, end in zip(rows, ends, strict=True)
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is no record of 'ringtune bench tuner': {error}") from None


def _procedures(text: str) -> list[str]:
    known = [RINGTUNE, COLD, *PROCEDURES]
    chosen = known if text == "all" else [word.strip() for word in text.split(",") if word.strip()]
    unknown = [word for word in chosen if word not in known]
    if unknown or not chosen:
        raise UsageError(f"no procedure {(unknown or [text])[0]!r}: expected some of {', '.join(known)}, or all")
    return [one for one in known if one in chosen]


def _record(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    rows = [
        {**asdict(one), "break_even": one.break_even if math.isfinite(one.break_even) else None} for one in outcomes
    ]
    return _heading("steps of the default") | {"outcomes": rows}


def _heading(unit: str) -> dict[str, Any]:
    return {
        "format": layout.FORMAT,
        "benchmark": "tuner",
        "command": ["ringtune", *sys.argv[1:]],
        "created_unix_ns": time.time_ns(),
        "unit": unit,
    }
