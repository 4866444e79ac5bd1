"""Access to the native runtime: loads ``ringtune._native`` when first needed and translates its exceptions."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from ringtune import errors
from ringtune.bootstrap import open_files, tls
from ringtune.errors import RingtuneError

_CLASSES: dict[str, type[RingtuneError]] = {
    "PeerLost": errors.PeerLost,
    "Timeout": errors.Timeout,
    "Mismatch": errors.Mismatch,
    "SomeAbsent": errors.SomeAbsent,
    "SomeSparse": errors.SomeSparse,
    "InvalidArgument": errors.InvalidArgument,
    "Protocol": errors.Protocol,
    "ShutDown": errors.ShutDown,
    "TraceIo": errors.TraceIoError,
    "TraceIoError": errors.TraceIoError,
    "DeviceError": errors.DeviceError,
    "InvariantError": errors.InvariantError,
}


@functools.cache
def load() -> Any:
    """Return the extension module.

    Raises:
        RingtuneError: The extension is not built for this interpreter.
        ConfigError: TLS is asked for, and this host cannot or may not.
    """
    try:
        module = import_module("ringtune._native")
    except ImportError as error:
        raise RingtuneError(
            f"ringtune's native runtime cannot be loaded ({error}); install the package with a C++20 compiler present: "
            "`pip install .` in its repository, then `ringtune check`"
        ) from error
    if files := tls.files_of(os.environ):
        try:
            module.use_tls(*files)
        except module.Error as error:
            raise errors.ConfigError(str(error)) from None
    return module


def error_class() -> type[Exception]:
    """Return the extension's base exception, for ``except`` clauses."""
    base: type[Exception] = load().Error
    return base


def translate(error: BaseException) -> RingtuneError:
    """Return the `ringtune.errors` twin of an exception of the extension; others become `RuntimeFailure`."""
    if isinstance(error, RingtuneError):
        return error
    text = open_files.explained(str(error))
    for kind in type(error).__mro__:
        if kind.__name__ in _CLASSES:
            return _CLASSES[kind.__name__](text)
    return errors.RuntimeFailure(text)


@contextmanager
def translated() -> Iterator[None]:
    """Turn exceptions of the extension raised inside into those of `ringtune.errors`."""
    base = error_class()
    try:
        yield
    except base as error:
        raise translate(error) from None
