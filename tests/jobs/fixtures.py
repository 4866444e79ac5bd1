"""What all folders with jobs have in their `conftest.py`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.jobs.launching import stop_server


@pytest.fixture(scope="session", autouse=True)
def server() -> Iterator[None]:
    """End the process that ranks are forked from after the last test."""
    yield
    stop_server()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Any:
    """Let fixtures know that their test has failed: ``request.node.failed``."""
    report = yield
    if report.when == "call" and report.failed:
        item.failed = True  # type: ignore[attr-defined]
    return report
