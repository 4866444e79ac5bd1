"""Dumps of torch's flight recorder: what hangs, who is missing, where, and that reading a dump runs nothing."""

from __future__ import annotations

import gzip
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from ringtune.errors import RingtuneError
from ringtune.timeline.cli import timeline
from ringtune.timeline.importing.flight_recorder import dump_of
from ringtune.timeline.importing.hang import Hang, find_hang
from ringtune.timeline.importing.imported import import_run
from ringtune.timeline.inputs import load
from tests.conftest import needs

BASE_NS = 1_700_000_000_000_000_000
MS = 1_000_000


def entry(
    number: int, name: str = "nccl:all_reduce", *, group: str = "0", done: bool = True, **more: Any
) -> dict[str, Any]:
    """One call as torch 2.13 writes it, created one millisecond after the one before."""
    at = BASE_NS + number * MS
    state = "completed" if done else "started"
    description = "default_pg" if group == "0" else "undefined"
    return {
        "record_id": number, "pg_id": int(group), "process_group": [group, description], "op_id": number,
        "collective_seq_id": number, "p2p_seq_id": 0, "profiling_name": name, "is_p2p": False,
        "time_created_ns": at, "time_discovered_started_ns": at + 1000,
        "time_discovered_completed_ns": at + 500_000 if done else None, "timeout_ms": 600_000,
        "input_sizes": [[8, 4]], "input_dtypes": ["Float"], "output_sizes": [[8, 4]], "output_dtypes": ["Float"],
        "state": state, "retired": done, **more,
    }  # fmt: skip


def document(entries: list[dict[str, Any]], groups: dict[str, list[int]]) -> dict[str, Any]:
    config = {name: {"name": name, "desc": "", "ranks": str(ranks)} for name, ranks in groups.items()}
    return {"version": "2.10", "comm_lib_version": "2.21.5", "pg_config": config, "entries": entries}


def hang_of(documents: dict[int, dict[str, Any]]) -> Hang | None:
    return find_hang([dump_of(Path(f"nccl_trace_rank_{rank}"), rank, one) for rank, one in documents.items()])


def write(folder: Path, documents: dict[int, dict[str, Any]]) -> Path:
    folder.mkdir(exist_ok=True)
    for rank, one in documents.items():
        (folder / f"nccl_trace_rank_{rank}.json").write_bytes(orjson.dumps(one))
    return folder


def stuck(ranks: int, missing: int, number: int) -> dict[int, dict[str, Any]]:
    """All ranks come to all collectives before `number`; one does not come to this one."""
    groups = {"0": list(range(ranks))}
    return {
        rank: document(
            [entry(n) for n in range(1, number)] + ([] if rank == missing else [entry(number, done=False)]), groups
        )
        for rank in range(ranks)
    }


@given(ranks=st.integers(2, 9), number=st.integers(2, 12), data=st.data())
def test_a_call_whose_end_a_recorder_has_not_seen_yet_hangs_nobody(
    ranks: int, number: int, data: st.DataObject
) -> None:
    missing, unaware = data.draw(st.integers(0, ranks - 1)), data.draw(st.integers(0, ranks - 1))
    documents = stuck(ranks, missing, number)
    documents[unaware]["entries"][number - 2] = entry(number - 1, done=False)
    found = hang_of(documents)
    assert found is not None and (found.missing, found.call.number) == ((missing,), number)


@given(ranks=st.integers(2, 9), number=st.integers(1, 12), data=st.data())
def test_the_rank_that_did_not_come_is_named(ranks: int, number: int, data: st.DataObject) -> None:
    missing = data.draw(st.integers(0, ranks - 1))
    found = hang_of(stuck(ranks, missing, number))
    assert found is not None
    assert (found.missing, found.call.number) == ((missing,), number)
    assert sorted(found.waiting) == [rank for rank in range(ranks) if rank != missing]
    lines = found.lines()
    assert len(lines) == 3
    assert lines[0] == f"HANG: rank {missing} did not come to nccl:all_reduce number {number} of group 0 (default_pg)"
    assert lines[1].startswith("  in it since 2023-11-14 22:13:20 UTC: rank")


