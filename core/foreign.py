"""Records collectives that ringtune does not carry: their stages by the host's clock, and by a GPU's."""

from __future__ import annotations

from ringtune.runtime import Runtime


class ForeignRecorder:
    """What a session records of other libraries' collectives. Any thread.

    Everywhere, ``stage`` and ``kind`` are numbers of ``native/trace/span.h``; ``about`` is bytes, batch, process set,
    dtype.

    Args:
        runtime: The session's.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def record(self, stage: int, kind: int, name: str, begin_ns: int, end_ns: int, *about: int) -> None:
        """Record a stage of a collective.

        Args:
            stage: Which.
            kind: Of operation.
            name: Name.
            begin_ns: Begin on the monotonic clock.
            end_ns: End on it.
            about: As far as they are known.
        """
        self._runtime.record_foreign(stage, kind, name, begin_ns, end_ns, *about)

    def begin(
        self, stage: int, kind: int, name: str, begin_ns: int, about: tuple[int, int, int, int], where: tuple[int, int]
    ) -> int:
        """Time a stage by a GPU, from when its stream has done what it holds now; return what ends or drops it.

        Args:
            stage: The collective itself, or a stream's wait for it.
            kind: Of operation.
            name: Name.
            begin_ns: When it was called, on the monotonic clock.
            about: All four.
            where: Number of the GPU, and the stream's handle.

        Returns:
            0 where it is not timed: nothing is recorded, the driver refuses, or the stream records a CUDA graph.
        """
        return self._runtime.begin_foreign(stage, kind, name, begin_ns, *about, *where)

    def end(self, work: int, stream: int) -> None:
        """Let it end when the stream has done what it holds now; nobody waits for that."""
        self._runtime.end_foreign(work, stream)

    def drop(self, work: int) -> None:
        """Leave it out."""
        self._runtime.drop_foreign(work)
