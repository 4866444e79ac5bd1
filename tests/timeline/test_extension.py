"""The merge at the end of a job, with sessions and stores made of Python; real jobs run in tests/jobs."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ringtune import layout
from ringtune.bootstrap.placement import Placement
from ringtune.elastic import membership
from ringtune.elastic.job_timeline import JobTimeline
from ringtune.elastic.tracks import Tracks
from ringtune.timeline.extension import TimelineExtension, merge_after_run, open_timeline
from ringtune.timeline.reading.reader import read
from ringtune.timeline.runs import upload
from ringtune.timeline.runs.upload import Limits
from ringtune.timeline.synthetic.generate import GeneratedJob, Schedule, generate
from tests.timeline.generated_run import generate_run
from tests.timeline.helpers import four_ranks, rows, truth_table

QUICK = Limits(report_ns=50_000_000, upload_ns=50_000_000)


class MemoryStore:
    """A store in memory; waits like the real one, and fails when told to."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.broken = False
        self.patience_ns: list[int] = []
        self.most_bytes = 0
        self._changed = threading.Condition()

    def set(self, key: str, value: bytes) -> None:
        if self.broken:
            raise ConnectionError("store is gone")
        with self._changed:
            self.values[key] = value
            self.most_bytes = max(self.most_bytes, sum(map(len, self.values.values())))
            self._changed.notify_all()

    def get(self, key: str, timeout_ns: int) -> bytes:
        self.patience_ns.append(timeout_ns)
        if self.broken:
            raise ConnectionError("store is gone")
        with self._changed:
            if not self._changed.wait_for(lambda: key in self.values, timeout_ns / 1e9):
                raise TimeoutError(f"no key {key}")
            return self.values[key]


def fixed(rank: int, hosts: list[str]) -> Tracks:
    """The tracks of a job with fixed ranks."""
    return Tracks(Placement(rank=rank, size=len(hosts)), hosts)


@dataclass
class FakeSession:
    rank: int
    tracks: Tracks
    run_folder: Path | None
    timeline_file: Path | None = None
    store: MemoryStore | None = None
    job: str = "job-1"


@dataclass
class FakeJob:
    """The sessions of one job; every host has a disk of its own."""

    job: GeneratedJob
    root: Path
    store: MemoryStore = field(default_factory=MemoryStore)

    def folder(self, rank: int) -> Path:
        return self.root / self.job.schedule.host(rank)

    def session(self, rank: int) -> FakeSession:
        plan = self.job.schedule
        hosts = [plan.host(other) for other in range(plan.ranks)]
        named = self.root / "trace.json"
        return FakeSession(rank, fixed(rank, hosts), self.folder(rank), named, self.store)

    def record(self) -> None:
        written = self.job.write(self.root / "all")
        for rank, path in enumerate(written):
            target = layout.timeline_part(self.folder(rank), rank)
            target.parent.mkdir(parents=True, exist_ok=True)
            path.rename(target)

    def close(self, rank: int, limits: Limits | None = None) -> None:
        TimelineExtension(self.session(rank), limits).after_close()


@pytest.fixture
def four(tmp_path: Path) -> FakeJob:
    job = FakeJob(generate(four_ranks(ranks=4)), tmp_path)
    job.record()
    return job


