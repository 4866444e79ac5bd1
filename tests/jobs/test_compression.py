"""Compressed gradients over real ranks: equal on all, exact where numbers allow it, within stated bounds elsewhere.

Bounds: a number is rounded to float16 by 2^-11 of itself at most, to bfloat16 by 2^-8. Each contribution is rounded
once; over links, and in shared memory from three ranks on, sums are too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

import ringtune.torch as hvd
from tests.jobs.cases import compression as cases
from tests.jobs.cases import training
from tests.jobs.launching import Job

GetJob = Callable[..., Job]

WORLDS = pytest.mark.parametrize(
    ("size", "transport"), [(2, "shm"), (2, "tcp"), (3, "shm"), (3, "tcp")], scope="module"
)
FEEDBACK = pytest.mark.parametrize("compression", ["powersgd", "topk"])


def equal(found: list[Any]) -> bool:
    return all(one == found[0] for one in found)


@WORLDS
@pytest.mark.parametrize("count", [1, 1001, 300_007])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("compression", ["fp16", "bf16"])
def test_casts_round_within_their_bound(
    compression: str, dtype: str, count: int, size: int, transport: str, job: GetJob
) -> None:
    assert equal(job(size, transport).run(cases.cast_sum, compression=compression, dtype=dtype, count=count))


@WORLDS
@pytest.mark.parametrize("op", ["Average", "Sum", "Min", "Max", "Product"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32"])
@pytest.mark.parametrize("compression", ["fp16", "bf16"])
def test_casts_of_small_integers_are_exact(
    compression: str, dtype: str, op: str, size: int, transport: str, job: GetJob
) -> None:
    job(size, transport).run(cases.cast_exact, compression=compression, dtype=dtype, op=getattr(hvd, op))


@WORLDS
def test_numbers_beyond_float16_become_infinite_unless_prescaled(size: int, transport: str, job: GetJob) -> None:
    for cast, scaled, wide in job(size, transport).run(cases.overflow):
        assert math.isinf(cast)
        assert scaled == pytest.approx(1e5, rel=2**-9) and wide == pytest.approx(1e5, rel=2**-7)


@WORLDS
def test_gradients_are_cast_as_well(size: int, transport: str, job: GetJob) -> None:
    assert job(size, transport).run(cases.gradient_of_cast) == [float(size)] * size


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_rank_that_has_joined_changes_nothing(transport: str, job: GetJob) -> None:
    first, second, third = job(3, transport).run(cases.joined)
    assert first == third == [-4.0, -12.0, -6.0] and second == []


@WORLDS
@pytest.mark.parametrize(
    "options",
    [{}, {"backward_passes_per_step": 2}, {"grouped": [[0, 1], [2, 3]]}, {"groups": 2}],
    ids=["plain", "passes", "groups", "number of groups"],
)
@FEEDBACK
def test_what_was_sent_and_the_residuals_are_all_gradients(
    compression: str, options: dict[str, Any], size: int, transport: str, job: GetJob
) -> None:
    found = job(size, transport).run(cases.identity, compression=compression, steps=6, options=options)
    assert equal([bits for bits, _, _ in found])
    for _, worst, largest in found:
        assert largest > 1, "nothing was compressed"
        # Elements that top-k sends or keeps are never rounded; PowerSGD's products are, by 2^-24 of their size.
        assert worst == 0 if compression == "topk" else worst < 2e-3


@WORLDS
def test_top_k_sends_the_largest_elements(size: int, transport: str, job: GetJob) -> None:
    assert all(job(size, transport).run(cases.chosen, steps=5))


@WORLDS
@pytest.mark.parametrize("rank", [1, 2])
def test_a_gradient_of_low_rank_is_recovered(rank: int, size: int, transport: str, job: GetJob) -> None:
    assert all(error < 1e-4 for error in job(size, transport).run(cases.low_rank, rank=rank))


def test_the_first_steps_travel_uncompressed(job: GetJob) -> None:
    assert job(2).run(cases.starts_later) == [[True, True, False]] * 2


@pytest.mark.parametrize(
    "compressions",
    [("fp16", "none", "none"), ("fp16", "bf16", "fp16"), ("none", "topk", "none"), ("topk", "none", "topk"),
     ("powersgd", "none", "none"), ("powersgd", "powersgd, rank 1", "powersgd"), ("topk", "topk, one in five", "topk"),
     ("topk", "powersgd", "topk"), ("topk", "powersgd", "none")],
    ids=", ".join,
)  # fmt: skip
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_ranks_that_compress_differently_fail_and_go_on(
    compressions: tuple[str, ...], transport: str, job: GetJob
) -> None:
    for message, afterwards in job(3, transport).run(cases.disagree, compressions=list(compressions)):
        assert "Mismatched" in message or "different settings" in message
        assert afterwards == 3


@FEEDBACK
def test_a_saved_state_goes_on_as_if_nothing_had_happened(compression: str, job: GetJob) -> None:
    found = job(2).run(cases.interrupted, compression=compression)
    assert equal(found) and all(first == second for first, second in found)


@FEEDBACK
def test_a_residual_is_loaded_only_where_it_was_saved(compression: str, job: GetJob) -> None:
    found = job(2).run(cases.loaded_elsewhere, compression=compression)
    assert any(found[0][0]) and not any(found[1][0])
    assert found[0][1] == found[1][1]


def test_state_that_the_root_alone_has_loaded_is_agreed_on(job: GetJob) -> None:
    assert equal(job(2).run(cases.loaded_by_the_root_alone))


@pytest.mark.parametrize("compression", ["fp16", "powersgd", "topk"])
def test_process_sets(compression: str, fresh: GetJob) -> None:
    first, second, third = fresh(3, dynamic_process_sets=1).run(cases.in_a_set, compression=compression)
    assert first == second != "" and third == ""


def test_repeated_steps_follow_a_plan(job: GetJob) -> None:
    for windows in job(2).run(cases.steady, compression="fp16"):
        assert (0, 0) in windows


LOSSES = {"fp16": 2e-3, "bf16": 2e-2, "powersgd": 0.15, "topk": 0.15}
"""How far the loss may lie from that without compression after training, as a share of what training gained."""


@WORLDS
@pytest.mark.parametrize("compression", list(LOSSES))
def test_training_reaches_the_same_loss(compression: str, size: int, transport: str, job: GetJob) -> None:
    plain = job(size, transport).run(training.learn, steps=60)[0][1]
    found = job(size, transport).run(training.learn, steps=60, compression=cases.COMPRESSIONS[compression])
    assert equal([prints for prints, _, _ in found])
    _, loss, before = found[0]
    assert loss - plain <= LOSSES[compression] * (before - plain)
