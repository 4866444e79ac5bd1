"""``ringtune bench merge``: merging and every analysis on a large trace, each in a process of its own.

The trace is synthetic (`ringtune.timeline.synthetic.generate_long`): one rank is late in every step, by a known time.
Every command is run as a user would, its wall time and the most memory it held are taken from the system, and what it
prints is compared with what was put in: a quick wrong answer ends the benchmark.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import orjson
from rich.console import Console
from rich.table import Table

from ringtune import runfolder
from ringtune.benchmarks.harness.progress import open_console
from ringtune.benchmarks.harness.scratch import kept_or_scratch
from ringtune.errors import RingtuneError, UsageError
from ringtune.timeline.merging.parts import part_files
from ringtune.timeline.synthetic.generate import GeneratedJob
from ringtune.timeline.synthetic.generate_long import generate_long, schedule_of
from ringtune.timeline.units import bytes_text

_COUNT = re.compile(r"(\d+(?:\.\d+)?)([kKM]?)")
_FACTORS = {"": 1, "k": 1000, "K": 1000, "M": 1_000_000}


@dataclass(frozen=True)
class Case:
    """A command to measure: its arguments (words such as ``{run}`` stand for files), and the check."""

    name: str
    arguments: tuple[str, ...]
    right: Callable[[Any, GeneratedJob], bool]
    traces: int = 1


@dataclass(frozen=True)
class Measured:
    """What a command cost. ``events`` it went through, all its inputs together."""

    name: str
    events: int
    seconds: float
    peak_bytes: int
    command: str

    @property
    def rate(self) -> float:
        """Events per second."""
        return self.events / self.seconds


def _summed_up(found: Any, job: GeneratedJob) -> bool:
    assert job.truth is not None
    return bool(
        found["span_count"] == sum(map(len, job.spans.values()))
        and found["ranks"][0]["stages"]["communicate"]["total_ns"] == job.truth.communicate_ns
    )


def _late_one_found(found: Any, job: GeneratedJob) -> bool:
    called = {rank["rank"]: rank["verdict"] for rank in found["ranks"] if rank["verdict"]}
    return called == {job.schedule.late_rank: ["compute"]}


def _tiles_the_job(found: Any, job: GeneratedJob) -> bool:
    assert job.truth is not None
    return bool(found["length_ns"] == sum(found["causes"].values()) == sum(job.truth.step_ns))


def _runs_as_long(found: Any, job: GeneratedJob) -> bool:
    assert job.truth is not None
    return bool(found["runtime_ns"] == sum(job.truth.step_ns))


def _finds_no_change(found: Any, _: GeneratedJob) -> bool:
    return bool(found["changes"]) and all(change["verdict"] == "same" for change in found["changes"])


def _counts_all(found: Any, job: GeneratedJob) -> bool:
    return bool(sum(row["spans"] for row in found) == sum(map(len, job.spans.values())))


def _said_so(found: Any, job: GeneratedJob) -> bool:
    return f"{sum(map(len, job.spans.values()))} spans" in str(found)


_QUERY = "select rank, stage, count(*)::bigint as spans, sum(duration_ns)::bigint as ns from spans group by all"
CASES = (
    Case("merge", ("merge", "{parts}", "-o", "{trace}"), _said_so),
    Case("summary", ("summary", "{run}", "--json"), _summed_up),
    Case("critical-path", ("critical-path", "{run}", "--json"), _tiles_the_job),
    Case("stragglers", ("stragglers", "{run}", "--json"), _late_one_found),
    Case("efficiency", ("efficiency", "{run}", "--json"), _runs_as_long),
    Case("diff", ("diff", "{run}", "{run}", "--json"), _finds_no_change, traces=2),
    Case("query", ("query", _QUERY, "{run}", "--json"), _counts_all),
    Case("export", ("export", "{run}", "--parquet", "{out}"), _said_so),
)


def parse_count(text: str) -> int:
    """Return the number that a text such as ``10M``, ``500k`` or ``2000`` names.

    Raises:
        UsageError: It names none.
    """
    match = _COUNT.fullmatch(text.strip())
    number = float(match[1]) * _FACTORS[match[2]] if match else 0.0
    if number < 1:
        raise UsageError(f"--events {text!r}: expected a number of events such as 10M, 500k or 2000")
    return int(number)


def chosen_cases(text: str) -> tuple[Case, ...]:
    """Return the cases of a comma-separated list; merging comes first where the list is empty.

    Raises:
        UsageError: A name is not known.
    """
    known = {case.name: case for case in CASES}
    names = [word.strip() for word in text.split(",") if word.strip()] or list(known)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError(f"--only {unknown[0]!r}: known are {', '.join(known)}")
    return tuple(known[name] for name in names)


@click.command("merge")
@click.option("--events", default="1M", show_default=True, help="Spans of all ranks together: 10M, 500k, 2000.")
@click.option("--ranks", type=click.IntRange(min=2), default=4, show_default=True)
@click.option("--only", default="", help="Comma-separated: " + ", ".join(case.name for case in CASES) + ".")
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep the files here and find them again, instead of making them anew.",
)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the record to this file.")
def merge_command(events: str, ranks: int, only: str, folder: Path | None, json_file: Path | None) -> None:
    """Speed and memory of merging and analysing a large trace, and whether the answers are right."""
    cases, count = chosen_cases(only), parse_count(events)
    console = open_console()
    with ExitStack() as stack:
        place = stack.enter_context(kept_or_scratch(folder))
        job = generate_long(*schedule_of(count, ranks))
        parts = _parts(job, place / "parts", console)
        measured = [_run(case, job, (parts, place)) for case in cases]
    console.print(_table(measured))
    if json_file is not None:
        rows = [{**asdict(one), "events_per_s": one.rate} for one in measured]
        runfolder.write_json(json_file, {"benchmark": "merge", "ranks": ranks, "cases": rows})
        console.print(f"record: {json_file}", soft_wrap=True)


def _parts(job: GeneratedJob, folder: Path, console: Console) -> list[Path]:
    """Write the parts, or find those that an earlier call left."""
    count, stamp = sum(map(len, job.spans.values())), folder / "events"
    if not stamp.is_file() or stamp.read_text() != str(count):
        console.print(f"making {count:,} events", highlight=False)
        job.write(folder)
        stamp.write_text(str(count))
    return part_files(folder)


def _run(case: Case, job: GeneratedJob, places: tuple[list[Path], Path]) -> Measured:
    """Run one command to its end.

    Raises:
        RingtuneError: It failed, or its answer is not what was put in.
    """
    parts, folder = places
    trace, out = folder / "trace.json", folder / "spans.parquet"
    named = {"{run}": [str(parts[0].parent)], "{trace}": [str(trace)], "{out}": [str(out)]}
    named["{parts}"] = [str(part) for part in parts]
    words = [word for argument in case.arguments for word in named.get(argument, [argument])]
    shown = " ".join(("ringtune timeline", *(word if " " not in word else f'"{word}"' for word in case.arguments)))
    if case.name == "merge":
        trace.unlink(missing_ok=True)
    os.sync()  # writes of earlier commands must not count for this one
    seconds, peak, printed = _measured(words, folder / f"{case.name}.out")
    answer = orjson.loads(printed) if "--json" in case.arguments else printed.decode()
    if not case.right(answer, job):
        raise RingtuneError(f"ringtune timeline {case.name}: its answer is wrong; see {folder}")
    return Measured(case.name, case.traces * sum(map(len, job.spans.values())), seconds, peak, shown)


_MEASURED = """
import sys
from pathlib import Path
from ringtune.cli import main
from ringtune.meters.memory import peak_bytes
code = main(sys.argv[2:])
Path(sys.argv[1]).write_text(str(peak_bytes()))
sys.exit(code)
"""


def _measured(words: Sequence[str], output: Path) -> tuple[float, int, bytes]:
    """Seconds, most memory held, and what was printed."""
    peak = output.with_suffix(".peak")
    command = [sys.executable, "-c", _MEASURED, str(peak), "timeline", *words]
    begun = time.perf_counter()
    with open(output, "wb") as printed:
        done = subprocess.run(command, stdout=printed, check=False)
    seconds = time.perf_counter() - begun
    if done.returncode != 0:
        raise RingtuneError(f"ringtune timeline {words[0]} failed with exit code {done.returncode}")
    return seconds, int(peak.read_text()), output.read_bytes()


def _table(measured: Sequence[Measured]) -> Table:
    table = Table(title="ringtune timeline on a generated trace", title_justify="left")
    for word in ("command", "events", "seconds", "events/s", "most memory"):
        table.add_column(word, justify="left" if word == "command" else "right")
    for one in measured:
        row = (
            one.name,
            f"{one.events:,}",
            f"{one.seconds:.1f}",
            f"{one.rate / 1e6:.2f} M",
            bytes_text(one.peak_bytes),
        )
        table.add_row(*row)
    return table
