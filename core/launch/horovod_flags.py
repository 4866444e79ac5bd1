"""Flags of ``horovodrun`` that have nothing to set here: accepted, so that command lines need not be changed.

Each given one is answered by one sentence on standard error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import click

from ringtune.alias.horovod_variables import HOROVOD_IGNORED
from ringtune.errors import UsageError


@dataclass(frozen=True)
class Ignored:
    """A flag without effect.

    Attributes:
        flags: Its names, as click takes them.
        parameter: Name under which click hands over the value.
        reason: Why it has no effect, or what to use.
        type: Click's type of the value; None = a switch.
    """

    flags: str
    parameter: str
    reason: str
    type: Any = None

    @property
    def words(self) -> str:
        """The flag as a user writes it."""
        return self.flags.split("/")[0]


_OWN_RUNTIME = "ringtune has a launcher and a runtime of its own, which need neither MPI nor Gloo"
IGNORED = (
    Ignored("--disable-cache", "disable_cache", "ringtune run keeps no cache of checks"),
    Ignored("--gloo", "gloo", _OWN_RUNTIME),
    Ignored("--mpi", "mpi", _OWN_RUNTIME),
    Ignored("--mpi-args", "mpi_args", "MPI is not used", str),
    Ignored("--binding-args", "binding_args", "MPI is not used; see --thread-affinity", str),
    Ignored(
        "--mpi-threads-disable/--no-mpi-threads-disable",
        "mpi_threads_disable",
        HOROVOD_IGNORED["MPI_THREADS_DISABLE"],
    ),
    Ignored("--tcp", "tcp", "links between hosts are TCP; --transport tcp makes those within a host TCP too"),
    Ignored(
        "--hierarchical-allgather/--no-hierarchical-allgather",
        "hierarchical_allgather",
        HOROVOD_IGNORED["HIERARCHICAL_ALLGATHER"],
    ),
    Ignored("--torus-allreduce/--no-torus-allreduce", "torus_allreduce", HOROVOD_IGNORED["TORUS_ALLREDUCE"]),
    Ignored(
        "--autotune-warmup-samples",
        "autotune_warmup_samples",
        "use --autotune-warmup-steps, which counts steps",
        click.IntRange(min=0),
    ),
    Ignored(
        "--autotune-gaussian-process-noise",
        "autotune_gaussian_process_noise",
        HOROVOD_IGNORED["AUTOTUNE_GAUSSIAN_PROCESS_NOISE"],
        click.FloatRange(0, 1),
    ),
    Ignored(
        "--gloo-timeout-seconds",
        "gloo_timeout_seconds",
        "use --start-timeout, or RINGTUNE_IDLE_TIMEOUT for a collective that stands still",
        click.IntRange(min=0),
    ),
    Ignored(
        "--log-with-timestamp/--log-without-timestamp",
        "log_with_timestamp",
        "ringtune's messages carry no time; --prefix-timestamp puts it before every line",
    ),
    Ignored(
        "--log-hide-timestamp/--no-log-hide-timestamp",
        "log_hide_timestamp",
        "ringtune's messages carry no time; --prefix-timestamp puts it before every line",
    ),
)


def with_ignored(command: Any) -> Any:
    """Add the flags to a command, hidden from its help."""
    for flag in reversed(IGNORED):
        extra = {"is_flag": True} if flag.type is None else {"type": flag.type}
        command = click.option(flag.flags, flag.parameter, default=None, hidden=True, **extra)(command)
    return click.option("--jsrun", is_flag=True, hidden=True)(command)


def warn_ignored(values: Mapping[str, Any]) -> None:
    """Say which of the given flags have no effect.

    Args:
        values: Click's parameters by name.

    Raises:
        UsageError: Flags that exclude each other, or that ask for a launcher that is not there.
    """
    if values.get("gloo") and values.get("mpi"):
        raise UsageError("give --gloo or --mpi, not both; ringtune needs neither")
    if values.get("jsrun"):
        raise UsageError("ringtune run does not start ranks with jsrun; start them with jsrun itself, or give -H")
    for flag in IGNORED:
        if values.get(flag.parameter) is not None:
            click.echo(f"ringtune run: {flag.words} has no effect: {flag.reason}", err=True)
