"""The tree of errors: every failure ringtune reports on purpose is a `RingtuneError`.

The native runtime's exceptions (`_native.Error` and its subclasses) are turned into these classes in
`ringtune.native`, so users never meet a class of the extension module.
"""

from __future__ import annotations


class RingtuneError(RuntimeError):
    """Base of all errors raised by ringtune."""


class RuntimeFailure(RingtuneError):
    """A collective or the runtime under it failed. Horovod's name for it is `HorovodInternalError`."""


class PeerLost(RuntimeFailure):
    """Another rank died or cannot be reached any more; the job cannot go on."""


class Timeout(RuntimeFailure):
    """A wait with a deadline ended without result; the message names what was missing."""


class Mismatch(RuntimeFailure):
    """Ranks disagree about an operation (shape, dtype, kind, root ...); raised on all of them, the job goes on."""


class SomeAbsent(Mismatch):
    """Only some ranks have a gradient; the optimizer submits it again with zeros where there is none."""


class SomeSparse(Mismatch):
    """Some ranks have a gradient as a sparse tensor; the optimizer submits it again as rows on all ranks."""


class Protocol(RuntimeFailure):
    """A peer sent bytes that do not follow the protocol (another version, a stray connection)."""


class ShutDown(RuntimeFailure):
    """The runtime has been shut down, here or by a peer that left, before the operation could finish."""


class DeviceError(RuntimeFailure):
    """A GPU, or what drives it, is missing or has failed; the message says what the driver said and what to do."""


class InvariantError(RuntimeFailure):
    """A bug in ringtune: an internal check failed. Please report the message."""


class NotInitialized(RuntimeFailure, ValueError):
    """A function was called before ``init()`` or after ``shutdown()``."""


class InitializationFailed(RuntimeFailure, ValueError):
    """``init()`` could not join the job: ranks are missing, or one was lost meanwhile."""


class TraceIoError(RingtuneError):
    """A timeline could not be written or read."""


class ConfigError(RingtuneError, ValueError):
    """A variable of the environment has an invalid value; the message names both."""


class InvalidArgument(RingtuneError, ValueError):
    """An argument is invalid on this rank alone (duplicate name, wrong dtype, bad root ...)."""


class NotSupported(RingtuneError, NotImplementedError):
    """Part of Horovod's interface that ringtune does not have yet; the message says what to use instead."""


class RankFailed(RingtuneError):
    """A rank of `ringtune.run` has no result. What it raised is the cause (``__cause__``), where that can be pickled.

    Attributes:
        rank: The rank.
        host: Its host.
        exit_code: Exit code of the job.
        traceback: Text of the rank's traceback; empty when it raised nothing.
    """

    rank: int = -1
    host: str = ""
    exit_code: int = 0
    traceback: str = ""


class UsageError(RingtuneError):
    """The command line was used in a way that cannot work; printed without traceback, exit code 2."""


HorovodInternalError = RuntimeFailure
