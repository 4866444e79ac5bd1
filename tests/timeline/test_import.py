"""Traces that exist already become run folders: ranks, matching, clocks, and what is said about them."""

from __future__ import annotations

import gzip
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from ringtune.errors import RingtuneError
from ringtune.timeline.analysis.batches import MISSING, batch_table, rank_steps
from ringtune.timeline.analysis.efficiency import efficiency
from ringtune.timeline.analysis.intervals import intersection, length
from ringtune.timeline.analysis.stragglers import stragglers
from ringtune.timeline.cli import timeline
from ringtune.timeline.importing.imported import import_run
from ringtune.timeline.importing.skew import agreed
from ringtune.timeline.inputs import load
from ringtune.timeline.runs.run import list_runs
from ringtune.timeline.vocabulary import Stage
from tests.timeline.foreign_job import PlantedJob
from tests.timeline.helpers import rows, write_json

MS = 1_000_000


def run_json(run: Path) -> dict[str, Any]:
    return orjson.loads((run / "run.json").read_bytes())


def check_causality(run: Path) -> None:
    """No rank is done with a collective before all have begun it, within the bounds of the clocks."""
    trace = load(run)
    table = batch_table(trace)
    errors = {part.rank: part.error_ns or 0 for part in trace.parts}
    bound = np.array([errors[rank] for rank in table.ranks])
    whole = (table.begin != MISSING).all(axis=1)
    assert whole.any()
    gap = table.begin[whole][:, :, None] - table.end[whole][:, None, :]
    assert (gap <= bound[:, None] + bound[None, :]).all()


@settings(deadline=None, max_examples=20)
@given(
    ranks=st.integers(2, 5),
    shifts=st.lists(
        st.integers(-3_600_000 * MS, 3_600_000 * MS) | st.integers(-300_000, 300_000), min_size=4, max_size=4
    ),
    numbered=st.booleans(),
    late_us=st.sampled_from([0.0, 700.0, 20_000.0]),
    seed=st.integers(0, 1000),
)
def test_a_shifted_clock_is_found_within_the_bound_that_is_told(
    ranks: int, shifts: list[int], numbered: bool, late_us: float, seed: int
) -> None:
    shift_ns = {rank: shifts[rank - 1] for rank in range(1, ranks)}
    job = PlantedJob(ranks=ranks, shift_ns=shift_ns, numbered=numbered, late_us=late_us, seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        made = import_run(job.write(Path(folder) / "in"), run)
        assert made.matches.matched == made.matches.collectives == 3 * job.steps
        told = run_json(run)["imported"]["clock_skew"]
        assert [one["rank"] for one in told] == list(range(1, ranks))
        for one in told:
            truth = -shift_ns[one["rank"]]
            assert abs(one["offset_ns"] - truth) <= one["error_ns"] + 2  # microseconds with three decimals
            assert one["collectives"] == 3 * job.steps and one["contradicting"] == 0
            if abs(one["offset_ns"]) > one["error_ns"]:
                assert one["applied"]
        for part in load(run).parts[1:]:
            wall = part.offset_ns - load(run).parts[0].offset_ns
            assert part.error_ns is not None and abs(wall + shift_ns[part.rank]) <= part.error_ns + 2
        check_causality(run)


@pytest.mark.parametrize("shift_ns", [{}, {2: 30 * MS, 3: 30 * MS}])
def test_ranks_of_one_host_share_its_clock(shift_ns: dict[int, int], tmp_path: Path) -> None:
    job = PlantedJob(ranks=4, shift_ns=shift_ns)
    files = job.write(tmp_path / "in")
    for rank, file in enumerate(files):
        file.write_bytes(orjson.dumps(job.document(rank, host_name=f"node{rank // 2}")))
    parts = import_run(files, tmp_path / "run").trace.parts
    assert [part.host for part in parts] == ["node0", "node0", "node1", "node1"]
    assert [part.error_ns for part in parts[:2]] == [0, 0]
    assert parts[2].error_ns == parts[3].error_ns and 0 < (parts[2].error_ns or 0) < MS
    check_causality(tmp_path / "run")


def test_two_machines_of_one_name_do_not_share_a_clock(tmp_path: Path) -> None:
    job = PlantedJob(ranks=2, shift_ns={1: 30 * MS})
    files = job.write(tmp_path / "in", host_name="localhost")
    made = import_run(files, tmp_path / "run")
    assert [part.host for part in made.trace.parts] == ["localhost", "localhost#1"]
    assert made.corrected == {1}


@settings(deadline=None, max_examples=100)
@given(
    truth=st.integers(-1000, 1000),
    spans=st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=30),
    wrong=st.lists(st.integers(2000, 9000), max_size=10),
)
def test_the_offset_that_most_allow_is_found(truth: int, spans: list[tuple[int, int]], wrong: list[int]) -> None:
    wrong = sorted(set(wrong))[: (len(spans) - 1)]
    lone = [(truth + 10_000 * (at + 1), truth + 10_000 * (at + 1)) for at in range(len(wrong))]
    intervals = [(truth - below, truth + above) for below, above in spans] + lone
    low, high = (np.array(column, dtype=np.int64) for column in zip(*intervals, strict=True))
    least, most, agree = agreed(low, high)
    assert least <= truth <= most
    assert agree.tolist() == [True] * len(spans) + [False] * len(lone)


