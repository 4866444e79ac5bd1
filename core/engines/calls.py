"""A function that every rank of a job calls, and what comes back to the program that asked for it."""

from __future__ import annotations

import contextlib
import io
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

from ringtune.engines.ranks import EngineJob, as_rank
from ringtune.errors import InvalidArgument, RankFailed, RingtuneError
from ringtune.launch.call import CallFailure, failure_of


@dataclass(frozen=True)
class Answer:
    """What a rank sends back.

    Attributes:
        rank: Its rank.
        value: The pickled result; None where there is none.
        failure: Why there is none.
        output: What it wrote to standard output and standard error, where that was asked for.
    """

    rank: int
    value: bytes | None = None
    failure: CallFailure | None = None
    output: tuple[str, str] = ("", "")


def pack(what: str, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> bytes:
    """Pickle a call, so that a function defined in a notebook travels too.

    Args:
        what: Who asks, for the error.
        function: The function.
        args: Its positional arguments.
        kwargs: Its keyword arguments.

    Raises:
        InvalidArgument: It is no function, or cannot be pickled.
    """
    if not callable(function):
        raise InvalidArgument(f"{what}: expected a function, got {type(function).__name__}")
    try:
        packed: bytes = cloudpickle.dumps((function, tuple(args), dict(kwargs or {})))
    except Exception as error:  # the objects' own methods may raise anything
        raise InvalidArgument(f"{what}: the function or its arguments cannot be pickled: {error}") from error
    return packed


def answer(job: EngineJob, own: Mapping[str, str], packed: bytes, *, captures: bool = False) -> Answer:
    """Make a call as a rank; exceptions become part of the answer and are reported to the other ranks.

    Args:
        job: The job.
        own: The rank's variables.
        packed: The call.
        captures: Whether to send back what Python code writes.
    """
    rank = int(own["RINGTUNE_RANK"])
    texts = io.StringIO(), io.StringIO()
    with contextlib.ExitStack() as stack:
        if captures:
            stack.enter_context(contextlib.redirect_stdout(texts[0]))
            stack.enter_context(contextlib.redirect_stderr(texts[1]))
        value, failure = _called(job, own, packed, rank)
    return Answer(rank, value, failure, (texts[0].getvalue(), texts[1].getvalue()))


def _called(
    job: EngineJob, own: Mapping[str, str], packed: bytes, rank: int
) -> tuple[bytes | None, CallFailure | None]:
    try:
        with as_rank(job, own):
            function, args, kwargs = cloudpickle.loads(packed)
            result = function(*args, **kwargs)
    except (Exception, SystemExit) as error:
        return None, failure_of(rank, socket.gethostname(), error)
    try:
        return cloudpickle.dumps(result), None
    except Exception as error:  # the object's own methods may raise anything
        what = f"returned a {type(result).__name__} that cannot be sent: {error}; return plain data"
        return None, CallFailure(rank, socket.gethostname(), what)


def results(what: str, answers: Sequence[Answer]) -> list[Any]:
    """Return the results by rank.

    Args:
        what: Who asked, for the error.
        answers: One of every rank.

    Raises:
        RankFailed: A rank has none; the exception of the rank where it began is the cause.
    """
    refuse_failures(what, answers)
    return [_value(what, one) for one in sorted(answers, key=lambda one: one.rank)]


def refuse_failures(what: str, answers: Iterable[Answer]) -> None:
    """Raise the error of a call that failed on a rank; see `results`.

    Raises:
        RankFailed: It did.
    """
    failed = [one.failure for one in answers if one.failure is not None]
    if failed:
        first = next((failure for failure in failed if not failure.follows), failed[0])
        raise _error(what, first) from first.cause()


def died(what: str, how: str) -> RankFailed:
    """Return the error for a process that ended without an answer.

    Args:
        what: Who asked.
        how: What the engine says of it.
    """
    return RankFailed(f"{what}: a process of the job ended without a result: {how}")


def _value(what: str, one: Answer) -> Any:
    assert one.value is not None
    try:
        return cloudpickle.loads(one.value)
    except Exception as error:  # the object's own methods may raise anything
        raise RingtuneError(f"{what}: the result of rank {one.rank} cannot be unpickled here: {error}") from error


def _error(what: str, failure: CallFailure) -> RankFailed:
    origin = f"rank {failure.rank} on {failure.host}"
    trace = f"\n\nOn {origin}: {failure.trace}" if failure.trace else ""
    error = RankFailed(f"{what}: {origin} {failure.what}{trace}")
    error.rank, error.host, error.traceback = failure.rank, failure.host, failure.trace
    return error
