"""The confirmation: candidates measured against the default again, block by block, until one verdict is safe.

Trials of the search were taken at different times and the best of many noisy values is partly luck (the winner's
curse: Horovod's tuner keeps its luckiest sample). So the search only proposes candidates. Here the default and the
candidates run in short blocks right after each other, in alternating order, and only differences within a block
count: drift of the machine cancels. Looks are few and fixed, and the allowed error is shared among looks and
candidates, so that looking several times does not make a lucky verdict likely.

Source: group-sequential tests with equal shares: Pocock 1977, Biometrika 64 (here with Bonferroni's bound, which
needs no assumption about how the looks depend on each other).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

from ringtune.knobs import Knobs
from ringtune.tuner.scoring import NO_GAIN, Interval, log_ratio, paired_gain

LOOKS = (4, 6, 9, 13, 19, 28)
FUTILE_ALPHA = 0.1


@dataclass
class Rival:
    """A candidate in the comparison: its step times and its log ratio to the default by block."""

    knobs: Knobs
    samples: list[int] = field(default_factory=list)
    log_ratios: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Verdict:
    """Outcome of the comparison.

    Attributes:
        winner: The confirmed candidate; None when the default stays.
        rival: The candidate that came closest (the winner, when there is one).
        gain: Gain of that candidate with the interval the verdict rests on.
    """

    winner: Rival | None
    rival: Rival | None
    gain: Interval


class Comparison:
    """Paired comparison of candidates with the default; pure, fed block by block.

    Args:
        candidates: Settings to compare, best guess first.
        alpha: Probability that a setting no better than the default is confirmed, over the whole comparison.
        min_gain: Share of the step time below which a gain is not worth looking for.
        backwards: Whether the default comes last in the first block; for when a candidate is running already.

    Attributes:
        rivals: The candidates with what was measured.
        default_samples: Step times of the default in all blocks, in nanoseconds.
        knobs_versions: Version of the knobs under which each setting ran last; kept by the caller.
        blocks: Blocks added.
        verdict: The outcome; None while it is open.
    """

    def __init__(
        self, candidates: Sequence[Knobs], alpha: float = 0.05, min_gain: float = 0.01, backwards: bool = False
    ) -> None:
        self.rivals = [Rival(knobs) for knobs in candidates]
        self.default_samples: list[int] = []
        self.knobs_versions: dict[Knobs, int] = {}
        self.blocks = 0
        self.verdict: Verdict | None = None if candidates else Verdict(None, None, NO_GAIN)
        self._alpha = alpha / len(LOOKS) / max(len(candidates), 1)
        self._min_gain, self._backwards = min_gain, backwards
        self._active = list(self.rivals)

    def order(self, default: Knobs) -> list[Knobs]:
        """Return the settings of the next block; every other block runs backwards, which cancels linear drift."""
        settings = [default, *(rival.knobs for rival in self._active)]
        return settings if self.blocks % 2 == self._backwards else settings[::-1]

    def add_block(self, default: Sequence[int], times: dict[Knobs, list[int]]) -> None:
        """Add one block.

        Args:
            default: Step times of the default, in nanoseconds.
            times: Step times of every candidate still compared, in nanoseconds.
        """
        self.default_samples.extend(default)
        for rival in self._active:
            rival.samples.extend(times[rival.knobs])
            rival.log_ratios.append(log_ratio(times[rival.knobs], default))
        self.blocks += 1
        if self.blocks in LOOKS:
            self._look()

    def abandon(self) -> None:
        """End the comparison now, for the default: nothing more may be lost."""
        if self.verdict is None:
            leader = self.leader()
            self.verdict = Verdict(None, leader, self.gain(leader) if leader is not None else NO_GAIN)

    @property
    def rivals_left(self) -> int:
        """How many candidates are still compared."""
        return len(self._active)

    @property
    def next_look(self) -> int:
        """After how many blocks the comparison may end next."""
        return next((look for look in LOOKS if look > self.blocks), LOOKS[-1])

    def leader(self) -> Rival | None:
        """Return the candidate that is best so far; None before the first block."""
        measured = [rival for rival in self._active if rival.log_ratios]
        return min(measured, key=lambda rival: fmean(rival.log_ratios), default=None)

    def gain(self, rival: Rival) -> Interval:
        """Gain of a candidate with the interval that decides."""
        return paired_gain(rival.log_ratios, self._alpha)

    def _look(self) -> None:
        leader = min(self._active, key=lambda rival: fmean(rival.log_ratios))
        if self.gain(leader).low > 0.0:
            self.verdict = Verdict(leader, leader, self.gain(leader))
            return
        # Candidates that, at 90 %, gain too little are left out.
        self._active = [r for r in self._active if paired_gain(r.log_ratios, FUTILE_ALPHA).high >= self._min_gain]
        if not self._active or self.blocks >= LOOKS[-1]:
            self.verdict = Verdict(None, leader, self.gain(leader))