def test_a_drifting_clock_is_found_with_its_drift(tmp_path: Path) -> None:
    job = PlantedJob(ranks=2, steps=120, step_us=500_000, drift_ppm=80, shift_ns={1: 5 * MS})
    made = import_run(job.write(tmp_path / "in"), tmp_path / "run")
    skew = made.skews[1]
    assert skew.contradicting == 0 and skew.proven
    assert abs(skew.drift_ppb + 80_000) < 2_000
    part = made.trace.parts[1]
    assert part.error_ns is not None and part.error_ns < 2 * MS  # 4.8 ms of drift over the job
    check_causality(tmp_path / "run")


def test_every_command_opens_the_run(tmp_path: Path) -> None:
    job = PlantedJob(ranks=3, steps=24, late_us=3_000)
    job.write(tmp_path / "in")
    runner, run = CliRunner(), str(tmp_path / "run")
    said = runner.invoke(timeline, ["import", str(tmp_path / "in"), "-o", run], catch_exceptions=False)
    assert said.exit_code == 0
    lines = said.output.splitlines()
    assert "ranks 0-2 of 3" in lines[0]
    assert lines[1] == "72 of 72 collectives matched over their ranks, by number"
    assert lines[2].startswith("rank 1: clock skew ") and " ± " in lines[2] and "nothing corrected" in lines[2]
    for command in (
        ["summary", run], ["stragglers", run], ["efficiency", run], ["critical-path", run], ["diff", run, run],
        ["query", "select count(*) from spans", run],
    ):  # fmt: skip
        assert runner.invoke(timeline, command, catch_exceptions=False).exit_code == 0, command
    found = stragglers(load(run))
    assert {rank.rank: rank.verdict for rank in found.ranks if rank.verdict} == {1: ("compute",)}
    [listed] = list_runs(tmp_path / "run")
    assert (listed.name, listed.status, listed.size, listed.problems) == ("run", "finished", 3, [])
    assert {rank: len(table) for rank, table in listed.steps.items()} == {0: 24, 1: 24, 2: 24}
    for rank, logged in listed.steps.items():
        steps = rank_steps(load(run), rank)
        assert steps is not None
        inside = intersection(steps.waits, np.stack((steps.begin, steps.end), axis=1))
        assert int(logged.wait_ns.sum()) == length(inside) > 0


def test_without_marked_steps_an_optimizers_calls_end_them(tmp_path: Path) -> None:
    job = PlantedJob(ranks=2, steps=9)
    files = job.write(tmp_path / "in")
    for rank, file in enumerate(files):
        document = job.document(rank)
        for event in document["traceEvents"]:
            if event["name"].startswith("ProfilerStep"):
                event |= {"name": "Optimizer.step#SGD.step", "ts": event["ts"] + event["dur"] - 1, "dur": 1}
        file.write_bytes(orjson.dumps(document))
    made = import_run(files, tmp_path / "run")
    for rank in (0, 1):
        steps = rank_steps(made.trace, rank)
        assert steps is not None and steps.number.tolist() == list(range(9))
        assert steps.begin[1:].tolist() == steps.end[:-1].tolist()
        moves = made.trace.spans.of_rank(rank).of_stage(Stage.COMMUNICATE)
        assert moves.step.tolist() == [step for step in range(9) for _ in range(3)]
    assert efficiency(made.trace).steps == 9


def test_an_import_is_replaced_and_nothing_else_is(tmp_path: Path) -> None:
    files = PlantedJob().write(tmp_path / "in")
    import_run(files, tmp_path / "run")
    first = (tmp_path / "run" / "timeline.json").read_bytes()
    import_run(list(reversed(files)), tmp_path / "run")
    assert (tmp_path / "run" / "timeline.json").read_bytes() == first
    import_run(PlantedJob(ranks=3).write(tmp_path / "more"), tmp_path / "run")
    import_run(files, tmp_path / "run")
    assert sorted(list_runs(tmp_path / "run")[0].steps) == [0, 1]
    with pytest.raises(RingtuneError, match=r"in: is there already, and not from an import"):
        import_run(files, tmp_path / "in")
    with pytest.raises(RingtuneError, match="a run folder already"):
        import_run([tmp_path / "run"], tmp_path / "again")


