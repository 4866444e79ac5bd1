"""`Session.submit`, the one way into the runtime: what it refuses, and a front end that has nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

from ringtune import operations
from tests import pages
from tests.jobs.cases import seam as cases
from tests.jobs.launching import Job

GetJob = Callable[..., Job]

KINDS = (
    "Allreduce", "GradientReport", "Allgather", "Broadcast", "Alltoall", "Reducescatter", "Barrier", "Join",
    "AddProcessSet", "RemoveProcessSet",
)  # fmt: skip
WRONG: dict[str, list[Any]] = {
    "name": [7, None, b"x", "\ud800"],
    "group": [3, None],
    "input": ["0", -1, 1 << 64, 1.5],
    "output": [None, -1],
    "shape": ["four", [1.5], 4, [1 << 70]],
    "splits": [None, ["a"]],
    "ranks": [3, ["a"], None],
    "dtype": ["float32", 1 << 40, None],
    "op": ["sum", 1 << 40],
    "prescale": ["x", None],
    "postscale": [[1.0]],
    "group_size": [-1, "2"],
    "process_set": [-1, 1 << 40, "0"],
    "number": [-1, "1"],
    "wire": ["bfloat16"],
    "root": [None, 0.5],
    "device": [(0, 0, 0), ("cpu", 0), None],
    "timeout_ns": [1.5, "5"],
}
FAULTS = [
    (kind, field.name, value)
    for kind in KINDS
    for field in fields(getattr(operations, kind))
    for value in WRONG.get(field.name, [])
]


def test_every_class_of_operations_is_tried() -> None:
    classes = {name for name, found in vars(operations).items() if hasattr(found, "__dataclass_fields__")}
    assert classes == set(KINDS)
    assert {field.name for kind in KINDS for field in fields(getattr(operations, kind))} == {*WRONG, "sparse"}


@pytest.mark.parametrize("size", [1, 2])
def test_a_field_that_the_runtime_cannot_take_is_named(size: int, job: GetJob) -> None:
    for said in job(size).run(cases.refused, faults=FAULTS):
        wrong = [
            (fault, text)
            for fault, text in zip(FAULTS, said, strict=True)
            if not text.startswith(f"{fault[0]}: {fault[1]}=")
        ]
        assert wrong == []


@pytest.mark.parametrize("sizes", [[7], [1, 0, 100_000, 3]])
def test_a_group_names_its_members(sizes: list[int], job: GetJob) -> None:
    names = [(f"several_{index}of{len(sizes)}", "several", len(sizes)) for index in range(1, len(sizes) + 1)]
    assert job(2).run(cases.grouped, sizes=sizes) == [names, names]


def test_a_group_without_members_is_refused(job: GetJob) -> None:
    job(2).run(cases.no_group)


def test_a_ticket_that_is_over_is_refused_in_every_way(job: GetJob) -> None:
    (raised,) = job(1).run(cases.follow, ticket=1 << 40)
    words = f"InvalidArgument: Ticket {1 << 40} was not created or has been cleared."
    assert raised == dict.fromkeys(cases.FOLLOWING, words)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_the_front_end_of_the_page_serves_two_ranks(transport: str, job: GetJob) -> None:
    (block,) = [one for one in pages.read(pages.ROOT / "core" / "README.md").blocks() if one.title]
    assert block.text.count("\n") <= 200
    for wrong, mismatch in job(2, transport).run(cases.front_end, source=block.text):
        assert wrong == "allreduce_async: values is a list, expected an array of one of B, b, h, i, q, f, d"
        assert "allreduce.other" in mismatch
