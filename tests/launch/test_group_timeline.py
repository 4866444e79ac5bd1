"""Timelines of jobs with several process groups on ringtune's backend, in a world of its own or of another backend."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

from ringtune.timeline.inputs import load
from ringtune.timeline.vocabulary import FOREIGN_BATCHES, Stage
from tests.launch.test_record import BIN, read, run

STEPS = 24
SLOW_S = 0.03

GROUPS = """
import time, torch, torch.distributed as dist
dist.init_process_group("WORLD")
rank = dist.get_rank()
even = dist.new_group([0, 2], backend="ringtune", group_desc="even")
unnamed = dist.new_group([1, 2], backend="ringtune")
weight = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(STEPS):
    weight.grad = torch.full((3,), float(rank))
    if rank == 2:
        time.sleep(SLOW_S)
    if rank != 1:
        dist.all_reduce(weight.grad, group=even)
        assert weight.grad.tolist() == [2.0] * 3
    if rank != 0:
        works = [dist.all_reduce(torch.ones(100 + at), group=unnamed, async_op=True) for at in range(3)]
        for work in works:
            work.wait()
        token = torch.full((2,), float(step))
        dist.send(token, 2, group=unnamed) if rank == 1 else dist.recv(token, 1, group=unnamed)
        assert token.tolist() == [step] * 2
    optimizer.step()
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize("world", ["ringtune", pytest.param("gloo", marks=pytest.mark.long)])
def test_the_timeline_has_every_group_with_its_name_and_names_its_late_rank(world: str, tmp_path: Path) -> None:
    script = GROUPS.replace("WORLD", world).replace("STEPS", str(STEPS)).replace("SLOW_S", str(SLOW_S))
    done = run(tmp_path, script, [BIN / "ringtune", "run", "-np", "3", "--timeline", "trace.json", sys.executable])
    assert done.returncode == 0, done.stderr
    spans = load(tmp_path / "trace.json").spans
    texts = spans.tensor_texts()
    moved = [place for place, stage in enumerate(spans.stage) if stage == Stage.COMMUNICATE]
    ranks: dict[str, set[int]] = {"even": set(), "group 2": set()}
    batches: dict[tuple[str, int], set[int]] = {}
    messages: Counter[tuple[int, str]] = Counter()
    for place in moved:
        label, _, name = texts[place].partition(": ")
        rank, batch = int(spans.rank[place]), int(spans.batch[place])
        if name.startswith(("send", "recv")):
            messages[rank, name] += 1
        elif label in ranks:
            ranks[label].add(rank)
            batches.setdefault((label, rank), set()).add(batch)
            assert 1 << 29 < batch < FOREIGN_BATCHES.start
            assert 0 <= spans.step[place] <= STEPS
    assert ranks == {"even": {0, 2}, "group 2": {1, 2}}
    assert batches["even", 0] == batches["even", 2] and batches["group 2", 1] == batches["group 2", 2]
    assert not batches["even", 0] & batches["group 2", 1]
    assert len(batches["even", 0]) == STEPS
    assert messages == {(1, "send to 1"): STEPS, (2, "recv from 0"): STEPS}
    waited = {
        int(peer) for peer, stage in zip(spans.fact("peer", -1), spans.stage, strict=True) if stage == Stage.AWAIT
    }
    assert waited <= {0, 1, 2}, "ranks of the world"
    verdicts = read(tmp_path, "stragglers")["verdicts"]
    cost: Counter[int] = Counter()
    for one in verdicts:
        cost[one["rank"]] += one["cost_ns"]
    assert verdicts[0]["rank"] == 2 and verdicts[0]["late_steps"] > STEPS / 2
    assert cost[2] > cost[0] + cost[1], "on a busy machine others are late too, for shorter times"
    assert read(tmp_path, "summary", "--all-steps")["steps"]["count"] == STEPS
    names = spans.name_texts()
    phases = Counter(names[place] for place, stage in enumerate(spans.stage) if stage == Stage.RANGE)
    assert phases["optimizer"] == 3 * STEPS
