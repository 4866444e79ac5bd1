"""Training on several ranks is training on one with the joined batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import ringtune.torch as hvd
from tests.jobs.cases import training
from tests.jobs.launching import Job

GetJob = Callable[..., Job]
TRANSPORTS = pytest.mark.parametrize("transport", ["shm", "tcp"])

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "adam": {"optimizer": "Adam"},
    "groups": {"groups": 2},
    "predivide": {"gradient_predivide_factor": 2.0},
    "accumulate": {"backward_passes_per_step": 2},
    "bf16": {"compression": hvd.Compression.bf16},
}


def train(job: Job, **options: Any) -> tuple[list[str], list[torch.Tensor]]:
    """Train, check that all ranks had the same gradients at each step, and return those of rank 0."""
    found = job.run(training.train, options=options)
    for prints, parameters in found[1:]:
        assert prints == found[0][0]
        assert all(torch.equal(a, b) for a, b in zip(parameters, found[0][1], strict=True))
    result: tuple[list[str], list[torch.Tensor]] = found[0]
    return result


@TRANSPORTS
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("variant", list(VARIANTS))
def test_several_ranks_equal_one_with_the_joined_batch(variant: str, size: int, transport: str, job: GetJob) -> None:
    _, alone = train(job(1), optimizer=VARIANTS[variant].get("optimizer", "SGD"), steps=10)
    _, together = train(job(size, transport), steps=10, **VARIANTS[variant])
    tolerance = 2e-3 if variant == "bf16" else 1e-5
    for ours, theirs in zip(together, alone, strict=True):
        assert torch.allclose(ours, theirs, rtol=tolerance, atol=tolerance)


@TRANSPORTS
def test_knobs_changed_while_training_leave_gradients_bit_exact(transport: str, job: GetJob) -> None:
    calm, _ = train(job(2, transport), steps=40)
    changing, _ = train(job(2, transport), steps=40, change_knobs=True)
    assert changing == calm


@TRANSPORTS
@pytest.mark.parametrize("size", [2, 3, 5])
def test_knobs_changed_under_load_leave_sums_exact(size: int, transport: str, job: GetJob) -> None:
    found = job(size, transport).run(training.knobs_under_load, seconds=1.0)
    assert all(rounds > 1 and versions > 1 for rounds, versions in found)


def test_a_proposal_reaches_all_ranks_with_one_version(job: GetJob) -> None:
    versions = job(3).run(training.propose_small_fusion)
    found = job(3).run(training.knobs_now)
    assert versions[1:] == [0, 0] and all(version == versions[0] for _, version in found)
    assert all(knobs["fusion_bytes"] == 12345 for knobs, _ in found)


OPTIMIZERS: dict[str, dict[str, Any]] = {
    "ASGD": {}, "Adadelta": {}, "Adafactor": {}, "Adagrad": {}, "Adam": {}, "AdamW": {"amsgrad": True}, "Adamax": {},
    "LBFGS": {"max_iter": 3}, "Muon": {}, "NAdam": {}, "RAdam": {}, "RMSprop": {"momentum": 0.9, "centered": True},
    "Rprop": {}, "SGD": {"momentum": 0.9}, "SparseAdam": {},
}  # fmt: skip


def test_all_optimizers_of_torch_are_tried() -> None:
    kinds = {name for name in dir(torch.optim) if isinstance(getattr(torch.optim, name), type)}
    made = {name for name in kinds if issubclass(getattr(torch.optim, name), torch.optim.Optimizer)}
    assert made - {"Optimizer"} <= set(OPTIMIZERS)


@pytest.mark.parametrize("size", [2, 3], scope="module")
@pytest.mark.parametrize("wrapped", [False, True], ids=["plain", "wrapped"])
@pytest.mark.parametrize("kind", [name for name in OPTIMIZERS if hasattr(torch.optim, name)])
def test_optimizer_state_reaches_ranks_that_have_none(kind: str, wrapped: bool, size: int, job: GetJob) -> None:
    options = {"kind": kind, "wrapped": wrapped, "options": OPTIMIZERS[kind]}
    assert len(set(job(size).run(training.share_optimizer_state, **options))) == 1


@pytest.mark.parametrize("size", [2, 3])
def test_options_of_an_optimizer_without_state_reach_all_ranks(size: int, job: GetJob) -> None:
    found = job(size).run(training.share_optimizer_state, kind="SGD", wrapped=False, options={})
    assert len(set(found)) == 1 and "'lr': 0.1," in found[0]
