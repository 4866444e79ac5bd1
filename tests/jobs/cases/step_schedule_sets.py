"""What ranks do in the tests of plans with process sets: steps of several sets at once, and what breaks their plan."""

from __future__ import annotations

import random
import time

import torch

import ringtune.torch as hvd
from ringtune import session
from ringtune.common import process_sets
from ringtune.common.process_sets import ProcessSet, global_process_set
from ringtune.knobs import Knobs
from tests.jobs.cases.step_schedule import until_silent

Sets = list[ProcessSet]


def begin(lists: list[list[int]]) -> None:
    """Join the job with sets that may change later."""
    hvd.init(process_sets="dynamic")
    for ranks in lists:
        hvd.add_process_set(ranks)


def _sets(lists: list[list[int]]) -> Sets:
    known = [ProcessSet(ranks) for ranks in lists]
    for one in known:
        process_sets.register(one)  # finds the one that is there
    return known


def _members(one: ProcessSet) -> list[int]:
    return list(range(hvd.size())) if one is global_process_set else list(one.ranks or [])


def step(number: int, sets: Sets, names: list[str], count: int = 300) -> None:
    """Reduce some tensors in each of the sets that this rank is in; every element is checked."""
    rank = hvd.rank()
    flying = []
    for one in sets:
        if rank not in _members(one):
            continue
        for name in names:
            tensor = torch.full((count,), float(rank + number))
            flying.append((one, tensor, hvd.allreduce_async_(tensor, name=name, op=hvd.Sum, process_set=one)))
    for one, tensor, handle in flying:
        hvd.synchronize(handle)
        members = _members(one)
        expected = sum(members) + number * len(members)
        assert torch.equal(tensor, torch.full((count,), float(expected))), (number, members)


def steady(lists: list[list[int]], together: bool = True) -> list[tuple[int, int]]:
    """Return the control messages and bytes of windows of 20 steps of these sets, until one has none on every rank.

    Args:
        lists: The ranks of each set. Ranks in none of them have nothing to do.
        together: The set of all ranks takes part in the steps too.
    """
    sets = [*_sets(lists), global_process_set] if together else _sets(lists)
    return until_silent(lambda number: step(number, sets, ["a", "b"]), windows=8, attempts=20)


def disturbed(lists: list[list[int]], seed: int, steps: int = 50) -> str:
    """Steps with surprises between them, the same on all ranks, while order and lateness are a rank's own."""
    shared, own = random.Random(seed), random.Random(seed * 100 + hvd.rank())
    sets = [*_sets(lists), global_process_set]
    kinds = ["", "", "", "", "", "new", "missing", "order", "shape", "late", "gather", "sets", "knobs", "alone", "join"]
    for number in range(steps):
        surprise = shared.choice(kinds)
        chosen, names = list(sets), ["a", "b"]
        one = shared.choice(sets)
        if surprise == "order":
            own.shuffle(chosen)
            own.shuffle(names)
        if surprise == "late" and own.random() < 0.5:
            time.sleep(0.005)
        if surprise == "new":
            step(number, [one], [f"new.{number}"])
        if surprise == "missing":
            names.pop()
        if surprise == "alone":
            chosen = [one]
        if surprise == "gather" and hvd.rank() in _members(one):
            found = hvd.allgather(torch.full((1,), float(hvd.rank())), name="gather", process_set=one)
            assert found.tolist() == [float(rank) for rank in _members(one)]
        if surprise == "sets":
            added = hvd.add_process_set([hvd.size() - 1])
            step(number, [added], ["a"])
            assert hvd.remove_process_set(added)
        if surprise == "knobs" and hvd.rank() == 0:
            session.require().propose_knobs(Knobs(fusion_bytes=1024 * (1 + number)))
        if surprise == "join":
            hvd.join()
        step(number, chosen, names, count=200 if surprise == "shape" else 300)
    return "done"
