"""Horovod's names for MXNet, in the module where scripts look for some of them."""

from __future__ import annotations

from typing import Any

import ringtune.mxnet


def __getattr__(name: str) -> Any:
    return getattr(ringtune.mxnet, name)
