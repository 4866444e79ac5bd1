"""Sends and receives of scripts that know nothing of ringtune: which belong together, and who waited for whom."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import pytest

from ringtune.errors import RingtuneError
from ringtune.timeline.analysis.messages import messages
from ringtune.timeline.analysis.stragglers import stragglers
from ringtune.timeline.inputs import load
from ringtune.timeline.vocabulary import MESSAGES, Stage
from tests.launch.test_record import BIN, read, run
from tests.launch.test_record_jobs import pipeline

SCHEDULES = 40
STEPS = 12
SLOW_S = 0.08

RANDOM = f"""
import random, torch, torch.distributed as dist
dist.init_process_group("BACKEND")
rank, size = dist.get_rank(), dist.get_world_size()
half = dist.new_group(range(size - 2, size), group_desc="half")
count = 0
truth = []

def message(shared, how):
    "A way, a tag, and as many numbers as no other message has."
    global count
    count += 1
    group = half if how == "batch of half" else None if how == "batch" else shared.choice([None, half])
    members = range(size) if group is None else range(size - 2, size)
    source, target = shared.sample(members, 2)
    truth.append([source, target, 4 * count])
    return source, target, shared.choice([0, 0, 1, 7]), group, torch.full((count,), float(count))

def call(one):
    source, target, tag, group, held = one
    if rank == source:
        return dist.isend(held, target, group, tag), held
    held = torch.zeros_like(held)
    return dist.irecv(held, source, group, tag), held

for number in range({SCHEDULES}):
    shared, own = random.Random(number), random.Random(1000 * number + rank)
    how = shared.choice(["one by one", ANY"at once", "batch", "batch of half"])
    some = [message(shared, how) for _ in range(shared.randint(1, 6))]
    mine = [one for one in some if rank in one[:2]]
    if how in ("one by one", "from any"):
        for source, target, tag, group, held in some:
            if rank == source:
                dist.send(held, target, group, tag)
            elif rank == target:
                got = torch.zeros_like(held)
                found = dist.recv(got, None if how == "from any" else source, group, tag)
                assert found == source and got.equal(held), (found, source)
            if how == "from any":
                dist.barrier()  # what comes later must not be taken for it
        continue
    ways = [(*one[:3], one[3] is half) for one in mine]
    order = list(range(len(mine)))
    own.shuffle(order)  # those of one way and tag stay in their order
    first = {{way: iter([at for at, other in enumerate(ways) if other == way]) for way in set(ways)}}
    mine = [mine[next(first[ways[at]])] for at in order]
    if how.startswith("batch"):
        operations = [
            dist.P2POp(dist.isend, one[4], one[1], one[3], one[2]) if rank == one[0] else
            dist.P2POp(dist.irecv, torch.zeros_like(one[4]), one[0], one[3], one[2])
            for one in mine
        ]
        works = dist.batch_isend_irecv(operations) if operations else []
        held = [one.tensor for one in operations]
    else:
        works, held = map(list, zip(*map(call, mine))) if mine else ([], [])
    at_last = list(works)
    own.shuffle(at_last)
    for work in at_last:
        work.wait()
    assert all(got.equal(one[4]) for got, one in zip(held, mine))
    if shared.random() < 0.5:
        dist.all_reduce(torch.ones(1))
if rank == 0:
    import json
    json.dump(truth, open("truth.json", "w"))
dist.barrier()
dist.destroy_process_group()
"""

MEETING = """
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
"""


def launcher(ranks: int) -> list[str | Path]:
    return [BIN / "ringtune", "run", "-np", str(ranks), "--timeline", "trace.json", sys.executable]


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "backend"), [(2, "gloo"), (3, "gloo"), (3, "ringtune")])
def test_every_receive_of_random_schedules_belongs_to_its_send(ranks: int, backend: str, tmp_path: Path) -> None:
    # Ringtune's backend takes messages from any rank under a tag for those of one size alone.
    script = RANDOM.replace("BACKEND", backend).replace("ANY", '"from any", ' * (backend == "gloo"))
    done = run(tmp_path, script, launcher(ranks))
    assert done.returncode == 0, done.stderr
    spans = load(tmp_path / "trace.json").spans
    found = messages(spans)
    for ends in (found.send, found.receive):
        assert all(number in MESSAGES for number in spans.batch[ends].tolist())
    ways = zip(spans.rank[found.send].tolist(), spans.rank[found.receive].tolist(), strict=True)
    sent = spans.bytes[found.send].tolist()
    assert spans.bytes[found.receive].tolist() == sent, "each message has a size of its own"
    truth = json.loads((tmp_path / "truth.json").read_text(encoding="utf-8"))
    assert len(truth) > 2 * SCHEDULES
    assert sorted([*way, size] for way, size in zip(ways, sent, strict=True)) == sorted(truth)
    assert (spans.batch[spans.in_stage(Stage.COMMUNICATE)] != 0).all()
    events = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    arrows = Counter(event["ph"] for event in events if event.get("cat") == "message")
    assert arrows["s"] == arrows["f"] > len(truth) / 2


@pytest.mark.slow
def test_the_late_stage_of_a_pipeline_is_named(tmp_path: Path) -> None:
    done = run(tmp_path, pipeline(MEETING, STEPS, SLOW_S), launcher(3))
    assert done.returncode == 0, done.stderr
    summary = read(tmp_path, "summary")
    assert not summary["knobs_versions"], "another library carried everything"
    waits = {(one["rank"], one["peer"]): one for one in summary["peer_waits"]}
    late = max(waits.values(), key=lambda one: one["total_ns"])
    assert late["peer"] == 1 and waits[2, 1]["total_ns"] > STEPS * SLOW_S * 1e9 / 2, waits
    assert waits[2, 1]["longest_ns"] > SLOW_S * 1e9 / 2
    with pytest.raises(RingtuneError, match=r"rank [02] waited for rank 1, .* timeline summary"):
        stragglers(load(tmp_path / "trace.json"))
