"""Which rank a failed or hanging run is blamed on, and what its folder says of the others."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from ringtune import layout
from ringtune.dashboard.app import create_app
from ringtune.dashboard.context import Context
from ringtune.dashboard.data import failure
from ringtune.dashboard.data.runs import RunInfo, RunsFolder, read_run
from ringtune.dashboard.data.timeline import trace
from ringtune.dashboard.data.timeline.index import TimelineIndex
from ringtune.dashboard.pages import overview
from ringtune.dashboard.pages.overview_failure import ending
from ringtune.dashboard.report import sections
from ringtune.dashboard.routes import Route
from ringtune.timeline.analysis.steps import counted
from ringtune.timeline.doctor.diagnosis import diagnose
from ringtune.timeline.doctor.failure import failure as explained
from ringtune.timeline.inputs import load
from ringtune.timeline.runs.run import Run
from ringtune.timeline.spans import Instant
from ringtune.timeline.synthetic.generate import Schedule
from tests.dashboard.folders import change
from tests.timeline.generated_run import generate_run

ENDED = "# 2026-11-27 01:41:39: the script ended by an error\nTraceback (most recent call last):\n"
OWN = ENDED + '  File "/job/train.py", line 6, in load_batch\n    raise ValueError("bad")\nValueError: bad sample 17\n'
LIBRARY = '  File "/v/lib/python3.11/site-packages/torch/x.py", line 9, in step\n    raise failure\n'
LOST = ENDED + '  File "/job/train.py", line 9, in <module>\n' + LIBRARY + "ringtune.errors.PeerLost: rank 1 is gone\n"
TIMEOUT = LOST.replace("PeerLost: rank 1 is gone", "Timeout: waited for rank 2")
QUIET = '# 2026-11-27 01:41:37: no operation finished for 60 s\n  File "/job/train.py", line 7, in <module>\n'
TERMINATED = """
Thread 0x00007f17 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait

Current thread 0x00007f18 (most recent call first):
  File "/usr/lib/python3.11/socket.py", line 700 in recv
  File "/job/data.py", line 5 in read
  File "/job/train.py", line 7 in <module>
"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A failed run of three ranks and five steps."""
    found = generate_run(tmp_path, "crash", Schedule(ranks=3, steps=5), tuning=False, scaling=False)
    change(found, status="failed", exit_code=1)
    return found


def told(run: Path, stacks: dict[int, str], printed: dict[int, str] | None = None) -> None:
    for rank, words in stacks.items():
        layout.stack_file(run, rank).parent.mkdir(exist_ok=True)
        layout.stack_file(run, rank).write_text(words)
    for rank, words in (printed or {}).items():
        layout.log_file(run, rank).parent.mkdir(exist_ok=True)
        layout.log_file(run, rank).write_text(words)


def index_of(run: Path, *instants: Instant) -> TimelineIndex:
    index = trace.load(run, trace.sources(run))
    return dataclasses.replace(index, instants=instants)


def stall(at_ns: int, *missing: int) -> Instant:
    return Instant("STALL", "stall", 0, at_ns, {"tensor": "fc.weight", "missing": list(missing), "age_ns": 60 * 10**9})


def failed(run: Path, *instants: Instant) -> failure.Failure:
    found = failure.data(read_run("crash", run), index_of(run, *instants))
    assert found is not None
    return found


def test_an_error_of_a_ranks_own_is_the_cause_and_where_it_stood_the_action(run: Path) -> None:
    told(run, {0: LOST, 1: OWN, 2: LOST})
    found = failed(run, stall(10**15, 0))  # what waited for it does not count
    assert found.headline == "Rank 1 ended by ValueError: bad sample 17."
    assert (found.action, found.blamed) == ("Look at train.py line 6 (load_batch)", (1,))
    assert [end.rank for end in found.ranks] == [1, 0, 2]
    assert found.ranks[1].stood == "train.py line 9"  # not within the library
    assert {(end.collective, end.step) for end in found.ranks} == {("fc.weight +1", 4)}


def test_who_did_not_come_is_missing_and_stood_where_the_signal_met_it(run: Path) -> None:
    told(run, {0: TIMEOUT, 2: QUIET + TERMINATED})
    found = failed(run, stall(10**15, 2))
    assert found.headline == "Rank 2 did not come to fc.weight after step 4: the others waited 60 s."
    assert (found.action, found.blamed) == ("Look at data.py line 5 (read)", (2,))
    assert found.ranks[0].lines[0].startswith("Current thread") and len(found.ranks[0].lines) == 4


def test_a_stall_that_was_over_blames_nobody(run: Path) -> None:
    told(run, {1: LOST, 2: LOST})
    assert failed(run, stall(0, 2)).blamed == (0,)


def test_a_rank_without_a_word_was_killed(run: Path) -> None:
    told(run, {}, {0: "epoch 3\nRuntimeError: PeerLost: rank 1 is gone\n", 2: "ringtune.errors.PeerLost: rank 1\n"})
    found = failed(run)
    assert found.headline.startswith("Rank 1 left no error while the others lost it: killed")
    assert found.ranks[1].lines == ("epoch 3", "RuntimeError: PeerLost: rank 1 is gone")


