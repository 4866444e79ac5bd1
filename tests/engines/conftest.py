"""Fixtures: the loss that a single process reaches, and functions that travel to an engine's workers by value."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import cloudpickle
import pytest

from tests.engines import cases

TIMEOUT_S = 60.0

cloudpickle.register_pickle_by_value(cases)


@pytest.fixture(scope="session")
def alone() -> float:
    """Return the loss that one process reaches on all rows of the digits."""
    return cases.train_alone()


@pytest.fixture
def text_of() -> Callable[[Path], str]:
    """Return a function that waits for a file and returns its text."""

    def read(path: Path) -> str:
        deadline = time.monotonic() + TIMEOUT_S
        while not path.exists() or not path.read_text(encoding="utf-8"):
            assert time.monotonic() < deadline, f"{path} was never written"
            time.sleep(0.05)
        return path.read_text(encoding="utf-8")

    return read


@pytest.fixture
def noticed(record_property: Callable[[str, object], None]) -> Callable[[Path], None]:
    """Return a function that checks how soon the others got their error after `cases.die`, and records it."""

    def check(folder: Path) -> None:
        after = float((folder / "noticed").read_text()) - float((folder / "killed").read_text())
        record_property("noticed_after_s", round(after, 3))
        assert after < cases.NOTICED_WITHIN_S

    return check