@settings(max_examples=50)
@given(data=st.data())
def test_the_cause_is_named_and_not_what_waits_for_it(data: st.DataObject) -> None:
    """A chain: rank r waits for r + 1 in a group of the two; only the last rank waits for nobody."""
    ranks = data.draw(st.integers(3, 7))
    groups = {"0": list(range(ranks)), **{str(r + 1): [r, r + 1] for r in range(ranks - 1)}}
    order = data.draw(st.permutations(range(ranks - 1)))
    documents = {}
    for rank in range(ranks):
        calls = [entry(1)]
        if rank < ranks - 1:
            when = BASE_NS + (10 + order[rank]) * MS
            calls.append(entry(1, group=str(rank + 1), done=False, time_created_ns=when))
        documents[rank] = document(calls, groups)
    found = hang_of(documents)
    assert found is not None and found.missing == (ranks - 1,) and list(found.waiting) == [ranks - 2]


def test_the_stack_is_the_users(tmp_path: Path) -> None:
    frames = [
        {"name": "all_reduce", "filename": "/x/torch/distributed/distributed_c10d.py", "line": 10},
        {"name": "evaluate", "filename": "train.py", "line": 44},
        {"name": "main", "filename": "train.py", "line": 90},
    ]
    documents = stuck(3, 1, 3)
    documents[1]["entries"][-1]["frames"] = frames
    found = hang_of(documents)
    assert found is not None
    assert found.lines()[2] == (
        "  last call of rank 1: nccl:all_reduce number 2 of group 0 (done): evaluate (train.py:44) < main (train.py:90)"
    )


def test_different_calls_under_one_number_are_named() -> None:
    documents = stuck(4, 3, 2)
    documents[3]["entries"].append(entry(2, "nccl:broadcast", done=False))
    found = hang_of(documents)
    assert found is not None
    assert found.lines()[0] == (
        "HANG: the ranks call different things as number 2 of group 0 (default_pg): "
        "ranks 0-2 nccl:all_reduce [8,4]; rank 3 nccl:broadcast [8,4]"
    )
    assert "last call of rank 3: nccl:broadcast" in found.lines()[2]


def test_different_sizes_are_named_where_they_must_be_equal() -> None:
    documents = stuck(2, 1, 2)
    documents[1]["entries"].append(entry(2, done=False, input_sizes=[[9]]))
    found = hang_of(documents)
    assert found is not None and "rank 0 nccl:all_reduce [8,4]; rank 1 nccl:all_reduce [9]" in found.lines()[0]


def test_a_collective_to_which_all_came_is_a_matter_of_the_network() -> None:
    documents = {rank: document([entry(1), entry(2, done=False)], {"0": [0, 1]}) for rank in (0, 1)}
    found = hang_of(documents)
    assert found is not None and "all ranks came to nccl:all_reduce number 2" in found.lines()[0]


def test_a_rank_without_a_dump_is_named() -> None:
    documents = stuck(3, 1, 2)
    del documents[1]
    found = hang_of(documents)
    assert found is not None and "is not done, and there is no dump of rank 1" in found.lines()[0]


def test_a_receive_that_nobody_sends_is_found() -> None:
    groups = {"0": [0, 1, 2]}
    receive = entry(1, "nccl:recv 2<-1", done=False, p2p_seq_id=3, is_p2p=True)
    sent = entry(1, "nccl:send 1->2", p2p_seq_id=2, is_p2p=True)
    documents = {0: document([], groups), 1: document([sent], groups), 2: document([receive], groups)}
    found = hang_of(documents)
    assert found is not None and (found.missing, list(found.waiting)) == ((1,), [2])


@given(data=st.data(), ranks=st.integers(2, 5), kept=st.integers(1, 8), batches=st.booleans())
def test_the_rank_that_sends_no_more_is_found(data: st.DataObject, ranks: int, kept: int, batches: bool) -> None:
    """Each rank counts its own messages; of a batch torch tells only of all together how far they are."""
    a_pair = st.permutations(range(ranks)).map(lambda order: tuple(order[:2]))
    plan = data.draw(st.lists(st.tuples(a_pair, st.booleans()), min_size=1, max_size=30))  # between whom, both ways
    stops = data.draw(st.integers(0, ranks - 1))
    stops_at = data.draw(st.integers(0, max(0, sum(stops in pair for pair, _ in plan) - 1)))
    entries: dict[int, list[dict[str, Any]]] = {rank: [] for rank in range(ranks)}
    counts, stands = [0] * ranks, set[int]()
    for at, ((source, destination), both) in enumerate(plan):
        if stops in (source, destination) and counts[stops] == stops_at:
            stands.add(stops)
        done = not stands & {source, destination}
        for rank, peer, sends in ((source, destination, True), (destination, source, False)):
            if rank in stands:
                continue
            counts[rank] += 1
            about = {"p2p_seq_id": counts[rank], "is_p2p": True, "collective_seq_id": 0, "done": done}
            ways = [f"nccl:send {rank}->{peer}", f"nccl:recv {rank}<-{peer}"][:: 1 if sends else -1]
            batch = [entry(at, way, **about) for way in ways[: 1 + (both and batches)]]
            if batches:
                never = {"state": "scheduled", "time_discovered_completed_ns": None, "retired": False}
                batch = [one | never for one in batch] + [entry(at, "nccl:coalesced", **about)]
            entries[rank] += batch
            if not done:
                stands.add(rank)
    groups = {"0": list(range(ranks))}
    whole = data.draw(st.booleans())
    for own in entries.values():
        own[:] = [one | {"record_id": record} for record, one in enumerate(own)][0 if whole else -3 * kept :]
    found = hang_of({rank: document(own, groups) for rank, own in entries.items()})
    waiting = {rank for rank, own in entries.items() if own and own[-1]["state"] == "started"}
    assert (found is not None) == bool(waiting)
    assert found is None or (found.missing == (stops,) and set(found.waiting) <= waiting), found.lines()


