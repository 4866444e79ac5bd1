"""`stragglers` on Horovod's own timeline: its coordinator's ticks say who was ready last, and how often."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ringtune.errors import RingtuneError
from ringtune.timeline.analysis.stragglers import stragglers
from ringtune.timeline.cli import timeline
from ringtune.timeline.merging.merge import merge
from ringtune.timeline.reading.reader import read
from tests.timeline.helpers import write_json

RANKS = 3
TENSORS = ("grad.a", "grad.b")
CYCLE_US = 1_000
STEP_US = 20 * CYCLE_US


def hvd_timeline(
    folder: Path, late: dict[int, tuple[int, float]], steps: int = 12, marks: tuple[int, ...] = ()
) -> Path:
    """Horovod's file of a job: in step s rank ``late[s][0]`` is ready ``late[s][1]`` cycles after all others.

    One look of the coordinator reads rank after rank, tensor after tensor, 3 us a message.
    """
    start = {"start_time_since_epoch_in_micros": 1_700_000_000_000_000}
    events: list[dict[str, Any]] = [{"name": "process_name", "ph": "M", "pid": 0, "args": start}]
    for pid, tensor in enumerate(TENSORS, 1):
        events.append({"name": "process_name", "ph": "M", "pid": pid, "args": {"name": tensor}})
    events += [{"name": "CYCLE_START", "ph": "i", "s": "g", "ts": ts} for ts in marks]
    for step in range(steps):
        who, cycles = late.get(step, (-1, 0))
        looks = [[rank for rank in range(RANKS) if rank != who], [who] if who >= 0 else []]
        for look, ranks in enumerate(looks):
            at = step * STEP_US + round(look * cycles * CYCLE_US)
            for rank in ranks:
                for pid in range(1, len(TENSORS) + 1):
                    if look == 0 and rank == ranks[0]:
                        events.append({"name": "NEGOTIATE_ALLREDUCE", "ph": "B", "pid": pid, "ts": at})
                    events.append({"name": str(rank), "ph": "X", "pid": pid, "ts": at, "dur": 0})
                    at += 3
        events += [{"ph": "E", "pid": pid, "ts": at} for pid in range(1, len(TENSORS) + 1)]
    return write_json(folder / "hvd.json", events)


def test_the_late_rank_is_found_with_its_cycles(tmp_path: Path) -> None:
    late = {step: (2, 3) for step in range(9)} | {9: (0, 2)}
    found = stragglers(read(hvd_timeline(tmp_path, late)))
    assert (found.steps, found.batches, found.incomplete) == (12, 12 * len(TENSORS), 0)
    compute = [rank.causes["compute"] for rank in found.ranks]
    assert [(cause.steps_last, cause.total_ns, cause.largest_ns) for cause in compute] == [
        (1, 2 * CYCLE_US * 1000, 2 * CYCLE_US * 1000),
        (0, 0, 0),
        (9, 27 * CYCLE_US * 1000, 3 * CYCLE_US * 1000),
    ]
    # Nine of the ten steps in which somebody was last; the smallest of three p is multiplied by three.
    assert compute[2].p_value == pytest.approx(3 * (10 * 2 + 1) / 3**10)
    assert [rank.verdict for rank in found.ranks] == [(), (), ("compute",)]
    assert found.significance["compute"] < 0.01
    for cause in ("negotiation", "network"):  # nothing is known of them
        assert found.significance[cause] == 1.0
        assert {(rank.causes[cause].steps_last, rank.causes[cause].p_value) for rank in found.ranks} == {(0, 1.0)}
    assert [
        (row.tensor, row.times, row.undecided, row.rank, row.rank_times, row.total_ns) for row in found.tensors
    ] == [(tensor, 12, 2, 2, 9, 29 * CYCLE_US * 1000) for tensor in TENSORS]
    assert [(row.step, row.rank, row.lateness_ns) for row in found.worst_steps[:9]] == [
        (step, 2, 3 * CYCLE_US * 1000) for step in range(9)
    ]


def test_the_order_within_one_look_blames_nobody(tmp_path: Path) -> None:
    found = stragglers(read(hvd_timeline(tmp_path, {})))
    assert [rank.causes["compute"].steps_last for rank in found.ranks] == [0, 0, 0]
    assert [row.undecided for row in found.tensors] == [12, 12]
    assert found.worst_steps == ()


@pytest.mark.parametrize(("marks", "late_us"), [((), 0), ((0, 400), 500)], ids=["unmarked", "marked"])
def test_marked_cycles_tell_looks_apart_that_are_close(tmp_path: Path, marks: tuple[int, ...], late_us: int) -> None:
    # The last rank's look begins half a cycle after the one before: too near to tell, but for the mark between them.
    path = hvd_timeline(tmp_path, {0: (2, 0.5)}, steps=1, marks=marks)
    found = stragglers(read(path))
    assert [rank.causes["compute"].total_ns for rank in found.ranks] == [0, 0, late_us * 1000]


def test_a_rank_that_never_came_leaves_its_tensor_out(tmp_path: Path) -> None:
    path = hvd_timeline(tmp_path, {11: (2, 3)})
    text = path.read_bytes()
    late = b'{"name":"2","ph":"X","pid":2,"ts":%d,"dur":0},' % (11 * STEP_US + 3 * CYCLE_US + 3)
    assert text.count(late) == 1
    path.write_bytes(text.replace(late, b""))
    found = stragglers(read(path))
    assert (found.batches, found.incomplete) == (23, 1)


def test_the_merged_file_tells_the_same(tmp_path: Path) -> None:
    path = hvd_timeline(tmp_path, {step: (1, 4) for step in range(12)})
    merge([path], tmp_path / "merged.json")
    assert stragglers(read(tmp_path / "merged.json")) == stragglers(read(path))


def test_the_command_names_the_rank(tmp_path: Path) -> None:
    path = hvd_timeline(tmp_path, {step: (1, 4) for step in range(12)})
    said = CliRunner().invoke(timeline, ["stragglers", str(path)], catch_exceptions=False)
    assert said.output.startswith(
        "21.4 % of the job (48.0 ms) was lost to rank 1 always (in 12 of 12 steps), by compute"
    )
    assert "<0.0001" in said.output


def test_a_timeline_without_ticks_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = hvd_timeline(tmp_path, {}, steps=0)
    with pytest.raises(RingtuneError, match="HOROVOD_CACHE_CAPACITY=0"):
        stragglers(read(path))
