"""Horovod's names for TensorFlow, in the module where scripts look for some of them."""

from __future__ import annotations

from typing import Any

import ringtune.tensorflow


def __getattr__(name: str) -> Any:
    return getattr(ringtune.tensorflow, name)
