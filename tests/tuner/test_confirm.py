from __future__ import annotations

import random

from ringtune.knobs import DEFAULTS, Knobs
from ringtune.tuner.confirm import LOOKS, Comparison
from ringtune.tuner.scoring import NO_GAIN

A, B = Knobs(1 << 20), Knobs(2 << 20)


def feed(comparison: Comparison, factors: dict[Knobs, float], spread: float, seed: int = 0) -> Comparison:
    rng = random.Random(seed)
    while comparison.verdict is None:
        times = {
            knobs: [int(1e6 * factors.get(knobs, 1.0) * rng.lognormvariate(0, spread)) for _ in range(5)]
            for knobs in comparison.order(DEFAULTS)
        }
        comparison.add_block(times.pop(DEFAULTS), times)
    return comparison


def test_every_other_block_runs_backwards() -> None:
    comparison = Comparison([A, B])
    assert comparison.order(DEFAULTS) == [DEFAULTS, A, B]
    comparison.add_block([1], {A: [1], B: [1]})
    assert comparison.order(DEFAULTS) == [B, A, DEFAULTS]


def test_without_candidates_the_default_stays_at_once() -> None:
    verdict = Comparison([]).verdict
    assert verdict is not None and verdict.winner is None and verdict.rival is None and verdict.gain == NO_GAIN


def test_a_clear_gain_is_confirmed_at_the_first_look() -> None:
    comparison = feed(Comparison([A]), {A: 0.8}, 0.01)
    verdict = comparison.verdict
    assert verdict is not None and verdict.winner is not None and verdict.winner.knobs == A
    assert comparison.blocks == LOOKS[0]
    assert 0.15 < verdict.gain.low < 0.2 < verdict.gain.high < 0.25


def test_the_better_of_two_wins() -> None:
    verdict = feed(Comparison([A, B]), {A: 0.9, B: 0.7}, 0.01).verdict
    assert verdict is not None and verdict.winner is not None and verdict.winner.knobs == B


def test_a_slower_candidate_is_given_up_at_the_first_look() -> None:
    comparison = feed(Comparison([A]), {A: 1.2}, 0.01)
    assert comparison.verdict is not None and comparison.verdict.winner is None
    assert comparison.blocks == LOOKS[0]


def test_a_hopeless_candidate_leaves_and_the_other_goes_on() -> None:
    comparison = feed(Comparison([A, B]), {A: 1.5, B: 0.97}, 0.03, seed=3)
    hopeless, other = comparison.rivals
    assert len(hopeless.log_ratios) == LOOKS[0] <= len(other.log_ratios)


def test_it_ends_after_the_last_look() -> None:
    comparison = Comparison([A])
    # Blocks that contradict each other: neither a gain nor its absence can be shown.
    for block in range(LOOKS[-1]):
        assert comparison.verdict is None
        comparison.add_block([100], {A: [70 if block % 2 else 130]})
    assert comparison.verdict is not None and comparison.verdict.winner is None
    assert comparison.blocks == LOOKS[-1]


def test_equal_settings_are_seldom_confirmed() -> None:
    """The whole comparison, with all its looks and candidates, keeps its allowed error of 5 %."""
    wrong = 0
    for seed in range(400):
        verdict = feed(Comparison([A, B]), {}, 0.1, seed).verdict
        wrong += verdict is not None and verdict.winner is not None
    assert wrong <= 30  # 5 % of 400 = 20; more than 30 has a probability below 2 %


def test_a_setting_two_percent_slower_is_never_confirmed() -> None:
    for seed in range(200):
        verdict = feed(Comparison([A]), {A: 1.02}, 0.02, seed).verdict
        assert verdict is not None and verdict.winner is None


def test_what_runs_already_comes_first_in_the_first_block() -> None:
    comparison = Comparison([A], backwards=True)
    assert comparison.order(DEFAULTS) == [A, DEFAULTS]
    comparison.add_block([1], {A: [1]})
    assert comparison.order(DEFAULTS) == [DEFAULTS, A]
