from __future__ import annotations

import shutil
from pathlib import Path

import orjson
import pytest

from ringtune import layout
from ringtune.errors import RingtuneError
from ringtune.timeline.analysis.summary import summarize
from ringtune.timeline.inputs import load
from ringtune.timeline.merging.merge import merge_run
from ringtune.timeline.runs.records import STEP_FIELDS
from ringtune.timeline.runs.run import list_runs, open_run
from ringtune.timeline.spans import Trace
from ringtune.timeline.synthetic.generate import Schedule, generate
from tests.timeline.generated_run import generate_run


def test_a_generated_run_comes_back(tmp_path: Path) -> None:
    plan = Schedule(ranks=3, steps=5, knob_change_step=2)
    run = open_run(generate_run(tmp_path, "train", plan))
    truth = generate(plan).truth
    assert (run.name, run.status, run.size, run.exit_code) == ("train", "finished", 3, 0)
    assert run.hosts == ("host-a",) * 3
    assert run.command == ("python", "train.py")
    assert sorted(run.machines) == sorted(run.steps) == sorted(run.parts) == [0, 1, 2]
    steps = run.steps[1]
    assert steps.wall_ns.tolist() == list(truth.step_ns)
    assert steps.wait_ns.sum() == truth.wait_ns[1]
    assert steps.bytes.sum() == truth.bytes
    assert steps.knobs_version.tolist() == [1, 1, 2, 2, 2]
    assert [trial.source for trial in run.tuning.trials] == ["default", "start-point", "sampler", "sampler", "confirm"]
    assert run.tuning.result is not None and run.tuning.result.decision == "improved"
    assert run.tuning.default == {"fusion_bytes": 64 << 20, "cycle_time_ns": 1_000_000}
    record = run.scaling[0]
    assert (record.benchmark, record.unit, [point.ranks for point in record.points]) == (
        "resnet",
        "images/s",
        [1, 2, 4][: len(record.points)],
    )
    assert run.timeline is None
    assert run.problems == []


def test_keys_of_earlier_versions_are_read(tmp_path: Path) -> None:
    """A run folder whose step logs, journal and knobs have the old keys is read like one with the new keys."""
    today = open_run(generate_run(tmp_path, "today", Schedule(ranks=2, steps=5, knob_change_step=2)))
    journal = layout.tuning_journal(today.path)
    events = [orjson.loads(line) for line in journal.read_bytes().splitlines()]
    for event in events:
        for knobs in (event.get("knobs"), event.get("default")):
            if knobs is not None:
                knobs["step_schedule"] = 0
    journal.write_bytes(b"\n".join(map(orjson.dumps, events)) + b"\n")
    document = orjson.loads(layout.run_file(today.path).read_bytes())
    document["knobs"]["step_schedule"] = 0
    layout.run_file(today.path).write_bytes(orjson.dumps(document))
    shutil.copytree(today.path, tmp_path / "before")
    for path in (tmp_path / "before").rglob("*.json*"):
        path.write_text(path.read_text().replace('"knobs_version"', '"epoch"').replace('"step_schedule"', '"plan"'))
    now, before = open_run(today.path), open_run(tmp_path / "before")
    assert b'"plan":0' in layout.tuning_journal(before.path).read_bytes()
    assert before.steps[1].knobs_version.tolist() == [1, 1, 2, 2, 2]
    assert before.tuning.trials == now.tuning.trials and before.tuning.trials[1].knobs["step_schedule"] == 0
    assert before.tuning.results == now.tuning.results and before.tuning.results[0].knobs_version == 6
    default = before.tuning.default
    assert default == now.tuning.default and default is not None and default["step_schedule"] == 0
    assert before.knobs == now.knobs and before.knobs["step_schedule"] == 0
    assert before.problems == []


def test_the_timeline_is_found_where_the_label_says(tmp_path: Path) -> None:
    folder = generate_run(tmp_path / "runs")
    merge_run(folder)
    assert open_run(folder).timeline == layout.timeline_file(folder)
    named = merge_run(folder, tmp_path / "named.json").output
    document = orjson.loads(layout.run_file(folder).read_bytes())
    document["labels"]["timeline"] = str(named)
    layout.run_file(folder).write_bytes(orjson.dumps(document))
    assert open_run(folder).timeline == named
    named.unlink()
    assert open_run(folder).timeline == layout.timeline_file(folder)


