"""Jobs with a planted fault as data: what was put in, and what every command and page must say of it first.

The table in `timeline/README.md` is made of them: ``python -m tests.timeline.planted_jobs`` prints it, and
`tests/timeline/test_planted_jobs.py` holds it and every sentence.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from ringtune import layout, runfolder
from ringtune.timeline.cli import timeline
from ringtune.timeline.spans import SpanTable, concatenate
from ringtune.timeline.synthetic.generate import GeneratedJob, HostClock
from ringtune.timeline.vocabulary import Stage
from tests.timeline import nccl_profiles
from tests.timeline.helpers import write_json
from tests.timeline.planted import MS, job, late_loader, profile
from tests.timeline.scenario import Scenario, simulate

TWO_HOSTS = ("a", "a", "b", "b")
NOBODY = "no straggler: no rank's lateness costs a percent of the job"
TUNE = "search better settings with ringtune tune"
SAME = "a step of B takes as long as one of A"


@dataclass(frozen=True)
class Planted:
    """A job with a fault.

    Attributes:
        name: Of the case.
        plant: What was put in, in words.
        plan: Simulated rank by rank; None where `write` makes the job.
        says: What summary, critical-path, efficiency, doctor and the Overview say first; of lateness, if it failed.
        late: What stragglers and its page say first; "" for the same.
        diff: What diff says of it (B) and the job without the fault (A) first; "" where there is none.
        failed: What every command says first of a run that failed.
        change: Made to a simulated job before it is written.
        write: Writes the job's files into a folder and returns what the commands are given.
    """

    name: str
    plant: str
    plan: Scenario | None
    says: str
    late: str = ""
    diff: str = ""
    failed: str = ""
    change: Callable[[GeneratedJob], GeneratedJob] | None = None
    write: Callable[[Path], list[Path]] | None = None

    def sources(self, folder: Path) -> list[Path]:
        """Write the job and return what the commands are given."""
        if self.write is not None:
            return self.write(folder)
        assert self.plan is not None
        made = simulate(self.plan)[0]
        return [write_run(folder, made if self.change is None else self.change(made))]

    def healthy(self, folder: Path) -> Path:
        """Write the same job without the fault and return its run folder."""
        assert self.plan is not None
        start = {place: 600 * MS for place in self.plan.pauses if place[1] == 0}
        without: dict[str, Any] = {
            "slow_compute": {},
            "slow_control": {},
            "slow_link": {},
            "slow_arrival": {},
            "late_first": {},
        }
        return write_run(folder, simulate(replace(self.plan, pauses=start, **without))[0])


def write_run(folder: Path, made: GeneratedJob) -> Path:
    """Write the parts of a job as a finished run."""
    made.write(layout.timeline_parts(folder))
    runfolder.create(folder, runfolder.RunRecord("planted", status="finished"))
    return folder


def every(rank: int, steps: Iterable[int], ms: float) -> dict[tuple[int, int], int]:
    """The rank computes longer in each of these steps."""
    return {(rank, step): round(ms * MS) for step in steps}


def at_once(ranks: int, steps: Mapping[int, int]) -> dict[tuple[int, int], int]:
    """All ranks compute longer in these steps, by so many ms."""
    return {(rank, step): ms * MS for step, ms in steps.items() for rank in range(ranks)}


def loading(name: str, rank: int, ms: float) -> Callable[[GeneratedJob], GeneratedJob]:
    """A range at the begin of every step: 1 ms, on one rank longer."""

    def add(made: GeneratedJob) -> GeneratedJob:
        return replace(made, spans={one: _with_range(table, one) for one, table in made.spans.items()})

    def _with_range(table: SpanTable, one: int) -> SpanTable:
        steps = table.of_stage(Stage.STEP)
        length = round((1 + ms * (one == rank)) * MS)
        ranges = replace(
            steps,
            stage=(steps.stage * 0 + Stage.RANGE).astype(steps.stage.dtype),
            end_ns=steps.begin_ns + length,
            name=steps.name * 0,
            names=(name,),
        )
        return concatenate([table, ranges])

    return add


def profiles(folder: Path) -> list[Path]:
    """Profiles of torch.profiler, one a rank, whose third rank loads its data late in six steps."""
    folder.mkdir(parents=True, exist_ok=True)
    return [write_json(folder / f"rank{rank}.json", profile(rank, 4, late_loader)) for rank in range(4)]


def nccl(folder: Path) -> list[Path]:
    """Profiles of DDP on GPUs, three allreduces a step."""
    folder.mkdir(parents=True, exist_ok=True)
    return [write_json(folder / f"rank{rank}.json", one) for rank, one in enumerate(nccl_profiles.profiles())]


def as_buckets(made: GeneratedJob) -> GeneratedJob:
    """Name the tensors as buckets of DDP's are: by number of elements and a count."""
    return replace(made, spans={rank: _with_buckets(table) for rank, table in made.spans.items()})