def test_without_a_timeline_the_stacks_speak(run: Path) -> None:
    told(run, {0: LOST, 1: TERMINATED, 2: LOST})
    found = failure.data(read_run("crash", run), None)
    assert found is not None
    assert found.headline == "Rank 1 stood in data.py line 5 (read) while the others waited."


def waiting(run: Path, rank: int, document: object) -> None:
    """What a rank reported of a stall."""
    path = layout.stall_file(run, rank)
    path.parent.mkdir(exist_ok=True)
    path.write_text(document if isinstance(document, str) else json.dumps(document))


def test_without_a_timeline_the_report_of_a_stall_names_who_is_missing(run: Path) -> None:
    for part in layout.timeline_parts(run).iterdir():
        part.unlink()
    told(run, {0: TIMEOUT, 1: TERMINATED, 2: QUIET + TERMINATED})
    named = {"operation": "'x' (allreduce)", "since_unix_ns": 10**18}
    late, later = {**named, "tensor": "a", "missing": [2]}, {**named, "tensor": "b", "missing": [1, 2]}
    later["since_unix_ns"] = 10**18 - 5 * 10**9
    waiting(run, 0, {"format": 1, "written_unix_ns": 10**18 + 60 * 10**9, "waiting": [late, later]})
    waiting(run, 1, {"format": 1, "written_unix_ns": 10**18, "waiting": [{**late, "missing": [0]}]})  # an older one
    found = failure.data(read_run("crash", run), None)
    assert found is not None and found.blamed == (1, 2)
    assert found.words() == "Ranks 1, 2 did not come to b: the others waited 65 s. Look at data.py line 5 (read)."
    assert explained(Run(run), None) == found
    assert (
        found.ranks[-1].sentence()
        == "rank 0 ended by ringtune.errors.Timeout: waited for rank 2; stood in train.py line 9"
    )
    live = dataclasses.replace(read_run("crash", run), status="live")
    found = failure.data(live, None)
    assert found is not None and found.headline == "Ranks 1, 2 do not come to b: the others waited 65 s."
    layout.stall_file(run, 0).unlink()
    layout.stall_file(run, 1).unlink()
    assert failure.data(dataclasses.replace(live, ranks=4), None) is None


@pytest.mark.parametrize(
    "document",
    [
        "", "[]", "null", "{", "[" * 10**5, {}, {"written_unix_ns": 1}, {"written_unix_ns": 1, "waiting": 3},
        {"written_unix_ns": 1, "waiting": [3]}, {"written_unix_ns": "x", "waiting": []},
        {"written_unix_ns": float("inf"), "waiting": []},
        {"written_unix_ns": 1, "waiting": [{"tensor": "a", "missing": 2, "since_unix_ns": 0}]},
        {"written_unix_ns": 1, "waiting": [{"tensor": "a", "missing": ["2", None, -1, True], "since_unix_ns": 0}]},
    ],
)  # fmt: skip
def test_a_report_that_makes_no_sense_is_left_out(run: Path, document: object) -> None:
    told(run, {0: LOST, 1: TERMINATED, 2: LOST})
    waiting(run, 0, document)
    found = failure.data(read_run("crash", run), None)
    assert found is not None
    assert found.headline == "Rank 1 stood in data.py line 5 (read) while the others waited."


@pytest.mark.parametrize("stacks", [{}, {1: ""}, {1: "\x00\xff File \n"}])
def test_a_run_that_left_nothing_is_not_explained(tmp_path: Path, stacks: dict[int, str]) -> None:
    told(tmp_path, stacks)
    run = RunInfo("x", tmp_path, "x", "failed", "failed with exit code 1", ranks=2)
    found = failure.data(run, None)
    assert found is None or (found.blamed, found.headline) == ((), "")
    assert len(ending(run, found)) == 1


def test_a_running_job_hangs_when_a_rank_is_missing_or_none_gets_on(run: Path) -> None:
    live = dataclasses.replace(read_run("crash", run), status="live")
    assert not failure.hangs(live) and ending(live, None) == []
    told(run, {2: QUIET})
    assert failure.hangs(live)
    assert failure.data(live, index_of(run)) is None  # one rank computes for long, as a checkpoint does
    found = failure.data(live, index_of(run, stall(10**15, 2)))
    assert found is not None and found.headline.startswith("Rank 2 does not come to fc.weight after step 4")
    assert ending(live, found)
    told(run, dict.fromkeys(range(3), QUIET))
    found = failure.data(live, index_of(run))
    assert found is not None and found.headline == "No rank finishes an operation."
    change(run, status="running", exit_code=None)
    assert explained(Run(run), load(run)) == found
    told(run, {2: ""})
    layout.stack_file(run, 2).unlink()
    assert explained(Run(run), load(run)) is None


