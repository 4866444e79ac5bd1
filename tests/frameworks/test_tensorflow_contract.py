"""`ringtune.tensorflow` keeps the contract of all front ends."""

from __future__ import annotations

import pytest

from tests.frameworks.contract import Contract

pytest.importorskip("tensorflow", reason="TensorFlow is not installed; `make test-frameworks` makes an environment")
FRONT = "tensorflow"


class TestTensorflow(Contract):
    front = FRONT
    accepted = frozenset({"no tensors"})