def test_packed_files_are_the_same(tmp_path: Path) -> None:
    files = PlantedJob().write(tmp_path / "in")
    import_run(files, tmp_path / "plain")
    for file in files:
        file.with_name(file.name + ".gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()
    import_run([tmp_path / "in"], tmp_path / "packed")
    assert rows(load(tmp_path / "packed").spans) == rows(load(tmp_path / "plain").spans)


@pytest.mark.parametrize("lost", [0, 1, 3])
def test_a_rank_that_is_missing_is_named(lost: int, tmp_path: Path) -> None:
    files = PlantedJob(ranks=4).write(tmp_path / "in")
    files[lost].unlink()
    made = import_run([tmp_path / "in"], tmp_path / "run")
    assert made.report.missing == (lost,) and run_json(tmp_path / "run")["imported"]["missing_ranks"] == [lost]
    assert f"no part of rank {lost}" in made.report.sentences()
    assert made.matches.matched == made.matches.collectives
    assert len(made.skews) == 2


@pytest.mark.parametrize("packed", [False, True])
@settings(deadline=None, max_examples=10)
@given(kept=st.floats(0.3, 0.95))
def test_a_torn_file_is_read_as_far_as_it_goes(packed: bool, kept: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        job = PlantedJob(ranks=3, steps=10, shift_ns={2: 7 * MS})
        files = job.write(Path(folder) / "in")
        content = files[2].read_bytes()
        content = gzip.compress(content) if packed else content
        files[2].write_bytes(content[: int(len(content) * kept)])
        made = import_run(files, Path(folder) / "run")
        assert "the part of rank 2 ends early (killed, or still recording)" in made.report.sentences()
        assert made.matches.collectives == 30
        assert made.matches.absent == {0: 0, 1: 0, 2: 30 - made.matches.matched}
        if made.skews[2].collectives:
            assert abs(made.skews[2].offset_ns + 7 * MS) <= (made.skews[2].error_ns or 0) + 2


def test_numbers_match_what_order_cannot(tmp_path: Path) -> None:
    """A rank that began to record one collective later than the others, without steps to go by."""
    job = PlantedJob(ranks=2, steps=5, shift_ns={1: 40 * MS})
    files = job.write(tmp_path / "in")
    document = job.document(1)
    events = [event for event in document["traceEvents"] if "Profiler" not in event["name"]]
    files[1].write_bytes(orjson.dumps({**document, "traceEvents": events[1:]}))
    made = import_run(files, tmp_path / "run")
    assert (made.matches.matched, made.matches.collectives, made.matches.absent) == (14, 15, {0: 0, 1: 1})
    assert "14 of 15 collectives" in made.sentences()[1] and "not recorded by rank 1: 1" in made.sentences()[1]
    assert abs(made.skews[1].offset_ns + 40 * MS) <= (made.skews[1].error_ns or 0) + 2


def test_a_group_of_some_ranks_is_whole_with_these(tmp_path: Path) -> None:
    """Ranks 0 and 1, 2 and 3 are groups; no collective joins the two pairs, so their clocks cannot be compared."""
    job = PlantedJob(ranks=4, shift_ns={3: 9 * MS})
    files = job.write(tmp_path / "in")
    for rank, file in enumerate(files):
        document = job.document(rank)
        for event in document["traceEvents"]:
            if "Seq" in event["args"]:
                event["args"] |= {"Process Group Name": str(1 + rank // 2), "Process Group Ranks": f"[{rank // 2}]"}
        file.write_bytes(orjson.dumps(document))
    made = import_run(files, tmp_path / "run")
    assert (made.matches.matched, made.matches.collectives) == (36, 36)
    assert [skew.error_ns is None for skew in made.skews.values()] == [False, True, True]
    assert "no collective shared with rank 0; its clock was not measured" in made.sentences()[3]


def test_clocks_are_compared_over_a_third_rank(tmp_path: Path) -> None:
    """Rank 2 shares collectives with rank 1 alone."""
    job = PlantedJob(ranks=3, shift_ns={1: 6 * MS, 2: -11 * MS})
    files = job.write(tmp_path / "in")
    for rank, file in enumerate(files):
        document = job.document(rank)
        kept = []
        for event in document["traceEvents"]:
            number = event["args"].get("Seq", 0)
            ends = (0, 1) if number % 2 else (1, 2)
            if number and rank in ends:
                event["args"] |= {"Process Group Name": str(1 + ends[0]), "Process Group Ranks": str(list(ends))}
            if not number or rank in ends:
                kept.append(event)
        file.write_bytes(orjson.dumps({**document, "traceEvents": kept}))
    made = import_run(files, tmp_path / "run")
    assert made.matches.matched == 18
    for rank, truth in ((1, -6 * MS), (2, 11 * MS)):
        skew = made.skews[rank]
        assert skew.reference == 0 and skew.error_ns is not None and abs(skew.offset_ns - truth) <= skew.error_ns + 2


def test_two_traces_of_one_rank_are_refused(tmp_path: Path) -> None:
    files = PlantedJob().write(tmp_path / "in")
    (tmp_path / "in" / "again.json").write_bytes(files[1].read_bytes())
    with pytest.raises(RingtuneError, match=r"are both taken for rank 1, at the same time"):
        import_run([tmp_path / "in"], tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_jobs_of_different_sizes_are_refused(tmp_path: Path) -> None:
    files = [PlantedJob(ranks=2).write(tmp_path / "a")[0], PlantedJob(ranks=3).write(tmp_path / "b")[1]]
    with pytest.raises(RingtuneError, match=r"of different jobs: .* 2 ranks, .* 3; import each"):
        import_run(files, tmp_path / "run")


def test_jobs_with_different_collectives_are_refused(tmp_path: Path) -> None:
    first, other = PlantedJob().write(tmp_path / "a"), PlantedJob()
    document = other.document(1)
    for event in document["traceEvents"]:
        event["name"] = event["name"].replace("AllReduce", "AllGather")
    first[1].write_bytes(orjson.dumps(document))
    with pytest.raises(RingtuneError, match=r"not of one job: .*AllReduce.* on rank 0 and .*AllGather.* on rank 1"):
        import_run(first, tmp_path / "run")


def test_two_runs_of_one_script_are_refused(tmp_path: Path) -> None:
    """Equal collectives at other times: no offset of the clocks makes one job of them."""
    first = PlantedJob(steps=30, seed=1).write(tmp_path / "a")
    second = PlantedJob(steps=30, seed=2, step_us=9_000).write(tmp_path / "b")
    with pytest.raises(RingtuneError, match=r"ranks 0 and 1 cannot be of one job: only \d+ of 90 collectives"):
        import_run([first[0], second[1]], tmp_path / "run")


def anonymous(folder: Path, names: list[str]) -> None:
    folder.mkdir()
    for rank, name in enumerate(names):
        document = PlantedJob(ranks=len(names)).document(rank)
        del document["distributedInfo"]
        (folder / name).write_bytes(orjson.dumps(document))


def test_without_a_rank_inside_the_name_says_it(tmp_path: Path) -> None:
    anonymous(tmp_path / "in", ["rank0.json", "rank1.json"])
    assert import_run([tmp_path / "in"], tmp_path / "run").trace.ranks == (0, 1)


def test_names_of_torch_are_in_the_order_of_the_processes(tmp_path: Path) -> None:
    names = [f"node_{pid}.1700000000000000000.pt.trace.json" for pid in (998, 1004, 10011)]
    anonymous(tmp_path / "in", names)
    made = import_run([tmp_path / "in"], tmp_path / "run")
    assert [Path(part.path or "").name for part in made.trace.parts] == names


@pytest.mark.parametrize("names", [["a.json", "b.json"], ["rank0.json", "b.json"]])
def test_a_file_of_no_known_rank_is_refused(names: list[str], tmp_path: Path) -> None:
    anonymous(tmp_path / "in", names)
    with pytest.raises(RingtuneError, match=r"[ab]\.json: which rank wrote it\? .*put the rank into the name"):
        import_run([tmp_path / "in"], tmp_path / "run")


def test_profiles_without_a_wall_clock_are_refused(tmp_path: Path) -> None:
    events = [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 0, "dur": 9}]
    about = {"schemaVersion": 1, "distributedInfo": {"rank": 0, "world_size": 1}}
    old = write_json(tmp_path / "rank0.json", {**about, "traceEvents": events})
    with pytest.raises(RingtuneError, match=r"no trace that can be imported: .*rank0\.json: .*no wall clock"):
        import_run([old], tmp_path / "run")


def test_what_is_no_trace_is_left_out_and_named(tmp_path: Path) -> None:
    PlantedJob().write(tmp_path / "in")
    (tmp_path / "in" / "config.json").write_text('{"a": 1}')
    (tmp_path / "in" / "notes.txt").write_text("x")
    made = import_run([tmp_path / "in"], tmp_path / "run")
    assert [sentence for sentence in made.report.sentences() if "config.json: not a file of" in sentence]
    with pytest.raises(RingtuneError, match=r"no trace that can be imported"):
        import_run([tmp_path / "in" / "config.json"], tmp_path / "other")
    with pytest.raises(RingtuneError, match="no such file or folder"):
        import_run([tmp_path / "nowhere"], tmp_path / "other")