@pytest.mark.parametrize(
    ("first", "code", "stacks", "late", "said"),
    [
        (0, 1, {0: LOST, 1: OWN, 2: LOST}, (), "Rank 1 ended by ValueError: bad sample 17. Look at train.py line 6"),
        (0, 1, {0: TIMEOUT, 1: TIMEOUT, 2: QUIET + TERMINATED}, (2,), "Rank 2 did not come to fc.weight after step 4"),
        (
            1,
            137,
            {0: LOST, 2: TERMINATED},
            (),
            "Rank 1 on node1 ended with code 137 (SIGKILL) after 3.0 s, and left no error",
        ),
    ],
    ids=["crash", "hang", "killed"],
)
def test_the_page_and_the_doctor_say_the_same(
    run: Path, first: int, code: int, stacks: dict[int, str], late: tuple[int, ...], said: str
) -> None:
    change(run, failure={"rank": first, "host": "node1", "exit_code": code, "after_s": 3.0, "last_lines": []})
    told(run, stacks)
    instants = [stall(10**15, *late)] if late else []
    trace = dataclasses.replace(load(run), instants=tuple(instants))
    found = diagnose(counted(trace), Run(run), explained(Run(run), trace), None)
    assert found.headline.startswith(said)
    info = read_run("crash", run)
    assert found.failure == failure.data(info, index_of(run, *instants))
    assert found.headline in json.dumps(ending(info, found.failure)[0].to_plotly_json(), default=str)


def test_the_report_of_a_failed_run_opens_with_the_rank_at_fault(run: Path) -> None:
    told(run, {0: LOST, 1: OWN, 2: LOST}, {1: "epoch 3\nValueError: bad sample 17\n"})
    summary, ended, *_ = sections(read_run("crash", run))
    assert summary.words[0] == "Rank 1 ended by ValueError: bad sample 17. Look at train.py line 6 (load_batch)."
    assert (ended.title, [row[:4] for row in ended.rows]) == (
        "How it ended",
        [("1", "train.py line 6 (load_batch)", "fc.weight +1", "4"), *((rank, "train.py line 9", "fc.weight +1", "4")
                                                                     for rank in ("0", "2"))],
    )  # fmt: skip
    assert ended.rows[0][4] == "ValueError: bad sample 17"
    assert ended.words[:3] == ("Rank 1, its last lines:", "epoch 3", "ValueError: bad sample 17")


def asked(root: Path, address: str, output: str, **values: object) -> str:
    """Return what the callback that fills ``output`` answers a browser which shows an address."""
    client = create_app(root).server.test_client()
    known_callbacks = client.get("/_dash-dependencies").get_json()
    (one,) = (one for one in known_callbacks if f"..{output}.children." in f".{one['output']}.")
    names = [name.rsplit(".", 1) for name in one["output"].strip(".").split("...")]
    outputs = [{"id": json.loads(name) if name[0] == "{" else name, "property": what} for name, what in names]
    known = {"url.pathname": address, "scheme.data": "dark", **values}
    given = {kind: [{**part, "value": known.get(f"{part['id']}.{part['property']}")} for part in one[kind]]
             for kind in ("inputs", "state")}  # fmt: skip
    answer = client.post("/_dash-update-component", json={"output": one["output"], "outputs": outputs,
                                                          "changedPropIds": [], **given})  # fmt: skip
    return json.dumps(answer.get_json()["response"][output])


@pytest.mark.parametrize("timeline", [True, False])
def test_every_page_with_a_verdict_opens_with_the_rank_at_fault(run: Path, *, timeline: bool) -> None:
    told(run, {0: LOST, 1: OWN, 2: LOST})
    if not timeline:
        for path in trace.sources(run):
            path.unlink()
    fine = generate_run(run.parent, "fine", Schedule(ranks=3, steps=5), tuning=False, scaling=False)
    said = failure.data(read_run("crash", run), None)
    assert said is not None and said.words().startswith("Rank 1 ended by ValueError: bad sample 17. Look at")
    overview = asked(run.parent, f"/run/{run.name}/overview", "overview-ending")
    stragglers = asked(run.parent, f"/run/{run.name}/stragglers", "stragglers-ending")
    pair = {"compare-a.value": fine.name, "compare-b.value": run.name}
    compared = asked(run.parent, "/compare", "compare-ending", **pair)
    for page, title in ((overview, "This run"), (stragglers, "This run"), (compared, "Run B")):
        assert said.words() in page and f"{title} failed with exit code 1" in page
        assert page.count("failed with exit code 1") == 1
    assert all(f'"/run/{run.name}"' in page for page in (stragglers, compared))
    assert asked(run.parent, f"/run/{fine.name}/stragglers", "stragglers-ending") == '{"children": []}'


def test_a_timeline_that_is_read_at_last_makes_the_overview_say_the_end_anew(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = Context(RunsFolder(run.parent))
    route = Route("overview", run.name)
    before = context.stamp(route), overview.news(context, route, {})["shape"]
    monkeypatch.setattr(context.timelines, "_progress", lambda _run: 0.5)
    assert context.stamp(route) != before[0] and overview.news(context, route, {})["shape"] != before[1]
