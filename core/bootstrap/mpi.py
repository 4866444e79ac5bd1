"""Rank 0's word to the other ranks of an MPI job: through mpi4py, or MPI's process manager without MPI.

MPICH's and Intel MPI's mpirun speak PMI-1 on the socket ``PMI_FD``: lines ``cmd=... key=value``. Open MPI's, and others
that set ``PMIX_RANK``, speak PMIx by the library ``libpmix``. Both keep values for the job's processes and have a
barrier. Where the script has loaded mpi4py already, that carries the word.
"""

from __future__ import annotations

import ctypes
import functools
import os
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from ringtune.bootstrap.deadline import Deadline
from ringtune.bootstrap.placement import Placement
from ringtune.errors import ConfigError, RingtuneError, Timeout

_KEY = "ringtune"
_PMIX_LIBRARY = "libpmix.so.2"
_PMIX_STRING, _PMIX_GLOBAL, _PMIX_EVERY_RANK = 3, 3, 0xFFFFFFFE

Share = Callable[["bytes | None"], bytes]
"""Called by all ranks, by rank 0 with its word and by the others with None; returns rank 0's word."""


def way(placement: Placement, environ: Mapping[str, str]) -> Share:
    """Return how rank 0's word reaches the others.

    Raises:
        ConfigError: There is no way; the message says what to set.
    """
    loaded = sys.modules.get("mpi4py.MPI")
    if loaded is not None and loaded.COMM_WORLD.Get_size() == placement.size:
        return functools.partial(_by_mpi4py, loaded.COMM_WORLD)
    if (share := _manager(environ)) is not None:
        return share
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError):  # RuntimeError: it finds no MPI library
        raise ConfigError(
            f"this job of {placement.size} ranks (from {placement.launcher}) spans several hosts and nothing says "
            "where its ranks meet: set RINGTUNE_STORE=host:port on all ranks (a free port on rank 0's host, as in "
            "`mpirun -x RINGTUNE_STORE=node1:29400 ...`), or MASTER_ADDR and MASTER_PORT, or install mpi4py, "
            "or start the job with `ringtune run -H ...`"
        ) from None
    world = MPI.COMM_WORLD.Get_size()
    if world != placement.size:
        raise ConfigError(
            f"this job of {placement.size} ranks (from {placement.launcher}) spans several hosts, and mpi4py sees "
            f"a world of {world}: it was built for another MPI than the launcher's; install mpi4py for that one, "
            "or set RINGTUNE_STORE=host:port on all ranks (a free port on rank 0's host)"
        )
    return functools.partial(_by_mpi4py, MPI.COMM_WORLD)


def within(share: Share, word: bytes | None, deadline: Deadline) -> bytes:
    """Return rank 0's word; all ranks call it.

    Raises:
        Timeout: Not all ranks came in time.
        RingtuneError: The process manager refused.
    """
    found: list[bytes] = []
    failed: list[Exception] = []

    def run() -> None:
        try:
            found.append(share(word))
        except Exception as error:
            failed.append(error)

    # A barrier ends by itself only when the last rank has come; the thread is left to it then.
    thread = threading.Thread(target=run, name="ringtune-mpi", daemon=True)
    thread.start()
    while thread.is_alive() and not deadline.passed:
        thread.join(0.1)
    if failed:
        raise failed[0]
    if not found:
        raise Timeout(
            "not all ranks came to MPI's process manager in time: did all of them call init()? (RINGTUNE_START_TIMEOUT)"
        )
    return found[0]


def _manager(environ: Mapping[str, str]) -> Share | None:
    """Return the process manager's way, None if there is none that can be used here."""
    if environ.get("PMI_FD", "").isdigit():
        return functools.partial(_by_pmi, int(environ["PMI_FD"]))
    if environ.get("PMIX_RANK") and environ.get("PMIX_NAMESPACE"):
        try:
            return functools.partial(_by_pmix, ctypes.CDLL(_PMIX_LIBRARY))
        except OSError:
            return None
    return None


def _by_mpi4py(world: Any, word: bytes | None) -> bytes:
    found: bytes = world.bcast(word, root=0)
    return found


def _by_pmi(descriptor: int, word: bytes | None) -> bytes:
    # The socket stays open, and no `finalize` is sent: MPI may begin its own conversation there later.
    with socket.socket(fileno=os.dup(descriptor)) as link, link.makefile("rw", encoding="ascii", newline="\n") as lines:

        def ask(command: str) -> dict[str, str]:
            lines.write(f"cmd={command}\n")
            lines.flush()
            answer = dict(part.split("=", 1) for part in lines.readline().split() if "=" in part)
            if not answer or answer.get("rc", "0") != "0":
                said = " ".join(f"{name}={value}" for name, value in answer.items()) or "nothing"
                raise RingtuneError(f"MPI's process manager answered {said!r} to PMI's command {command.split()[0]!r}")
            return answer

        ask("init pmi_version=1 pmi_subversion=1")
        space = ask("get_my_kvsname")["kvsname"]
        if word is not None:
            ask(f"put kvsname={space} key={_KEY} value={word.hex()}")
        ask("barrier_in")
        return bytes.fromhex(ask(f"get kvsname={space} key={_KEY}")["value"])


class _Process(ctypes.Structure):
    """``pmix_proc_t``."""

    _fields_ = (("nspace", ctypes.c_char * 256), ("rank", ctypes.c_uint32))


class _Value(ctypes.Structure):
    """``pmix_value_t``: a type, and a union of 16 bytes, of which a string is one member."""

    _fields_ = (("type", ctypes.c_uint16), ("string", ctypes.c_char_p), ("rest", ctypes.c_uint64))


def _by_pmix(library: ctypes.CDLL, word: bytes | None) -> bytes:
    none = ctypes.c_size_t(0)

    def call(name: str, *arguments: object) -> None:
        if (code := getattr(library, name)(*arguments)) != 0:
            raise RingtuneError(f"MPI's process manager refused {name}: PMIx error {code}")

    own = _Process()
    call("PMIx_Init", ctypes.byref(own), None, none)
    try:
        if word is not None:
            value = _Value(_PMIX_STRING, word.hex().encode(), 0)
            call("PMIx_Put", ctypes.c_uint8(_PMIX_GLOBAL), _KEY.encode(), ctypes.byref(value))
            call("PMIx_Commit")
        everyone, first = _Process(own.nspace, _PMIX_EVERY_RANK), _Process(own.nspace, 0)
        call("PMIx_Fence", ctypes.byref(everyone), ctypes.c_size_t(1), None, none)
        found = ctypes.POINTER(_Value)()
        call("PMIx_Get", ctypes.byref(first), _KEY.encode(), None, none, ctypes.byref(found))
        return bytes.fromhex(found.contents.string.decode())
    finally:
        library.PMIx_Finalize(None, none)
