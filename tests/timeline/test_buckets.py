"""Unnamed allreduces of DDP are shown as the buckets that they are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from click.testing import CliRunner

from ringtune.timeline.analysis.buckets import bucket_names
from ringtune.timeline.analysis.comparison import compare
from ringtune.timeline.analysis.critical_path import critical_path
from ringtune.timeline.analysis.steps import select_steps
from ringtune.timeline.analysis.stragglers import stragglers
from ringtune.timeline.cli import timeline
from ringtune.timeline.inputs import load
from ringtune.timeline.spans import SpanTable, concatenate
from ringtune.timeline.units import tensor_text
from ringtune.timeline.vocabulary import Stage
from tests.timeline.planted import job
from tests.timeline.planted_jobs import as_buckets, write_run
from tests.timeline.scenario import simulate

MARKS = (
    "DDP bucket 0 of 3: 262144 elements (6.bias to 4.weight)",
    "DDP bucket 1 of 3: 262145 elements (2.weight)",
    "DDP bucket 2 of 3: 262146 elements (0.bias to 0.weight)",
)
NAMES = {
    262144: "bucket 0 of 3 (6.bias to 4.weight)",
    262145: "bucket 1 of 3 (2.weight)",
    262146: "bucket 2 of 3 (0.bias to 0.weight)",
}


def marked(table: SpanTable, marks: tuple[str, ...]) -> SpanTable:
    """The table with the recorder's marks at the begin of the first step."""
    first = table.of_stage(Stage.STEP).take(slice(0, 1))
    stage = (first.stage * 0 + Stage.RANGE).astype(first.stage.dtype)
    rows = [replace(first, stage=stage, end_ns=first.begin_ns, name=first.name * 0, names=(mark,)) for mark in marks]
    return concatenate([table, *rows])


def recorded(folder: Path, marks: tuple[str, ...] = MARKS) -> Path:
    """The run folder of a job of DDP's."""
    made = as_buckets(simulate(job(2, 20, 12, {}, tensors_per_batch=1))[0])
    return write_run(folder, replace(made, spans={rank: marked(table, marks) for rank, table in made.spans.items()}))


def test_the_marks_name_what_moves_in_later_steps(tmp_path: Path) -> None:
    trace = load(recorded(tmp_path))
    later = select_steps(trace, 5, 15)
    assert bucket_names(trace) == NAMES == bucket_names(later)
    assert {one.tensor for one in stragglers(later).tensors} == set(NAMES.values())
    assert {label for label, _ in critical_path(later).batches} <= set(NAMES.values())
    changes = compare(later, later).changes
    assert {one.what for one in changes if one.kind == "tensor"} >= {f"negotiate {name}" for name in NAMES.values()}
    assert not [one for one in changes if one.kind == "range"]  # a mark is no range of the program's
    printed = CliRunner().invoke(timeline, ["stragglers", str(tmp_path)]).stdout
    assert "bucket 2 of 3 (0.bias to 0.weight)" in printed


def test_buckets_of_one_size_are_named_together(tmp_path: Path) -> None:
    marks = tuple(mark.replace("262146", "262145") for mark in MARKS)
    assert bucket_names(load(recorded(tmp_path, marks)))[262145] == "buckets 1, 2 of 3, of one size"


def test_without_a_mark_the_size_is_what_is_known(tmp_path: Path) -> None:
    names = bucket_names(load(recorded(tmp_path, ())))
    assert names == {}
    assert tensor_text("allreduce.7.1.262656.2 +1", names) == "allreduce of 262,656 float32 (1.00 MiB) +1"
    assert tensor_text("dp.allreduce.7.1.262144.2 +1", NAMES) == f"dp.{NAMES[262144]} +1"
    assert tensor_text("broadcast.7.1.262144.0", NAMES) == "broadcast of 262,144 float32 (1 MiB)"
