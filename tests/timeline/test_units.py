"""Numbers as people read them."""

from __future__ import annotations

import pytest

from ringtune.timeline.units import batch_text, several, tensor_text, torn_text
from ringtune.timeline.vocabulary import FOREIGN_BATCHES


@pytest.mark.parametrize(
    ("batch", "tensor", "text"),
    [
        (7, "grad", "7"),
        ((1 << 31) + 7, "grad", "7 (step schedule)"),
        # Group 515, of whose number a batch's holds only what is left modulo 512.
        ((1 << 29) + (3 << 20) + 7, "group 515: grad", "7 (group 515)"),
        ((1 << 29) + (3 << 20) + (1 << 19) + 7, "mesh_dp: grad +3", "7 (mesh_dp, step schedule)"),
        ((1 << 29) + (3 << 20) + 7, "", "7 (of a group)"),
        (FOREIGN_BATCHES.start + 7, "allreduce", "7"),
        ((3 << 29) + (3 << 20) + 7, "tp: allreduce", "7 (tp)"),
        ((0xABCD << 28) + 7, "allreduce", "7"),
    ],
)
def test_a_batch_is_called_by_its_number_in_its_group_or_schedule(batch: int, tensor: str, text: str) -> None:
    assert batch_text(batch, tensor) == text


@pytest.mark.parametrize(
    ("number", "thing", "text"),
    [(1, "trial", "1 trial"), (0, "trial", "0 trials"), (1, "batch", "1 batch"), (2000, "batch", "2,000 batches")],
)
def test_one_thing_is_no_several(number: int, thing: str, text: str) -> None:
    assert several(number, thing) == text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("allreduce.7.1.262656.2", "allreduce of 262,656 float32 (1.00 MiB)"),
        ("allreduce.6.0.512.0 +3", "allreduce of 512 bfloat16 (1 KiB) +3"),
        ("pair.broadcast.4.0.1.1", "pair.broadcast of 1 int64 (8 B)"),
        ("allreduce.layers.7.1.weight", "allreduce.layers.7.1.weight"),
        ("allreduce.99.1.5.0", "allreduce.99.1.5.0"),
        ("", ""),
    ],
)
def test_what_torch_distributed_names_not_is_called_by_what_it_holds(name: str, text: str) -> None:
    assert tensor_text(name) == text


def test_parts_that_end_early_are_counted() -> None:
    assert torn_text([3]) == "the part of rank 3 ends early (killed, or still recording)"
    assert torn_text([0, 1]) == "the parts of ranks 0, 1 end early (killed, or still recording)"
