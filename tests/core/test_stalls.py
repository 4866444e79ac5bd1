"""What a rank leaves in the run folder of a stall that it reported, while that is not over."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ringtune import layout
from ringtune.errors import RingtuneError
from ringtune.meters.stalls import Stall, StallLog, Waiting
from tests.core.test_alerts import NOW


def test_a_report_is_there_until_the_rank_gets_on(tmp_path: Path) -> None:
    reports, moved, path = [Stall()], [0], layout.stall_file(tmp_path, 3)
    path.parent.mkdir()
    path.write_text("of the rank that this one replaces")
    log = StallLog(tmp_path, 3, lambda: reports[-1], lambda: moved[-1], [3, 7])

    def left() -> list[dict[str, object]]:
        log.append(NOW)
        found: list[dict[str, object]] = json.loads(path.read_text())["waiting"] if path.exists() else []
        return found

    assert left() == []
    reports.append(Stall(5, [Waiting("'a' (allreduce)", "a", 17, [1])]))
    first = [{"operation": "'a' (allreduce)", "tensor": "a", "since_unix_ns": 17, "missing": [7]}]
    assert left() == first  # ranks by their numbers in the run folder
    path.write_text(json.dumps({"waiting": "written once"}))
    assert left() == "written once"
    reports.append(Stall(6, [Waiting("'b' (allreduce)", "b", 18, [0, 1])]))
    assert [one["missing"] for one in left()] == [[3, 7]]
    moved.append(1)
    assert left() == left() == []
    reports.append(Stall(7, []))
    moved.append(2)
    log.append(NOW)
    assert path.exists()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / layout.STACKS_FOLDER).write_text("")
    log = StallLog(tmp_path, 0, lambda: Stall(5), int, [0])
    with pytest.raises(RingtuneError, match=r"rank-00000\.json: cannot be written"):
        log.append(NOW)