def test_a_rank_that_came_long_ago_is_not_missing() -> None:
    """The recorder keeps the last calls only; how far a rank has come stands in its status too."""
    documents = stuck(2, 1, 5)
    status = {"0": {"last_enqueued_collective": "9", "last_started_collective": "9", "last_completed_collective": "9"}}
    documents[1] |= {"entries": [entry(9)], "pg_status": status}
    found = hang_of(documents)
    assert found is not None and found.missing == ()


def test_nothing_hangs(tmp_path: Path) -> None:
    documents = {rank: document([entry(n) for n in (1, 2, 3)], {"0": [0, 1]}) for rank in (0, 1)}
    assert hang_of(documents) is None
    made = import_run([write(tmp_path / "in", documents)], tmp_path / "run")
    assert orjson.loads((tmp_path / "run" / "run.json").read_bytes())["status"] == "finished"
    assert (made.matches.matched, made.matches.numbered) == (3, 3)
    spans = load(tmp_path / "run").spans
    assert set(spans.bytes.tolist()) == {128} and set(spans.duration_ns.tolist()) == {500_000}


def test_dumps_become_a_run(tmp_path: Path) -> None:
    folder, run = write(tmp_path / "in", stuck(3, 1, 4)), tmp_path / "run"
    said = CliRunner().invoke(timeline, ["import", str(folder), "-o", str(run)], catch_exceptions=False)
    assert said.exit_code == 0
    assert (
        said.output.splitlines()[0] == "HANG: rank 1 did not come to nccl:all_reduce number 4 of group 0 (default_pg)"
    )
    about = orjson.loads((run / "run.json").read_bytes())
    assert about["status"] == "failed" and len(about["imported"]["hang"]) == 3
    trace = load(run)
    assert trace.ranks == (0, 1, 2) and len(trace.spans) == 11
    assert {(stall.rank, tuple(stall.args["missing"])) for stall in trace.instants_named("STALL")} == {
        (0, (1,)),
        (2, (1,)),
    }
    for command in ("summary", "stragglers"):
        assert CliRunner().invoke(timeline, [command, str(run)], catch_exceptions=False).exit_code == 0


