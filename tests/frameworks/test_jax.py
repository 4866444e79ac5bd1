"""`ringtune.jax` keeps the contract of all front ends."""

from __future__ import annotations

import pytest

from tests.frameworks.contract import Contract

pytest.importorskip("jax", reason="JAX is not installed; `make test-frameworks` makes an environment with it")
FRONT = "jax"


class TestJax(Contract):
    front = FRONT
