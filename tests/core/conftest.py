"""Fixtures of the core's tests: sessions over a fake native runtime."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ringtune import extensions, native, session
from ringtune.bootstrap import rank_process
from ringtune.config import Config
from ringtune.session import Session
from tests.core import fake_native


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put the fake in the native runtime's place and leave no session open."""
    made = fake_native.module()
    monkeypatch.setattr(native, "load", lambda: made)
    monkeypatch.setattr(extensions, "registered", list)
    monkeypatch.setenv(rank_process.VARIABLE, "")  # so that what a session leaves there is taken away again
    fake_native.FakeStore.values.clear()
    yield
    session.shutdown()


@pytest.fixture
def opened(fake: None, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Session]:
    """Open a session with the given environment, as ``import ringtune.torch as hvd; hvd.init()`` would."""
    import ringtune.torch as hvd

    def open_with(size: int = 1, **environ: Any) -> Session:
        for name, value in environ.items():
            monkeypatch.setenv(name, str(value))
        if size > 1:
            for name, value in (("RANK", 0), ("SIZE", size), ("STORE", "127.0.0.1:1")):
                monkeypatch.setenv(f"RINGTUNE_{name}", str(value))
        hvd.init()
        now = Session.current()
        assert now is not None
        return now

    return open_with


@pytest.fixture
def config() -> Callable[..., Config]:
    """Read a configuration from the given variables alone."""
    return lambda **environ: Config.from_environ({name: str(value) for name, value in environ.items()})
