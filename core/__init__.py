"""ringtune: see, predict and cut the cost of communication in data-parallel training.

Importing this package imports neither the native runtime nor a framework: names are loaded when first used
(PEP 562), so that traces can be read on a machine that has only Python.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ringtune.config import Config
    from ringtune.errors import RingtuneError
    from ringtune.knobs import Knobs
    from ringtune.launch.run_function import run
    from ringtune.session import Session, init, is_initialized, range, shutdown
    from ringtune.stats import StepStats

    __version__: str

__all__ = [
    "Config",
    "Knobs",
    "RingtuneError",
    "Session",
    "StepStats",
    "__version__",
    "init",
    "is_initialized",
    "range",
    "run",
    "shutdown",
]

_HOMES = {
    "Config": "ringtune.config",
    "Knobs": "ringtune.knobs",
    "RingtuneError": "ringtune.errors",
    "Session": "ringtune.session",
    "StepStats": "ringtune.stats",
    "init": "ringtune.session",
    "load_ipython_extension": "ringtune.interactive.magics",
    "unload_ipython_extension": "ringtune.interactive.magics",
    "is_initialized": "ringtune.session",
    "range": "ringtune.session",
    "run": "ringtune.launch.run_function",
    "shutdown": "ringtune.session",
}


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used."""
    value: Any
    if name == "__version__":
        value = _version()
    elif name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module 'ringtune' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names for completion."""
    return sorted({*globals(), *__all__})


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("ringtune")
    except PackageNotFoundError:
        return "0+unknown"