def test_rank_0_merges_what_lies_on_its_disk_and_what_is_sent(
    four: FakeJob, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(upload, "SEGMENT_BYTES", 1000)  # several segments
    closing = [threading.Thread(target=four.close, args=(rank,)) for rank in (0, 3, 1, 2)]
    for thread in closing:
        thread.start()
    for thread in closing:
        thread.join(timeout=120)
    trace = read(four.root / "trace.json")
    assert trace.ranks == (0, 1, 2, 3)
    assert len(trace.spans) == len(truth_table(four.job))
    assert "timeline of 4 ranks" in capsys.readouterr().err
    assert {four.store.values[key] for key in four.store.values if key.count("/") == 3} == {b""}


def test_uploads_run_ahead_of_rank_0_by_so_much_only(four: FakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload, "SEGMENT_BYTES", 1000)
    monkeypatch.setattr(upload, "_ALL_AHEAD_BYTES", 16 * 1000)  # of each rank 1000 bytes, packed
    far = [rank for rank in range(1, 4) if four.job.schedule.host(rank) != four.job.schedule.host(0)]
    whole = sum(layout.timeline_part(four.folder(rank), rank).stat().st_size for rank in far)
    closing = [threading.Thread(target=four.close, args=(rank,)) for rank in (3, 2, 1, 0)]
    for thread in closing:
        thread.start()
    for thread in closing:
        thread.join(timeout=120)
    assert len(read(four.root / "trace.json").spans) == len(truth_table(four.job))
    # What one member may have beyond that; names and states are short.
    assert four.store.most_bytes < len(far) * 2 * 1000 + 500 < whole // 2


def test_an_upload_that_rank_0_does_not_take_is_bounded_in_time_and_named(
    four: FakeJob, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(upload, "SEGMENT_BYTES", 1000)
    monkeypatch.setattr(upload, "_ALL_AHEAD_BYTES", 1)
    four.close(3, QUICK)
    assert 0 < max(four.store.patience_ns) <= QUICK.report_ns + QUICK.upload_ns
    said = capsys.readouterr().err
    assert "[rank 3] its part of the timeline could not be sent to rank 0" in said
    assert f"it lies in {layout.timeline_part(four.folder(3), 3)}" in said


def test_a_rank_that_died_is_bounded_in_time_and_named(four: FakeJob, capsys: pytest.CaptureFixture[str]) -> None:
    four.close(1)
    four.close(2)
    four.close(0, QUICK)
    assert 0 < max(four.store.patience_ns) <= QUICK.report_ns
    assert read(four.root / "trace.json").ranks == (0, 1, 2)
    assert "no part of rank 3" in capsys.readouterr().err


def test_a_dead_rank_on_this_host_still_has_its_part_on_the_disk(four: FakeJob) -> None:
    for rank in (2, 3):
        four.close(rank)
    four.close(0, QUICK)
    assert read(four.root / "trace.json").ranks == (0, 1, 2, 3)


def test_an_elastic_job_merges_once_what_all_generations_recorded(
    four: FakeJob, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts = {number: four.job.schedule.host(number) for number in range(4)}
    far = {number for number, host in hosts.items() if host != hosts[0]}
    assert far == {2, 3}

    def session(generation: int, workers: tuple[int, ...], rank: int) -> FakeSession:
        timeline = JobTimeline(workers, hosts={number: hosts[number] for number in range(4)})
        place = Placement(rank=rank, size=len(workers), job="job", generation=generation, timeline=timeline)
        now = four.session(workers[rank])
        now.rank, now.job = rank, f"job.{generation}"
        now.tracks = Tracks(place, [hosts[number] for number in workers])
        return now

    with monkeypatch.context() as patch:
        patch.setattr(membership, "is_going_on", lambda: True)
        for rank in (1, 2, 3, 0):
            TimelineExtension(session(1, (0, 1, 2, 3), rank), QUICK).after_close()
    assert not (four.root / "trace.json").exists()
    # The ranks of the other host have gone. What they sent is taken by rank 0 of the next generation, another worker.
    last = session(3, (1, 0), 0)
    extension = open_timeline(last)
    assert {path.name for path in layout.timeline_parts(four.folder(1)).iterdir()} == {
        f"{layout.rank_stem(number)}.spans" for number in range(4)
    }
    assert {value for key, value in four.store.values.items() if key.count("/") == 3} == {b""}
    TimelineExtension(session(3, (1, 0), 1), QUICK).after_close()
    extension.after_close()
    assert read(four.root / "trace.json").ranks == (0, 1, 2, 3)
    assert "timeline of 4 ranks" in capsys.readouterr().err


def test_an_upload_that_stops_halfway_leaves_no_half_part(four: FakeJob, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in (1, 3):
        four.close(rank)
    upload.report_state(four.store, "job-1", 2, "upload")
    four.store.set("job-1/part/2/0", b"no zlib")
    four.close(0, QUICK)
    assert read(four.root / "trace.json").ranks == (0, 1, 3)
    assert sorted(path.name for path in layout.timeline_parts(four.folder(0)).iterdir()) == [
        f"rank-0000{rank}.spans" for rank in (0, 1, 3)
    ]
    assert "the part of rank 2 did not arrive" in capsys.readouterr().err


def test_a_lost_store_costs_one_line_at_most(four: FakeJob, capsys: pytest.CaptureFixture[str]) -> None:
    four.store.broken = True
    four.close(1)
    assert capsys.readouterr().err == ""  # its part lies where rank 0 finds it
    four.close(2)
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "could not be sent to rank 0: store is gone" in error
    assert str(layout.timeline_part(four.folder(2), 2)) in error
    four.close(0, QUICK)
    assert read(four.root / "trace.json").ranks == (0, 1)


def test_an_output_that_cannot_be_written_is_one_line(four: FakeJob, capsys: pytest.CaptureFixture[str]) -> None:
    session = four.session(0)
    (four.root / "file").write_text("")
    session.timeline_file = four.root / "file" / "trace.json"
    TimelineExtension(session, QUICK).after_close()
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "the timeline was not merged" in error and "cannot be written" in error


def test_without_a_recording_nothing_happens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in (None, tmp_path):
        extension = open_timeline(FakeSession(0, fixed(0, ["a"]), folder))
        extension.on_step(None)
        extension.on_close()
        extension.after_close()
    store = MemoryStore()
    open_timeline(FakeSession(1, fixed(1, ["a", "b"]), tmp_path, store=store)).after_close()
    assert store.values == {"job-1/part/1": b"none"}
    assert capsys.readouterr().err == ""
    assert list(tmp_path.iterdir()) == []


def test_a_job_of_one_needs_no_store(tmp_path: Path) -> None:
    job = generate(Schedule(ranks=1))
    job.write(layout.timeline_parts(tmp_path))
    TimelineExtension(FakeSession(0, fixed(0, ["host-a"]), tmp_path)).after_close()
    assert rows(read(layout.timeline_file(tmp_path)).spans) == rows(truth_table(job))


def test_the_launcher_merges_what_rank_0_could_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = generate_run(tmp_path)
    layout.timeline_part(run, 0).unlink()
    merge_after_run(run)
    merged = layout.timeline_file(run)
    assert read(merged).ranks == (1,)
    assert "no part of rank 0" in capsys.readouterr().err
    stamp = merged.stat().st_mtime_ns
    merge_after_run(run)
    assert merged.stat().st_mtime_ns == stamp
    merge_after_run(tmp_path)  # nothing recorded: nothing to do
    assert capsys.readouterr().err == ""
