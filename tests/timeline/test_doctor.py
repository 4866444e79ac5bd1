"""`ringtune timeline doctor`: what was planted stands on top, the whole story fits a page, nothing is made up."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ringtune import layout, runfolder
from ringtune.cli import cli
from ringtune.errors import RingtuneError
from ringtune.timeline.analysis.steps import counted
from ringtune.timeline.cli import timeline
from ringtune.timeline.doctor.diagnosis import diagnose
from ringtune.timeline.doctor.failure import failure
from ringtune.timeline.doctor.outlook import Outlook, Prospect
from ringtune.timeline.doctor.page import WIDTH
from ringtune.timeline.merging.merge import merge, merge_run
from ringtune.timeline.runs.records import Estimate
from ringtune.timeline.runs.run import Run
from ringtune.timeline.spans import Instant, Trace
from tests.conftest import needs
from tests.timeline.generated_run import generate_run
from tests.timeline.helpers import four_ranks, trace_of, write_json
from tests.timeline.planted import PLANTED, late_loader, profile
from tests.timeline.scenario import Scenario, simulate
from tests.timeline.test_import_dumps import stuck, write


def doctor(*sources: Path, group: Any = timeline, more: tuple[str, ...] = ()) -> str:
    """The page, its lines unwrapped to one text per blank line."""
    words = ["timeline", "doctor"] if group is cli else ["doctor"]
    done = CliRunner().invoke(group, [*words, *map(str, sources), *more], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def flat(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize(("name", "merged"), [*((name, False) for name in PLANTED), ("two-pauses", True)])
def test_the_planted_fault_stands_on_top(name: str, merged: bool, tmp_path: Path) -> None:
    plan, rank, said, share = PLANTED[name]
    simulate(plan)[0].write(layout.timeline_parts(tmp_path))
    runfolder.create(tmp_path, runfolder.RunRecord("planted", status="finished"))
    source = merge_run(tmp_path).output if merged else tmp_path
    page = doctor(source)
    first, rest = flat(page.split("\n\n")[0]), flat(page)
    assert f"lost to rank {rank} {said}, by compute: look at rank {rank}" in first
    assert f"{plan.ranks} ranks" in rest and "step 0 (start-up, " in rest and f"{plan.steps - 1} steps: median" in rest
    assert "not tuned; what that would give is not known before it is tried (at most " in rest
    lines = page.splitlines()
    assert max(map(len, lines)) <= WIDTH and len(lines) <= 40
    document = json.loads(doctor(source, more=("--json",)))
    assert document["headline"] == first
    assert document["stragglers"]["verdicts"][0]["share"] == pytest.approx(share, abs=0.05)
    assert sum(document["critical_path_ns"].values()) > 0 and document["efficiency"]["steps"] == plan.steps - 1


@pytest.mark.parametrize("imported", [False, True])
@pytest.mark.parametrize("host", ["here", ""])
def test_profiles_of_another_tool(imported: bool, host: str, tmp_path: Path) -> None:
    """The late loader is named, its steps too where the ranks' clocks are known only as far as collectives tell."""
    (tmp_path / "in").mkdir()
    documents = [{**profile(rank, 4, late_loader), "host_name": host} for rank in range(4)]
    if not host:
        for document in documents:
            del document["host_name"]
    paths = [write_json(tmp_path / "in" / f"rank{rank}.json", one) for rank, one in enumerate(documents)]
    if imported:
        made = CliRunner().invoke(timeline, ["import", *map(str, paths), "-o", str(tmp_path / "run")])
        assert made.exit_code == 0, made.output
        paths = [tmp_path / "run"]
    page = flat(doctor(*paths))
    assert "was lost to rank 2 in steps 6-11, by data loading: look at rank 2 in step" in page
    assert "data loading: 1.4" in page and "longest on rank 2" in page
    assert "what communication and its control cost): ringtune tune --restarts" in page
    assert "host#" not in page and (f"4 ranks on {'1 host' if host else ''}" in page) == bool(host)


def test_a_run_without_a_fault_accuses_nobody() -> None:
    found = diagnose(counted(trace_of(Scenario(ranks=2, steps=30))[0]), None, None, None)
    assert found.late is not None and found.late.verdicts == ()
    assert found.headline.startswith("ranks waited") and found.headline.endswith("ringtune tune")


