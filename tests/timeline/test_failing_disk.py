"""Recording onto a disk that fails the job: training goes on, what is lost is counted and said."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

from ringtune import layout
from ringtune.timeline.cli import timeline
from ringtune.timeline.reading.reader import read
from ringtune.timeline.vocabulary import Stage
from tests.conftest import missing
from tests.timeline import recorded_job
from tests.timeline.test_recorded_job import run_job

STEPS = 2000
HANGS_S = 120


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 512 KiB."""
    if os.geteuid() != 0:
        missing("mounting a file system needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k", "ringtune-test", str(disk)],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        missing(f"a tmpfs cannot be mounted: {made.stderr.strip()}")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_a_full_disk_loses_spans_and_never_the_training(small_disk: Path, tmp_path: Path, packed: bool) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / layout.TIMELINE_FOLDER).symlink_to(small_disk)
    (small_disk / "ballast").write_bytes(bytes((300 if packed else 0) << 10))
    results = run_job(tmp_path, ("a", "a"), f"--steps={STEPS}", changes={"RINGTUNE_TIMELINE_GZIP": str(int(packed))})
    assert [code for code, _ in results] == [0, 0], results
    trace = read(tmp_path / "trace.json")
    assert len(trace.spans) > 0
    # The ranks share the disk: one of them may have been quick enough to get all the room that it needs.
    assert any(part.dropped for part in trace.parts)
    for part, (_, error) in zip(trace.parts, results, strict=True):
        assert ("No space left on device" in error) == (part.dropped > 0)
        assert ("the timeline has gaps" in error) == (part.dropped > 0)
        # Each tensor is negotiated and queued, each step a span: whatever is not there was counted.
        spans = trace.spans.of_rank(part.rank)
        assert len(spans) + part.dropped >= STEPS * (2 * len(recorded_job.NAMES) + 1)
    said = CliRunner().invoke(timeline, ["summary", str(tmp_path / "trace.json")], catch_exceptions=False)
    assert said.exit_code == 0
    assert "were dropped while recording: sums are too small" in " ".join(said.output.split())


@pytest.fixture
def freezing_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system that can be frozen: who writes is blocked within the write until it is let go."""
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
        missing("making and mounting a file system needs root and mkfs.ext4")
    disk, image = tmp_path / "disk", tmp_path / "image"
    disk.mkdir()
    with image.open("wb") as file:
        file.truncate(64 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-O", "^has_journal", str(image)], check=True)
    made = subprocess.run(["mount", "-o", "loop", image, disk], capture_output=True, text=True, check=False)
    if made.returncode:
        missing(f"a loop device cannot be mounted: {made.stderr.strip()}")
    # A rank whose writer is blocked cannot even be killed: if the job does not let go, this does.
    rescue = threading.Timer(HANGS_S, _thaw, [disk])
    rescue.start()
    yield disk
    rescue.cancel()
    _thaw(disk)
    subprocess.run(["umount", str(disk)], check=True)


def _thaw(disk: Path) -> None:
    folder = os.open(disk, os.O_RDONLY)
    with suppress(OSError):  # it is not frozen
        fcntl.ioctl(folder, recorded_job.FITHAW, 0)
    os.close(folder)


def test_a_slow_disk_loses_spans_and_never_the_training(freezing_disk: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / layout.TIMELINE_FOLDER).symlink_to(freezing_disk)
    # The job freezes the disk, trains on while rank 0's writer is blocked, and only then lets it go.
    results = run_job(
        tmp_path, ("a", "a"), f"--freezes={freezing_disk}", changes={"RINGTUNE_TIMELINE_MARK_CYCLES": "0"}
    )
    assert [code for code, _ in results] == [0, 0], results
    trace = read(tmp_path / "trace.json")
    slow, other = (trace.spans.of_rank(rank) for rank in (0, 1))
    bursts = recorded_job.BURST - int(slow.name_mask("burst").sum())
    lost = {stage: len(other.of_stage(stage)) - len(slow.of_stage(stage)) for stage in Stage}
    lost[Stage.RANGE] += recorded_job.BURST  # only that rank had them
    # The ring was full from the burst on: nothing of a step on the frozen disk was kept.
    assert lost[Stage.RANGE] >= bursts >= recorded_job.BURST - recorded_job.RING
    assert lost[Stage.STEP] >= recorded_job.STEPS_FROZEN
    assert slow.step.max() == other.step.max()  # later spans are written again
    assert [part.recorded for part in trace.parts] == [len(slow), len(other)]
    assert trace.parts[1].dropped == 0
    # What is not there was counted. Whether there is a wait depends on who comes first: both ranks record all else.
    sure = sum(count for stage, count in lost.items() if stage not in (Stage.WAIT, Stage.AWAIT))
    waits = 4 * (len(recorded_job.NAMES) + 1)  # of a step at most
    assert sure <= trace.parts[0].dropped <= sure + waits * lost[Stage.STEP]
    said = CliRunner().invoke(timeline, ["summary", str(tmp_path / "trace.json")], catch_exceptions=False)
    assert f"{trace.parts[0].dropped} spans" in (words := " ".join(said.output.split()))
    assert "were dropped while recording: sums are too small" in words


def test_a_run_folder_on_a_full_disk_ends_no_job(small_disk: Path, tmp_path: Path) -> None:
    results = run_job(tmp_path, ("a", "a"), f"--steps={STEPS}", changes={"RINGTUNE_RUN_DIR": str(small_disk / "run")})
    assert [code for code, _ in results] == [0, 0], results
    # As above: one of them may have got all the room that it needs.
    assert any("No space left on device" in error for _, error in results), results
    assert not any("Traceback" in error for _, error in results), results


@pytest.mark.slow
def test_a_packed_part_of_a_killed_rank_is_read_up_to_its_last_block(tmp_path: Path) -> None:
    results = run_job(tmp_path, ("a", "a"), "--dies", changes={"RINGTUNE_TIMELINE_GZIP": "1"})
    assert results[1][0] == -signal.SIGKILL
    assert results[0][0] != 0
    part = layout.timeline_part(tmp_path / "run", 1)
    assert not part.exists()
    torn = read(part.with_name(part.name + ".gz"))
    assert torn.parts[0].truncated
    # It died when it had seen its first step on the disk.
    assert 0 in torn.spans.of_stage(Stage.STEP).step.tolist()
    trace = read(tmp_path / "trace.json")
    assert [part.truncated for part in trace.parts] == [False, True]
    assert len(trace.spans.of_rank(1)) == len(torn.spans)
    assert "the part of rank 1 ends early" in results[0][1]
    said = CliRunner().invoke(timeline, ["summary", str(tmp_path / "run")], catch_exceptions=False)
    assert "ends early" in said.output
