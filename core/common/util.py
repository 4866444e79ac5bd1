"""Small helpers that scripts import from ``horovod.common.util``."""

from __future__ import annotations

import functools
import importlib.util
import os
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, TypeVar

from ringtune.common import job
from ringtune.common.exceptions import HorovodVersionMismatchError
from ringtune.errors import InvalidArgument

T = TypeVar("T")
_SERVED = ("torch", "tensorflow", "mxnet")


def split_list(items: Sequence[T], parts: int) -> list[list[T]]:
    """Split a sequence into so many runs whose lengths differ by at most one; longer ones come first."""
    size, more = divmod(len(items), parts)
    ends = [part * size + min(part, more) for part in range(parts + 1)]
    return [list(items[begin:end]) for begin, end in pairwise(ends)]


def num_rank_is_power_2(num_rank: int) -> bool:
    """Return whether the number is a power of two."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def is_iterable(x: Any) -> bool:
    """Return whether one can iterate over it."""
    try:
        iter(x)
    except TypeError:
        return False
    return True


@contextmanager
def env(**kwargs: str | None) -> Iterator[None]:
    """Set environment variables in the body; None removes one."""
    before = {name: os.environ.get(name) for name in kwargs}
    _set_variables(kwargs)
    try:
        yield
    finally:
        _set_variables(before)


def _set_variables(values: dict[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _cache(f: Callable[..., T]) -> Callable[..., T]:
    """Return the function with its results remembered by arguments."""
    return functools.cache(f)


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Return whether a framework is served here: ``torch``, ``tensorflow`` and ``mxnet``, where they are installed."""
    return ext_base_name in _SERVED and importlib.util.find_spec(ext_base_name) is not None


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: Any) -> None:
    """Check that a framework is served.

    Raises:
        ImportError: It is not.
    """
    if ext_name.rpartition(".")[2] not in _SERVED:
        raise ImportError(f"Extension {ext_name} has not been built: ringtune serves PyTorch, TensorFlow and MXNet")


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Return whether tensors of the framework on CUDA devices are reduced there: those of ``torch``."""
    if ext_base_name != "torch" or not extension_available(ext_base_name):
        return False
    import torch

    return torch.cuda.is_available()


def mpi_built(verbose: bool = False) -> bool:
    """Return whether MPI carries the data, as ``hvd.mpi_built()``."""
    return _built("mpi_built")


def gloo_built(verbose: bool = False) -> bool:
    """Return True, as ``hvd.gloo_built()``."""
    return _built("gloo_built")


def nccl_built(verbose: bool = False) -> bool:
    """Return whether NCCL is there."""
    return _built("nccl_built")


def ddl_built(verbose: bool = False) -> bool:
    """Return False, as ``hvd.ddl_built()``."""
    return _built("ddl_built")


def ccl_built(verbose: bool = False) -> bool:
    """Return False, as ``hvd.ccl_built()``."""
    return _built("ccl_built")


def _built(name: str) -> bool:
    return bool(getattr(job, name)())


def get_ext_suffix() -> str:
    """Return the suffix of extension modules of this Python."""
    return str(sysconfig.get_config_var("EXT_SUFFIX") or ".so")


def check_installed_version(name: str, version: str, exception: Exception | None = None) -> None:
    """Compare a framework's version with the one ringtune was built for: it is built against none, so any will do.

    Raises:
        HorovodVersionMismatchError: There was a failure already, for which the version is given as the reason.
    """
    if exception is not None:
        raise HorovodVersionMismatchError(name, version, "any") from exception


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Return whether a version is at least another, both as ``major.minor.patch``.

    Raises:
        InvalidArgument: The target has another form.
    """
    numbers = target.split(".")
    if len(numbers) != 3 or not all(number.isdigit() for number in numbers):
        raise InvalidArgument(f"is_version_greater_equal_than: {target!r} is no version major.minor.patch")
    return _numbers(ver) >= _numbers(target)


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.partition("+")[0].split(".")
    found = ["".join(c for c in part if c.isdigit()) for part in parts[:3]]
    return tuple(int(part or 0) for part in [*found, "0", "0"][:3])