def _with_buckets(table: SpanTable) -> SpanTable:
    names = {
        name: f"allreduce.7.1.{262_144 + place}.0" for place, name in enumerate(sorted(filter(None, table.tensors)))
    }
    return replace(table, tensors=tuple(names.get(name, name) for name in table.tensors))


def broken(steps: int, cut: int | None, gone: int | None) -> Callable[[Path], list[Path]]:
    """Rank 2 is always late; one part is torn inside its header, another one is not there."""

    def write(folder: Path) -> list[Path]:
        write_run(folder, simulate(job(4, steps, 12, every(2, range(1, steps), 4)))[0])
        if cut is not None:
            part = layout.timeline_part(folder, cut)
            part.write_bytes(part.read_bytes()[:150])
        if gone is not None:
            layout.timeline_part(folder, gone).unlink()
        return [folder]

    return write


def killed(folder: Path) -> list[Path]:
    """Rank 1 is always late, and was killed: its part ends early, and the launcher kept how it ended."""
    write_run(folder, simulate(job(2, 40, 12, every(1, range(1, 40), 4)))[0])
    part = layout.timeline_part(folder, 1)
    part.write_bytes(part.read_bytes()[: part.stat().st_size * 51 // 100])
    failed = {"rank": 1, "host": "here", "exit_code": 137, "after_s": 3.0, "last_lines": []}
    runfolder.update(folder, status="failed", failure=failed)
    return [folder]


JOBS = (
    Planted("one sleep", "rank 1 sleeps 14 s in step 40", job(2, 80, 18, {(1, 40): 14_000 * MS}),
            "was lost to rank 1 in 1 stall (step 40), by compute: look at rank 1 in step 40", "",
            "but 1 of 79 steps of B (40) took 14.0 s longer, 88"),
    Planted("two pauses", "rank 0 pauses 1 s in steps 60 and 120",
            job(2, 200, 10, {(0, 60): 1_000 * MS, (0, 120): 1_000 * MS}),
            "was lost to rank 0 in 2 stalls (steps 60, 120), by compute: look at rank 0 in step ", "",
            "but 2 of 199 steps of B (60, 120) took 2.0"),
    Planted("late in some steps", "rank 1 of 3 is 12 ms late in steps 60 to 119",
            job(3, 200, 20, every(1, range(60, 120), 12)),
            "was lost to rank 1 in steps 60-119, by compute: look at rank 1 in step ", "", "slower by"),
    Planted("uneven batches", "rank 1 computes three times as long", job(2, 100, 10, every(1, range(1, 100), 20)),
            "was lost to rank 1 always (in 99 of 99 steps), by compute", "", "compute rank 1 by 20"),
    Planted("late data loader, profiles", "rank 2 loads 20 ms longer in steps 6 to 11 (profiles, GPUs)", None,
            "was lost to rank 2 in steps 6-11, by data loading: look at rank 2 in step ", write=profiles),
    Planted("NCCL", "the same in DDP's profiles of NCCL, 3 allreduces a step", None,
            "was lost to rank 2 in steps 6-11, by data loading: look at rank 2 in step ", write=nccl),
    Planted("late first bucket", "rank 1's first DDP bucket is 6 ms late; 3 x 5 ms",
            replace(job(4, 80, 12, {}, late_first={1: 6 * MS}, tensors_per_batch=1), transfer_ns=5 * MS),
            "was lost to rank 1 always (in 79 of 79 steps), by compute", "", "slower by", change=as_buckets),
    Planted("hidden first bucket", "the same, hidden by computing, 3 x 1 ms sent",
            job(4, 80, 12, {}, late_first={1: 6 * MS}, tensors_per_batch=1), "ranks waited 1", NOBODY, SAME,
            change=as_buckets),
    Planted("mostly late", "rank 1 of 2 is 12 ms late in steps 60 to 119, else 0.8 ms",
            job(2, 200, 10, every(1, range(1, 200), 0.8) | every(1, range(60, 120), 12)),
            "was lost to rank 1 in steps 60-119, by compute: look at rank 1 in step ", "", "compute rank 1 by 4"),
    Planted("nothing", "no fault; 4 ranks", job(4, 80, 12, {}), "ranks waited 11", NOBODY, SAME),
    Planted("always late", "rank 2 is 4 ms late in every step", job(4, 80, 12, every(2, range(1, 80), 4)),
            "was lost to rank 2 always (in 79 of 79 steps), by compute", "", "compute rank 2 by 4"),
    Planted("late in a phase", "the same, in its `load batch`", job(4, 80, 12, every(2, range(1, 80), 4)),
            "was lost to rank 2 always (in 79 of 79 steps), by compute in `load batch`", "", "compute rank 2 by 4",
            change=loading("load batch", 2, 4)),
    Planted("late data loader", "the same, in data loading",
            job(4, 80, 12, every(2, range(1, 80), 4)),
            "was lost to rank 2 always (in 79 of 79 steps), by data loading", "", "compute rank 2 by 4",
            change=loading("data loading", 2, 4)),
    Planted("step schedule", "rank 2 is 4 ms late; batches by a step schedule",
            job(4, 80, 12, every(2, range(1, 80), 4), scheduled=True),
            "was lost to rank 2 always (in 79 of 79 steps), by compute", "", "compute rank 2 by 4"),
    Planted("slow link", "rank 2 receives 3 ms late; 4 hosts",
            job(4, 80, 12, {}, slow_link={2: 3 * MS}, hosts=("a", "b", "c", "d")),
            "was lost to rank 2 always (in 79 of 79 steps), by network: look at rank 2's link", "", "slower by"),
    Planted("slow copies", "rank 2 receives 3 ms late; one host",
            job(4, 80, 12, {}, slow_link={2: 3 * MS}),
            "was lost to rank 2 always (in 79 of 79 steps), by network: look whether the cores of rank 2's host", "",
            "slower by"),
    Planted("slow negotiation", "rank 2 learns 3 ms late what is agreed", job(4, 80, 12, {}, slow_control={2: 3 * MS}),
            "was lost to rank 2 always (in 79 of 79 steps), by negotiation: look whether the cores of rank 2's host",
            "", "slower by"),
    Planted("late to batches", "rank 2 comes 3 ms late to each batch of a schedule",
            job(4, 80, 12, {}, scheduled=True, slow_arrival={2: 3 * MS}), "was lost to rank 2 in 6", "", "slower by"),
    Planted("two in turn", "rank 1 is 8 ms late in steps 20 to 49, rank 2 in steps 60 to 89",
            job(4, 120, 12, every(1, range(20, 50), 8) | every(2, range(60, 90), 8)),
            "was lost to rank 1 in steps 20-49, by compute", "", "slower by"),
    Planted("two stalls of two", "rank 0 pauses 0.5 s in step 30, rank 3 0.3 s in step 70",
            job(4, 120, 12, {(0, 30): 500 * MS, (3, 70): 300 * MS}),
            "was lost to rank 0 in 1 stall (step 30), by compute: look at rank 0 in step 30", "",
            "but 2 of 119 steps of B (30, 70) took 79"),
    Planted("ever later", "rank 1 takes 0.15 ms longer from step to step",
            job(4, 120, 12, {(1, step): step * MS * 15 // 100 for step in range(1, 120)}),
            "was lost to rank 1 always (in 11", "", "compute rank 1 by "),
    Planted("every tenth step", "rank 1 takes 25 ms longer in steps 5, 15, 25 ...",
            job(4, 120, 12, every(1, range(5, 120, 10), 25)),
            "was lost to rank 1 in 12 of 119 steps, by compute: look at rank 1 in step ", "",
            "but 12 of 119 steps of B (5, 15, 25, 35, ...) took 2"),
    Planted("by turns", "each rank's computing varies by 9 of 12 ms", replace(job(4, 80, 12, {}), jitter_ns=9 * MS),
            "was lost by turns, by compute: no rank and no step stands out", "", SAME),
    Planted("below a percent", "rank 2 is 50 µs late", job(4, 80, 12, every(2, range(1, 80), 0.05)),
            "ranks waited 11", NOBODY, SAME),
    Planted("skewed clocks", "rank 3 is 4 ms late; its clock is off and drifts",
            job(4, 80, 12, every(3, range(1, 80), 4), hosts=TWO_HOSTS,
                clocks={"b": HostClock(offset_ns=-777_000_123_456, drift_ppm=40.0, error_ns=1_500)}),
            "was lost to rank 3 always (in 79 of 79 steps), by compute", "", "compute rank 3 by 4"),
    Planted("slow warm-up", "steps 0 to 4 take 600 to 60 ms on all ranks",
            job(4, 80, 12, at_once(4, {step: 300 - 60 * step for step in range(1, 5)})),
            "ranks waited 11", NOBODY, SAME),
    Planted("start of one", "rank 1 alone needs 5 s to start", job(4, 80, 12, {(1, 0): 5_000 * MS}),
            "ranks waited 11", NOBODY, SAME),
    Planted("checkpoints", "all ranks pause for 0.4 s in steps 40 and 80",
            job(4, 120, 12, at_once(4, {40: 400, 80: 400})),
            "went by 2 pauses of all ranks at once (steps 40, 80): look at what they do in step ", "",
            "but 2 of 119 steps of B (40, 80) took 799 ms longer"),
    Planted("late host", "both ranks of host b are 5 ms late",
            job(4, 80, 12, every(2, range(1, 80), 5) | every(3, range(1, 80), 5), hosts=TWO_HOSTS),
            "was lost to host b (ranks 2, 3) always (in 79 of 79 steps), by compute: look at host b (ranks 2, 3)", "",
            "by 5"),
    Planted("half of the ranks", "ranks 1 and 3 are 5 ms late in steps 20 to 59",
            job(4, 80, 12, every(1, range(20, 60), 5) | every(3, range(20, 60), 5)),
            "was lost to ranks 1, 3 together in steps 20-59, by compute: look at ranks 1, 3 together", "", "slower by"),
    Planted("one rank pauses", "a rank alone pauses for 0.3 s in step 20", job(1, 40, 12, {(0, 20): 300 * MS}),
            "went by 1 pause of rank 0 (step 20)", "the job has one rank"),
    Planted("transfer", "3 x 8 ms of transfer, 5 ms of computing",
            replace(job(2, 80, 5, {}), transfer_ns=8 * MS),
            "ranks waited 76.3 % of the time (75.1 % exposed communication, 0.5 % for late ranks)", NOBODY, SAME),
    Planted("128 ranks", "rank 77 of 128 is 6 ms late", job(128, 14, 12, every(77, range(1, 14), 6)),
            "was lost to rank 77 always (in 13 of 13 steps), by compute"),
    Planted("one rank", "a rank alone", job(1, 40, 12, {}), "ranks waited 7.5 %", "the job has one rank"),
    Planted("torn part", "rank 2 is 4 ms late; rank 1's part is torn", None,
            "was lost to rank 2 always (in 39 of 39 steps), by compute", write=broken(40, 1, None)),
    Planted("missing part", "rank 2 is 4 ms late; rank 3 left no part", None,
            "was lost to rank 2 always (in 39 of 39 steps), by compute", write=broken(40, None, 3)),
    Planted("killed", "rank 1 is 4 ms late, and was killed", None, "was lost to rank 1 always",
            failed="rank 1 on here ended with code 137 (SIGKILL) after 3.0 s", write=killed),
)  # fmt: skip


def opening(command: str, *sources: Path) -> str:
    """Return the sentence that a command opens with, on one line; an error's words where it refuses."""
    done = CliRunner().invoke(timeline, [command, *map(str, sources)])
    if done.exit_code:
        return str(done.exception)
    lines = done.stdout.split("\n\n")[0].splitlines() if command == "doctor" else done.stdout.splitlines()[:1]
    return " ".join(" ".join(lines).split())


def brief(sentence: str) -> str:
    """Return what a sentence says of cost, rank, time and cause, without what to do about it."""
    lost = re.match(r"([\d.]+ %) of the job \((.+?)\) (?:was lost to|was lost|went) (.+?)(?:: |$)", sentence)
    if lost is not None:
        return f"{lost[1]} ({lost[2]}): {lost[3]}"
    waited = re.match(r"ranks waited ([\d.]+ %) of the time \((.+?) communication, (.+?)\)", sentence)
    if waited is not None:
        return f"nobody is late; waited {waited[1]} ({waited[2]}, {waited[3]})"
    return sentence.split(". ")[0]


def markdown() -> str:
    """Return the table of the README: what was planted, and what is said first."""
    rows = ["| planted | said first |", "|---|---|"]
    with tempfile.TemporaryDirectory() as folder:
        for number, one in enumerate(JOBS):
            rows.append(f"| {one.plant} | {brief(opening('doctor', *one.sources(Path(folder) / str(number))))} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    print(markdown(), end="")
