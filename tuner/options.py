"""Budget and patience of a tuning session."""

from __future__ import annotations

from dataclasses import dataclass

_NOISY = 0.07


@dataclass(frozen=True)
class OnlineOptions:
    """Budget and patience of a session.

    Attributes:
        max_trials: Trials of the search, the default included, confirmations not.
        steps_per_trial: Steps counted in a trial.
        warmup_steps: First steps of the job that are discarded.
        settle_steps: Steps discarded after every change of knobs; at least 1.
        patience: The search ends after this many trials of the sampler without progress.
        min_gain: Share of the step time that counts as progress.
        block_ns: Least time a setting runs in a block of the confirmation: the operating system's disturbances last for
            tens of milliseconds, and a block must be longer than one of them.
        window_ns: Least time of a trial and of the steps of the default before it, for the same reason.
        quiet_ns: Time discarded after the advisor's answer: on a full machine the operating system needs tens of
            milliseconds until every rank has a core of its own again.
        budget: Most that may be lost to the search, as a share of the training time so far; None = no bound.
        credit_steps: The bound begins with what so many steps of the default would allow.
        afford_steps: Steps of the default that the search waits at most until a trial can be afforded; then it ends.
        horizon_steps: Steps over which a gain counts: the search ends when what may still be found, over so many
            steps, is less than a trial costs.
        advisor_wait_ns: Training time after which an advisor that does not answer is given up.
        world: Number of ranks, for the journal.
    """

    max_trials: int = 16
    steps_per_trial: int = 10
    warmup_steps: int = 5
    settle_steps: int = 2
    patience: int = 6
    min_gain: float = 0.01
    block_ns: int = 100_000_000
    window_ns: int = 50_000_000
    quiet_ns: int = 50_000_000
    budget: float | None = 0.02
    credit_steps: int = 1000
    afford_steps: int = 500
    horizon_steps: int = 10_000
    advisor_wait_ns: int = 60_000_000_000
    world: int = 1

    @property
    def block_steps(self) -> int:
        """Steps of the default before each trial, and of each setting in a block of the confirmation."""
        return max(3, self.steps_per_trial // 2)

    def confirm_steps(self, spread: float) -> int:
        """Steps of each setting in a block of the confirmation, by the spread of the default's steps.

        Where steps vary a lot, longer blocks: the steps discarded between blocks are then a smaller part.
        """
        return max(self.block_steps, self.steps_per_trial) if spread > _NOISY else self.block_steps
