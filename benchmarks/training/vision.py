"""torchvision's models, also where torchvision's compiled operators do not fit the installed torch.

The index ships torchvision's wheel for CUDA; beside a CPU build of torch its operator library cannot be loaded, and the
import then fails while it registers shape functions for undeclared operators. The benchmarks need only the
models, so the operators are declared (never implemented) beforehand.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ringtune.errors import UsageError

if TYPE_CHECKING:
    from types import ModuleType

# The operators that `torchvision/_meta_registrations.py` looks up by name while it is imported.
_OPERATORS = ("nms", "qnms")
_SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
# A torch.library.Library undeclares its operators when it is collected, so it lives as long as the process.
_declared: torch.library.Library | None = None


def models() -> ModuleType:
    """Returns the module `torchvision.models`.

    Raises:
        UsageError: torchvision is not installed.
    """
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        raise UsageError("torchvision is not installed; install it with: pip install torchvision -c constraints.txt")
    if _declared is None and not _operators_load(Path(spec.origin).parent):
        _declare_operators()
    return importlib.import_module("torchvision.models")


def _operators_load(folder: Path) -> bool:
    """Loads torchvision's operator library as its own import would; False when it does not fit this torch."""
    try:
        torch.ops.load_library(next(folder.glob("_C*.so"), folder / "_C.so"))
    except OSError:
        return False
    return True


def _declare_operators() -> None:
    global _declared
    _declared = torch.library.Library("torchvision", "DEF")
    for name in _OPERATORS:
        _declared.define(name + _SIGNATURE)


def check_model(name: str) -> None:
    """Checks that `name` is an image classification model of torchvision.

    Raises:
        UsageError: unknown; the message names the nearest ones.
    """
    module = models()
    known = module.list_models(module=module)
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3) or sorted(known)[:5]
        raise UsageError(f"torchvision has no classification model {name!r}; near: {', '.join(near)}")


def build_model(name: str) -> torch.nn.Module:
    """Returns model `name` with random weights from torch's current seed.

    Raises:
        UsageError: unknown name.
    """
    check_model(name)
    # Inception and GoogLeNet warn that their slow default initialisation will change; the benchmark takes the default.
    extra: dict[str, Any] = {"init_weights": True} if name in ("googlenet", "inception_v3") else {}
    model: torch.nn.Module = models().get_model(name, weights=None, **extra)
    return model
