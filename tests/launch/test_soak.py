"""Many changes of an elastic job's ranks in one run: it gets over each, and computes what an undisturbed one does."""

from __future__ import annotations

import random

import pytest

from tests.conftest import needs
from tests.launch import soak

needs("ringtune._native")


def check(changes: int) -> None:
    found = soak.run(changes, random.SystemRandom().randrange(1 << 30))
    assert len(found.changes) == changes
    assert len(found.losses) > changes and not found.wrong()


@pytest.mark.slow
def test_a_change_of_each_kind() -> None:
    check(len(soak.KINDS))


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_thirty_changes() -> None:
    check(30)
