"""For the tuner's tests: no test touches the user's memory of jobs, and the sampler keeps to one thread."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from threadpoolctl import threadpool_limits

from ringtune.tuner import advisor


@pytest.fixture(autouse=True)
def own_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sampler on a starved machine gets the time it needs to store all outcomes."""
    monkeypatch.setattr(advisor, "_CLOSE_TIMEOUT_S", 120.0)


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """The sampler's matrices are tiny: with more threads it waits for them, up to twenty times as long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with threadpool_limits(1):
        yield
    torch.set_num_threads(before)
