"""What `ringtune bench train` makes of samples; models and batches; jobs that really train are in test_jobs.py."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ringtune.benchmarks.harness.peers import Selection
from ringtune.benchmarks.harness.races import CaseResult, Outcome
from ringtune.benchmarks.harness.requirements import missed_peers, parse_rules
from ringtune.benchmarks.training import models
from ringtune.benchmarks.training.config import TrainingTask
from ringtune.benchmarks.training.gpt import Gpt
from ringtune.benchmarks.training.models import Batch, build_model, describe, items_per_step, unit
from ringtune.benchmarks.training.train import TrainRequest, step_ns, train_markdown, train_record

RESNET = TrainingTask("resnet18", 4, 32)
GPT = TrainingTask("gpt", 2, 32, sequence_length=8)
SENDERS = {"alone": "alone", "ddp-gloo": "ddp-gloo"}
# Seconds per step: two ranks of four images each.
TIMES_S = {"ringtune": 0.5, "ringtune-ddp": 0.8, "alone": 0.4, "ddp-gloo": 1.0, "one": 0.25}
IN_STEP_S = {"ringtune": 0.5, "alone": 0.4, "ringtune-in-step": 0.45}
UNDER_DDP_S = {"ringtune": 0.5, "ringtune-ddp": 0.8, "ringtune-hook": 1.0, "ddp-alone": 0.4}


def record_of(task: TrainingTask = RESNET, **times_s: float) -> dict[str, object]:
    result = CaseResult({name: [seconds * 1e9] * 3 for name, seconds in (times_s or TIMES_S).items()})
    request = TrainRequest(2, 1, [task], 3, Selection(("ringtune", "alone", "ddp-gloo"), {}))
    return train_record(request, Outcome([result]))


def case_of(record: dict[str, object]) -> dict[str, dict[str, dict[str, float]]]:
    cases = record["cases"]
    assert isinstance(cases, list)
    [case] = cases
    assert isinstance(case, dict)
    return case


@pytest.mark.parametrize(("by_rank", "expected"), [([4.0], 4.0), ([4.0, 4.0], 4.0), ([2.0, 6.0], 3.0)])
def test_a_step_counts_every_rank_by_its_own_rate(by_rank: list[float], expected: float) -> None:
    assert step_ns(by_rank) == expected


@pytest.mark.parametrize(
    ("name", "rate"), [("ringtune", 16), ("ringtune-ddp", 10), ("alone", 20), ("ddp-gloo", 8), ("one", 16)]
)
def test_the_rate_is_that_of_all_ranks(name: str, rate: float) -> None:
    assert case_of(record_of())["rates"][name]["median"] == rate


def test_ratios_to_alone_and_to_one_process() -> None:
    case = case_of(record_of())
    assert {name: ratio["median"] for name, ratio in case["to_alone"].items()} == {
        "ringtune": 0.8, "ringtune-ddp": 0.5, "ddp-gloo": 0.4, "one": 1.6,
    }  # fmt: skip
    assert {name: ratio["median"] for name, ratio in case["efficiency"].items()} == {
        "ringtune": 0.5, "ringtune-ddp": 0.3125, "alone": 0.625, "ddp-gloo": 0.25,
    }  # fmt: skip


def test_what_runs_under_ddp_is_held_against_ddp_that_reduces_nothing() -> None:
    case = case_of(record_of(**UNDER_DDP_S))
    assert case["best_peer"] is None
    assert {name: ratio["median"] for name, ratio in case["to_ddp_alone"].items()} == {
        "ringtune": 0.8, "ringtune-ddp": 0.5, "ringtune-hook": 0.4,
    }  # fmt: skip


def test_what_waits_for_the_slower_rank_is_held_against_waiting_alone() -> None:
    case = case_of(record_of(**IN_STEP_S))
    assert case["best_peer"] is None
    assert {name: ratio["median"] for name, ratio in case["to_in_step"].items()} == {
        "ringtune": pytest.approx(0.9), "alone": pytest.approx(1.125),
    }  # fmt: skip


def test_the_best_peer_is_one_that_communicates() -> None:
    case = case_of(record_of())
    assert (case["best_peer"], case["ratio"]["median"]) == ("ddp-gloo", 2.0)


def test_without_anybody_to_compare_with() -> None:
    case = case_of(record_of(ringtune=0.5))
    assert (case["best_peer"], case["ratio"], case["to_alone"], case["efficiency"]) == (None, None, {}, {})
    assert train_markdown(record_of(ringtune=0.5)).endswith("| 16 [16, 16] images/s | - | - |")


@pytest.mark.parametrize(
    ("rules", "missed"),
    [
        ("2.0", []),
        ("2.1", ["resnet18, batch 4, 32 px: 2.00x of ddp-gloo, required 2.1x"]),
        ("alone:0.8", []),
        ("alone:0.98", ["resnet18, batch 4, 32 px: 0.80x of alone, required 0.98x"]),
        ("1.0,alone:0.7,ddp-gloo:3", ["resnet18, batch 4, 32 px: 2.00x of ddp-gloo, required 3x"]),
    ],
)
def test_what_is_required(rules: str, missed: list[str]) -> None:
    assert missed_peers(record_of(), parse_rules(rules), SENDERS) == missed


@pytest.mark.parametrize(
    ("task", "items", "what", "text"),
    [(RESNET, 4, "images/s", "resnet18, batch 4, 32 px"), (GPT, 16, "tokens/s", "gpt, batch 2, 8 tokens")],
)
def test_a_language_model_counts_tokens(task: TrainingTask, items: int, what: str, text: str) -> None:
    assert (items_per_step(task), unit(task), describe(task)) == (items, what, text)


@pytest.mark.parametrize("task", [RESNET, GPT], ids=lambda task: task.model)
def test_weights_and_batch_come_from_the_seed(task: TrainingTask) -> None:
    losses = []
    for _ in range(2):
        torch.manual_seed(5)
        model = build_model(task)
        losses.append(Batch(task).loss(model).item())
    assert losses[0] == losses[1] > 0


def test_the_small_gpt_cannot_see_what_comes_later() -> None:
    torch.manual_seed(1)
    model = Gpt().eval()
    tokens = torch.randint(model.shape.vocabulary, (1, 6))
    changed = tokens.clone()
    changed[0, 4] += 1
    with torch.no_grad():
        first, second = model(tokens), model(changed)
    assert torch.equal(first[0, :4], second[0, :4])
    assert not torch.equal(first[0, 4:], second[0, 4:])


@pytest.mark.slow
def test_the_small_gpt_learns_its_batch() -> None:
    torch.manual_seed(1)
    task = replace(GPT, batch_size=1)
    model, batch = models.build_model(task), Batch(task)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    before = batch.loss(model).item()
    for _ in range(3):
        optimizer.zero_grad()
        batch.loss(model).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert batch.loss(model).item() < before / 2