@pytest.mark.parametrize("torn", [0, 3])
def test_torn_and_missing_parts_are_named(torn: int, tmp_path: Path) -> None:
    run = generate_run(tmp_path, "torn", four_ranks(steps=6), tuning=False)
    part = layout.timeline_part(run, torn)
    part.write_bytes(part.read_bytes()[: len(part.read_bytes()) * 4 // 5])
    gone = 1
    layout.timeline_part(run, gone).unlink()
    page = flat(doctor(run))
    assert f"the part of rank {torn} ends early" in page and f"no part of rank {gone}" in page
    assert f"what set the length of the steps is not known without rank {gone}" in page
    assert f"not predicted: rank {gone} left no part" in page and "load balance" not in page and "at most" not in page
    assert "complete" not in page.split("Steps")[0] and "clocks of all hosts aligned within" in page


def test_what_tuning_gave_is_said_with_its_interval(tmp_path: Path) -> None:
    page = flat(doctor(generate_run(tmp_path, "tuned", four_ranks(steps=6))))
    assert "this run was tuned: a step is shorter by 19.0 % [15.0, 23.0]" in page


def test_predictions_have_intervals_and_reasons() -> None:
    found = counted(trace_of(Scenario(ranks=2, steps=30))[0])
    asked: list[str] = []

    def foresee(trace: Trace, name: str) -> Outlook:
        asked.append(name)
        return Outlook((Prospect("as it is", Estimate(11.7e6, 10.6e6, 12.8e6)),), ("assumed: a link",))

    def refuse(trace: Trace, name: str) -> Outlook:
        raise RingtuneError("the links would carry 1,000 GB/s")

    assert diagnose(found, None, None, foresee).outlook.prospects[0].text() == "11.7 [10.6, 12.8] ms"
    refused = diagnose(found, None, None, refuse)
    assert refused.unknown["predictions"] == "the links would carry 1,000 GB/s" and asked == [""]


def test_the_command_line_asks_the_model(tmp_path: Path) -> None:
    needs("scipy")
    calm = Scenario(steps=40, compute_ns=20_000_000, jitter_ns=1, hosts=("a", "a", "b", "b"))
    simulate(calm)[0].write(layout.timeline_parts(tmp_path))
    page = flat(doctor(tmp_path, group=cli))
    assert "network twice as fast: " in page and "by the model (95 % intervals)" in page
    assert "ask with ringtune predict" in flat(doctor(tmp_path))  # the group alone has no model


def failed_run(folder: Path, **said: Any) -> Run:
    runfolder.create(folder, runfolder.RunRecord("broken", size=3))
    runfolder.finish(folder, 1, said or None)
    return Run(folder)


def failed_trace(*, stall: bool, errors: tuple[int, ...]) -> Trace:
    """Three ranks; on some of them an operation failed."""
    trace, _ = trace_of(Scenario(ranks=3, steps=5))
    made = failed_instants(int(trace.spans.end_ns.max()), stall=stall, errors=errors)
    return replace(trace, instants=(*trace.instants, *made))


def failed_instants(end: int, *, stall: bool, errors: tuple[int, ...]) -> list[Instant]:
    """An operation fails on some ranks at a moment, or rank 2 is missing in it."""
    instants = [
        Instant("ERROR", "error", rank, end + rank, {"tensor": "grad.7", "message": f"grad.7 fails on rank {rank}"})
        for rank in errors
    ]
    if stall:
        instants.append(Instant("STALL", "stall", 0, end, {"tensor": "grad.7", "missing": [2], "age_ns": 10**10}))
    return instants


def test_a_failed_run_says_who_failed_with_what_and_where_each_rank_stood(tmp_path: Path) -> None:
    run = failed_run(
        tmp_path, rank=1, host="node1", exit_code=1, after_s=8.25, last_lines=["Traceback", "ValueError: x"]
    )
    found = failure(run, failed_trace(stall=False, errors=(0, 2)))
    assert found is not None and found.blamed == (1,)
    assert found.words().startswith("Rank 1 on node1 ended with code 1 after 8.2 s: ValueError: x. Look at")
    second = found.ranks[1].sentence()
    assert second.startswith("rank 0 finished ") and second.endswith(" of step 4; then: grad.7 fails on rank 0")
    assert [(one.rank, one.own) for one in found.ranks] == [(1, True), (0, False), (2, False)]


def test_commands_open_with_the_failure_and_its_last_lines(tmp_path: Path) -> None:
    slow = Scenario(ranks=3, steps=20, slow_compute={1: 2_000_000})
    bad, good = tmp_path / "bad", tmp_path / "good"
    for folder in (bad, good):
        simulate(slow)[0].write(layout.timeline_parts(folder))
    failed_run(bad, rank=2, host="b", exit_code=1, after_s=8.25, last_lines=["Traceback", "ValueError: x"])
    runfolder.create(good, runfolder.RunRecord("good", status="finished"))
    words = "Rank 2 on b ended with code 1 after 8.2 s: ValueError: x. Look at its last lines below."

    def said(*arguments: object) -> str:
        return CliRunner().invoke(timeline, [*map(str, arguments)], catch_exceptions=False).stdout

    for command in ("summary", "stragglers", "critical-path", "efficiency"):
        for more in ([], ["--steps", "2:6"]):
            lines = said(command, bad, *more).splitlines()
            last = ["rank 2, its last lines:", "  Traceback", "  ValueError: x"]
            assert lines[0] == words and lines[2:5] == last, command
            assert lines[5].startswith("rank 2 finished ") and lines[5].endswith(" of step 19; then: ValueError: x")
        document = json.loads(said(command, bad, "--json"))
        assert document["headline"] == words and document["failure"]["blamed"] == [2]
        assert json.loads(said(command, good, "--json"))["failure"] is None
    assert "was lost to rank 1 always" in said("stragglers", bad)
    changed = said("diff", good, bad)
    assert changed.startswith(f"B: {words} a step of B") and "B:   ValueError: x" in changed
    assert [one and one["blamed"] for one in json.loads(said("diff", good, bad, "--json"))["failure"]] == [None, [2]]


@pytest.mark.parametrize(("stall", "errors", "missing"), [(True, (0, 1), (2,)), (False, (0,), (1, 2)), (False, (), ())])
def test_who_is_missing(stall: bool, errors: tuple[int, ...], missing: tuple[int, ...], tmp_path: Path) -> None:
    found = failure(failed_run(tmp_path), failed_trace(stall=stall, errors=errors))
    assert found is not None and found.blamed == missing
    assert ("did not come to grad.7 after step 4" in found.headline) == stall
    assert ("left no error while the others lost it" in found.headline) == (bool(missing) and not stall)


@pytest.mark.parametrize(
    ("code", "rank", "failed"), [(130, None, False), (143, None, False), (143, 0, True), (1, None, True)]
)
def test_a_run_that_somebody_ended_has_not_failed(code: int, rank: int | None, failed: bool, tmp_path: Path) -> None:
    runfolder.create(tmp_path, runfolder.RunRecord("ended"))
    runfolder.finish(tmp_path, code, None if rank is None else {"rank": rank})
    assert (failure(Run(tmp_path), None) is not None) == failed


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize(
    ("code", "how", "look"),
    [
        (7, "its program ended itself", "for what exits with code 7 (sys.exit, os._exit, a library)"),
        (137, "killed, or crashed outside Python", "in its host's kernel log (dmesg) whether memory ran out"),
        (139, "killed, or crashed outside Python", ""),
    ],
)
def test_a_rank_that_left_no_error_ended_itself_or_was_ended(
    code: int, how: str, look: str, kept: bool, tmp_path: Path
) -> None:
    run = failed_run(tmp_path, rank=1, host="", exit_code=code, after_s=1.0, last_lines=[])
    if kept:
        layout.log_file(tmp_path, 1).parent.mkdir()
        layout.log_file(tmp_path, 1).touch()
    found = failure(run, failed_trace(stall=False, errors=(0, 2)))
    assert found is not None and found.headline.endswith(f"and left no error while the others lost it: {how}.")
    printed = "at what it printed (ringtune run --logs keeps it)"
    assert found.action == "Look " + " and ".join([look] * bool(look) + [printed] * (not kept or not look))


@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize(
    ("stall", "errors", "later", "words"),
    [
        (
            True,
            (0, 1),
            False,
            "Rank 2 did not come to grad.7 after step 4: the others waited 10 s. Name the run folder",
        ),
        (False, (1, 0), False, "The trace ends with failed operations: grad.7 fails on rank 0. Name the run folder"),
        (False, (1, 0), True, None),
        (True, (), True, None),
        (False, (), False, None),
    ],
)
def test_a_trace_without_its_run_says_of_the_end_what_it_holds(
    stall: bool, errors: tuple[int, ...], later: bool, words: str | None, merged: bool, tmp_path: Path
) -> None:
    job = simulate(Scenario(ranks=3, steps=5))[0]
    ends = [int((one.begin_ns if later else one.end_ns).max()) for one in job.spans.values()]
    instants = failed_instants(min(ends) // 2 if later else max(ends), stall=stall, errors=errors)
    ranks = {rank: tuple(one for one in instants if one.rank == rank) for rank in job.spans}
    parts = replace(job, instants=ranks).write(tmp_path / "parts")
    source = tmp_path / "merged.json" if merged else tmp_path / "parts"
    if merged:
        merge(parts, source)
    for command in ("summary", "stragglers", "doctor"):
        document = json.loads(CliRunner().invoke(timeline, [command, str(source), "--json"]).stdout)
        assert (document["failure"] is None) == (words is None), command
        assert words is None or document["headline"].startswith(words)
    if words is not None:
        assert flat(doctor(source)).startswith(words)
        page = flat(CliRunner().invoke(timeline, ["stragglers", str(source)], catch_exceptions=False).stdout)
        assert page.startswith(words) and " of step 4; then: grad.7 fails on rank 0" in page


@pytest.mark.parametrize("logs", [False, True])
def test_a_failed_run_without_a_timeline(logs: bool, tmp_path: Path) -> None:
    failed_run(tmp_path, rank=2, host="", exit_code=137, after_s=1.0, last_lines=[])
    if logs:
        layout.log_file(tmp_path, 2).parent.mkdir()
        layout.log_file(tmp_path, 2).write_text("step 7\nKilled\n\n")
    page = flat(doctor(tmp_path))
    assert "rank 2 ended with code 137 (SIGKILL) after 1.0 s" in page and "no timeline was recorded" in page
    assert ("Killed" in page) == logs and ("ringtune run --logs keeps it" in page) != logs
    for command in ("summary", "stragglers"):
        refused = CliRunner().invoke(timeline, [command, str(tmp_path)])
        assert isinstance(refused.exception, RingtuneError)
        said = str(refused.exception).replace("Rank", "rank")
        assert said.startswith("rank 2 ended with code 137 (SIGKILL) after 1.0 s") and "neither timeline.json" in said
        assert f"`ringtune timeline doctor {tmp_path}` says more" in said
    part = layout.timeline_part(tmp_path, 0)
    part.parent.mkdir(parents=True)
    part.write_bytes(b"torn")
    refused = CliRunner().invoke(timeline, ["doctor", str(tmp_path)])
    assert isinstance(refused.exception, RingtuneError) and "says more" not in str(refused.exception)


def test_a_run_with_step_logs_alone_has_steps(tmp_path: Path) -> None:
    run = generate_run(tmp_path, "steps", four_ranks(steps=6), tuning=False)
    for rank in range(4):
        layout.timeline_part(run, rank).unlink()
    page = flat(doctor(run))
    assert page.startswith("no timeline was recorded") and "6 steps: median" in page


def test_a_hang_in_dumps_of_a_flight_recorder_stands_on_top(tmp_path: Path) -> None:
    folder, run = write(tmp_path / "in", stuck(3, 1, 4)), tmp_path / "run"
    CliRunner().invoke(timeline, ["import", str(folder), "-o", str(run)], catch_exceptions=False)
    page = flat(doctor(run))
    assert page.startswith("HANG: rank 1 did not come to nccl:all_reduce number 4 of group 0 (default_pg): look at")
    assert "last call of rank 1" in page


@pytest.mark.parametrize("events", [[], [{"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": 1, "dur": 5}]])
def test_a_trace_without_steps_says_what_it_lacks(events: list[dict[str, Any]], tmp_path: Path) -> None:
    page = flat(doctor(write_json(tmp_path / "odd.json", events), group=cli))
    assert page.startswith("the trace says neither who was late nor who waited: record with")
    assert "not predicted: " in page and " on 0 hosts" not in page


def test_nothing_to_read_is_an_error(tmp_path: Path) -> None:
    done = CliRunner().invoke(timeline, ["doctor", str(tmp_path)])
    assert done.exit_code != 0 and "record a timeline" in str(done.exception)
