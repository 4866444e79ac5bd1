"""The import hook behind ``import ringtune.as_horovod`` and ``ringtune run --as-horovod``.

Modules of ringtune appear under Horovod's names as the very same modules, so classes and errors are equal whichever
name a script uses.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType

_MODULES = {
    "horovod": "ringtune.alias.root",
    "horovod.torch": "ringtune.torch",
    "horovod.tensorflow": "ringtune.tensorflow",
    "horovod.keras": "ringtune.keras",
    "horovod.mxnet": "ringtune.mxnet",
    "horovod.common": "ringtune.common",
    "horovod.runner": "ringtune.alias.runner",
}
_UNAVAILABLE = ("data", "metrics")

_ENGINES = {
    "horovod.spark.common": "ringtune.spark",
    "horovod.spark": "ringtune.spark",
    "horovod.ray.runner": "ringtune.ray.executor",
    "horovod.ray": "ringtune.ray",
}
"""Horovod's modules for Spark and Ray, whose modules lie elsewhere here; longer names first."""


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds ``horovod`` and everything in it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        real = _real_name(fullname)
        if real is None:
            return None
        if importlib.util.find_spec(real) is None:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def exec_module(self, module: ModuleType) -> None:
        # importlib returns the entry of sys.modules, so both names give the same module.
        real = _real_name(module.__name__)
        assert real is not None
        sys.modules[module.__name__] = importlib.import_module(real)


def _real_name(name: str) -> str | None:
    """Return ringtune's name of a module of Horovod.

    Raises:
        ModuleNotFoundError: It belongs to a framework that ringtune does not serve.
    """
    if name in _MODULES:
        return _MODULES[name]
    parts = name.split(".")
    if parts[0] != "horovod":
        return None
    for known, real in _ENGINES.items():
        if f"{name}.".startswith(f"{known}."):
            return real + name.removeprefix(known)
    if parts[1] in _UNAVAILABLE:
        raise ModuleNotFoundError(
            f"No module named {name!r}: ringtune stands in for Horovod and serves PyTorch, TensorFlow, Keras, "
            "MXNet, Spark and Ray (horovod.torch, .tensorflow, .keras, .mxnet, .spark, .ray)",
            name=name,
        )
    parent = _MODULES.get(".".join(parts[:2]))
    return None if parent is None else ".".join([parent, *parts[2:]])


def install() -> None:
    """Make ``import horovod`` find ringtune in this process.

    Raises:
        ImportError: Horovod itself has been imported already.
    """
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    there = sys.modules.get("horovod")
    if there is not None and not getattr(there, "__ringtune__", False):
        raise ImportError("horovod has been imported already: import ringtune.as_horovod before it")
    sys.meta_path.insert(0, _Finder())