def test_runs_are_listed_newest_first_and_broken_ones_hide_nobody(tmp_path: Path) -> None:
    old = generate_run(tmp_path, "old", Schedule(start_unix_ns=1_600_000_000 * 10**9))
    new = generate_run(tmp_path, "new")
    torn = generate_run(tmp_path, "torn")
    layout.run_file(torn).write_bytes(b'{"format": 1, "name": ')
    lost = generate_run(tmp_path, "lost")
    layout.run_file(lost).unlink()
    (tmp_path / "notes").mkdir()
    (tmp_path / "file").write_text("x")
    runs = {run.path: run for run in list_runs(tmp_path)}
    assert list(runs)[:2] == [new, old]
    assert set(runs) == {new, old, torn, lost}
    assert runs[torn].status == "unknown"
    assert f"{layout.run_file(torn)}: not JSON" in runs[torn].problems[0]
    assert "No such file" in runs[lost].problems[0]
    assert len(runs[lost].steps) == 2
    assert runs[new].problems == []


def test_a_run_itself_and_a_missing_root_can_be_listed(tmp_path: Path) -> None:
    run = generate_run(tmp_path)
    assert [found.path for found in list_runs(run)] == [run]
    assert list_runs(tmp_path / "none") == []
    with pytest.raises(RingtuneError, match="no such folder"):
        open_run(tmp_path / "none")


@pytest.mark.parametrize(
    ("file", "content", "complaint"),
    [
        ("run.json", b"[]", "expected a JSON object"),
        ("run.json", b'{"format": 9}', "format 9"),
        ("machine/rank-00000.json", b"\xff", "not JSON"),
        ("machine/rank-x.json", b"{}", "not a per-rank file"),
        ("steps/rank-00001.jsonl", b'{"step": "many"}\n', "invalid literal"),
        ("steps/rank-00001.jsonl", b'oops\n{"step": 1}\n', "line 1 is not JSON"),
        ("steps/rank-00001.jsonl", b'{"step": 1e400}\n', "rank-00001.jsonl"),
        ("tuning/journal.jsonl", b'{"event": "trial"}\n', "a trial without 'trial'"),
        ("tuning/journal.jsonl", b'{"event":"trial","trial":0,"knobs":7}\n', "knobs must be an object"),
        ("tuning/journal.jsonl", b'{"event":"result","decision":"x","knobs":{},"gain":5}\n', "expected an object with"),
        ("tuning/journal.jsonl", b"5\n", "line 1 is no JSON object"),
        ("scaling/resnet.json", b"{}", 'a list "records"'),
        ("scaling/resnet.json", b'{"records":[{"ranks":2}]}', "without"),
        ("scaling/resnet.json", b'{"records":[{"ranks":[],"rate":{"median":1}}]}', "scaling/resnet.json"),
    ],
)
def test_each_broken_file_is_one_problem_and_the_rest_is_read(
    file: str, content: bytes, complaint: str, tmp_path: Path
) -> None:
    folder = generate_run(tmp_path)
    (folder / file).write_bytes(content)
    run = open_run(folder)
    assert len(run.steps[0]) == 4
    _ = run.machines, run.tuning, run.scaling, run.timeline, run.hosts, run.labels
    assert len(run.problems) == 1
    assert complaint in run.problems[0]


def test_a_torn_last_line_is_no_problem(tmp_path: Path) -> None:
    folder = generate_run(tmp_path)
    log = layout.step_log(folder, 0)
    log.write_bytes(log.read_bytes()[:-25])
    run = open_run(folder)
    assert len(run.steps[0]) == 3
    assert run.problems == []


def test_step_fields_are_those_the_runtime_writes() -> None:
    from ringtune.stats import StepStats

    assert set(STEP_FIELDS) <= set(StepStats.__dataclass_fields__)


def test_load_takes_whatever_the_user_names(tmp_path: Path) -> None:
    folder = generate_run(tmp_path)
    parts = sorted(layout.timeline_parts(folder).iterdir())

    def counts(trace: Trace) -> tuple[int, int]:
        return len(trace.ranks), summarize(trace).span_count

    whole = counts(load(folder))
    assert whole == counts(load(layout.timeline_parts(folder))) == counts(load(parts))
    assert counts(load(parts[1]))[1] == whole[1] // 2
    merge_run(folder)
    assert load(folder).path == layout.timeline_file(folder)
    assert whole == counts(load(folder)) == counts(load(layout.timeline_file(folder)))
    (tmp_path / "empty").mkdir()
    with pytest.raises(RingtuneError, match=r"neither timeline\.json nor timeline/rank"):
        load(tmp_path / "empty")
    with pytest.raises(RingtuneError, match="only as parts"):
        load([parts[0], layout.timeline_file(folder)])
