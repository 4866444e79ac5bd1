"""Faults at random moments of a job: nothing hangs, everybody is told of whom, nothing is left behind."""

from __future__ import annotations

import random

import pytest

from tests.launch import trials
from tests.launch.trial_worker import PHASES

ROUNDS = 4
"""Of all faults in all phases: 280 trials."""


@pytest.mark.parametrize(
    ("fault", "phase", "transport"), [("killed", "ring", "auto"), ("raise", "repeated steps", "tcp")]
)
def test_a_fault_while_ranks_work_together(fault: str, phase: str, transport: str) -> None:
    found = trials.run(trials.Trial(fault, phase, transport, victim=1, delay_s=0.1))
    assert found.met and found.told and not found.wrong, found
    assert {kind for kind, *_ in found.told.values()} == {"PeerLost" if fault == "killed" else "ShutDown"}


@pytest.mark.slow
@pytest.mark.parametrize("fault", trials.FAULTS)
def test_a_fault_in_a_random_phase(fault: str) -> None:
    rng = random.Random()
    transport = "tcp" if fault in trials.NETWORK else rng.choice(["auto", "tcp"])
    trial = trials.Trial.drawn(fault, rng.choice(PHASES), transport, rng)
    found = trials.run(trial)
    assert not found.wrong, (trial, found)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_every_fault_in_every_phase() -> None:
    found = [trials.run(trial) for trial in trials.drawn(ROUNDS, seed=random.randrange(1 << 30))]
    assert sum(one.met for one in found) >= 200
    assert not [one for one in found if one.wrong]