@pytest.mark.parametrize("named", ["nccl_trace_rank_{}", "nccl_trace_rank_{}.json.gz", "rank{}.json"])
def test_dumps_of_all_forms_are_the_same(named: str, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for rank, one in stuck(2, 0, 3).items():
        content = orjson.dumps(one)
        pickled = pickle.dumps(one, protocol=2)
        packed = gzip.compress(content) if named.endswith(".gz") else content if named.endswith(".json") else pickled
        (folder / named.format(rank)).write_bytes(packed)
    made = import_run([folder], tmp_path / "run", allow_pickle=True)
    assert made.source.hang is not None and made.source.hang.missing == (0,)


def test_pickled_dumps_need_the_flag(tmp_path: Path) -> None:
    file = tmp_path / "nccl_trace_rank_0"
    file.write_bytes(pickle.dumps(stuck(2, 1, 2)[0], protocol=2))
    with pytest.raises(RingtuneError, match=r"nccl_trace_rank_0: a pickled dump, .* may run code .*--allow-pickle"):
        import_run([tmp_path], tmp_path / "run")


class _Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_no_dump_runs_code(protocol: int, tmp_path: Path) -> None:
    file = tmp_path / "nccl_trace_rank_0"
    file.write_bytes(pickle.dumps({"pg_config": {}, "entries": [_Evil(tmp_path / "made")]}, protocol=protocol))
    with pytest.raises(RingtuneError, match=r"it names \w+\.mkdir, which no dump does"):
        import_run([file], tmp_path / "run", allow_pickle=True)
    assert not (tmp_path / "made").exists()


@settings(deadline=None, max_examples=60)
@given(kept=st.integers(1, 1500), pickled=st.booleans())
def test_a_torn_dump_is_left_out_and_named(kept: int, pickled: bool, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("torn")
    documents = stuck(3, 2, 5)
    write(folder, {rank: documents[rank] for rank in (0, 1)})
    whole = pickle.dumps(documents[2], protocol=2) if pickled else orjson.dumps(documents[2])
    torn = folder / ("nccl_trace_rank_2" if pickled else "nccl_trace_rank_2.json")
    torn.write_bytes(whole[: min(kept, len(whole) - 1)])
    made = import_run([folder], folder / "run", allow_pickle=True)
    assert made.trace.ranks == (0, 1) and made.report.missing == (2,)
    assert any("nccl_trace_rank_2" in problem for problem in made.report.problems)


@settings(deadline=None, max_examples=60)
@given(
    key=st.sampled_from(sorted(entry(1))),
    value=st.sampled_from([None, -1, 1e300, "x", [], {}, [["a"]], True, 2**70]),
)
def test_an_odd_entry_costs_its_file_at_most(key: str, value: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("odd")
    documents = stuck(3, 2, 3)
    documents[2]["entries"][0][key] = value
    write(folder, {rank: documents[rank] for rank in (0, 1)})
    (folder / "nccl_trace_rank_2").write_bytes(pickle.dumps(documents[2], protocol=2))
    made = import_run([folder], folder / "run", allow_pickle=True)
    assert set(made.trace.ranks) >= {0, 1} and made.source.hang is not None
    assert all("nccl_trace_rank_2" in problem for problem in made.report.problems)


def test_a_dump_whose_name_has_no_rank_and_one_that_comes_twice(tmp_path: Path) -> None:
    documents = stuck(2, 1, 2)
    (tmp_path / "dump.json").write_bytes(orjson.dumps(documents[0]))
    with pytest.raises(RingtuneError, match=r"which rank's dump is it\? .*name it nccl_trace_rank_N"):
        import_run([tmp_path], tmp_path / "run")
    folder = write(tmp_path / "in", documents)
    (folder / "other_1.json").write_bytes(orjson.dumps(documents[1]))
    with pytest.raises(RingtuneError, match=r"rank 1 comes twice: .*; give each rank's dump once"):
        import_run([folder], tmp_path / "run")


REAL = """
import datetime, json, os, sys, time
import torch, torch.distributed as dist
from torch._C import _distributed_c10d as c10d

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
rank = dist.get_rank()
for step in range(3):
    dist.all_reduce(torch.ones(4))
# The recorder learns a moment after the caller that a call is done.
while not all(call["retired"] for call in json.loads(c10d._dump_fr_trace_json())["entries"]):
    time.sleep(0.01)
if rank == 0:
    dist.all_reduce(torch.ones(1000), async_op=True)
for suffix, dump in (("", c10d._dump_fr_trace), (".json", c10d._dump_fr_trace_json)):
    with open(f"{sys.argv[1]}/nccl_trace_rank_{rank}{suffix}", "wb") as file:
        file.write(dump())
# A rank that ends fails the others' calls, which are then no longer open.
open(f"{sys.argv[2]}-{rank}", "w").close()
while not all(os.path.exists(f"{sys.argv[2]}-{other}") for other in (0, 1)):
    time.sleep(0.01)
os._exit(0)
"""


@pytest.mark.slow
def test_real_dumps_of_torch(tmp_path: Path) -> None:
    needs("torch")
    script, folder = tmp_path / "job.py", tmp_path / "in"
    folder.mkdir()
    script.write_text(REAL)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run(
        [*launch, str(script), str(folder), str(tmp_path / "dumped")],
        env={**os.environ, "TORCH_FR_BUFFER_SIZE": "100"},
        timeout=120,
        check=True,
    )
    made = import_run([folder], tmp_path / "run", allow_pickle=True)
    lines = made.sentences()
    assert lines[0] == "HANG: rank 1 did not come to gloo:all_reduce number 4 of group 0 (default_pg)"
    assert lines[2].startswith("  last call of rank 1: gloo:all_reduce number 3 of group 0 (done): <module> (")
    assert lines[2].endswith("job.py:9)")
    made = import_run(sorted(folder.glob("*.json")), tmp_path / "run")
    assert "no Python stack in this dump" in made.sentences()[2]
