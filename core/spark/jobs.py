"""``ringtune.spark.run`` and ``run_elastic``: a function as a barrier stage, with the arguments of Horovod's."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

from ringtune.engines import calls, ranks
from ringtune.engines.ranks import EngineJob
from ringtune.errors import ConfigError, InvalidArgument, RankFailed, Timeout
from ringtune.spark import task

_START_TIMEOUT_S = 600.0
_LOOK_EVERY_S = 0.5
_RENAMED = {"min_np": "min_num_proc", "max_np": "max_num_proc"}
_WITHOUT_EFFECT = ("extra_mpi_args", "executable")
NO_CONTEXT = "Could not find an active SparkContext, are you running in a PySpark session?"
"""Horovod's words."""


def run(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    start_timeout: float | None = None,
    use_mpi: bool | None = None,
    use_gloo: bool | None = None,
    extra_mpi_args: str | None = None,
    env: Mapping[str, str] | None = None,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
    verbose: int = 1,
    nics: Sequence[str] | str | None = None,
    prefix_output_with_timestamp: bool = False,
    executable: str | None = None,
) -> list[Any]:
    """Call ``fn(*args, **kwargs)`` on every rank of a new job and return the results by rank.

    The ranks are the tasks of one barrier stage; those of one machine share memory, whichever executor they are in.

    Args:
        fn: The function; it and its arguments are pickled with cloudpickle.
        args: Positional arguments.
        kwargs: Keyword arguments.
        num_proc: Number of ranks; default: ``sc.defaultParallelism``.
        start_timeout: Seconds to wait for so many free task slots; default: ``HOROVOD_SPARK_START_TIMEOUT``, or 600.
        use_mpi: Accepted for Horovod's sake: ringtune has a runtime of its own.
        use_gloo: Likewise.
        extra_mpi_args: Without effect.
        env: Further variables of the ranks. ringtune's of this process go along; no others do.
        stdout: Gets what the ranks' Python code prints, when they have ended; default: the executors' logs.
        stderr: Likewise for standard error.
        verbose: 2 and more: say what is started.
        nics: Network interfaces of links between hosts.
        prefix_output_with_timestamp: Without effect.
        executable: Without effect: ranks run in Spark's own Python workers (``spark.pyspark.python``).

    Raises:
        InvalidArgument: There is no SparkContext, arguments exclude each other or cannot be pickled.
        Timeout: There are fewer task slots than ranks.
        RankFailed: A rank raised an exception, which is the cause of this one, or its process died.
    """
    if use_mpi and use_gloo:
        raise InvalidArgument("ringtune.spark.run: give use_mpi or use_gloo, not both; ringtune needs neither")
    for name, value in (("extra_mpi_args", extra_mpi_args), ("executable", executable)):
        if value is not None:
            warnings.warn(f"ringtune.spark.run({name}=...) has no effect", stacklevel=2)
    what = "ringtune.spark.run"
    context = active_context()
    packed = calls.pack(what, fn, args, kwargs)
    size = _whole(what, "num_proc", context.defaultParallelism if num_proc is None else num_proc)
    stage = _Stage(what, context, packed, (stdout, stderr), verbose)
    stage.wait_for_slots(size, _start_timeout(start_timeout))
    return stage.run(ranks.new_job("spark", _settings(env, nics)), size)


def run_elastic(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    start_timeout: float | None = None,
    elastic_timeout: float | None = None,
    reset_limit: int | None = None,
    env: Mapping[str, str] | None = None,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
    verbose: int = 1,
    nics: Sequence[str] | str | None = None,
    prefix_output_with_timestamp: bool = False,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Call a function that trains elastically; the stage is started again when one of its processes has died.

    Between two starts the number of ranks follows the free task slots. What ``state.commit()`` saved is kept on the
    hosts' disks and is where the next start goes on. A function that raises an exception of its own fails at once.

    Args:
        fn: The function, with a part wrapped by ``hvd.elastic.run``.
        args: Positional arguments.
        kwargs: Keyword arguments.
        num_proc: Number of ranks to begin with; default: ``sc.defaultParallelism``.
        min_num_proc: Least ranks; default: `num_proc`.
        max_num_proc: Most ranks; default: `num_proc`.
        start_timeout: Seconds to wait for task slots at the start; see `run`.
        elastic_timeout: The same at later starts; default: 600.
        reset_limit: How often the job is started again; default: as often as Spark starts a task again
            (``spark.task.maxFailures`` - 1).
        env: See `run`.
        stdout: See `run`.
        stderr: See `run`.
        verbose: See `run`.
        nics: See `run`.
        prefix_output_with_timestamp: Without effect.
        min_np: Deprecated, use `min_num_proc`.
        max_np: Deprecated, use `max_num_proc`.

    Raises:
        InvalidArgument: See `run`.
        Timeout: There are fewer task slots than `min_num_proc`.
        RankFailed: See `run`; and processes died more often than `reset_limit`.
    """
    what = "ringtune.spark.run_elastic"
    for old, value in (("min_np", min_np), ("max_np", max_np)):
        if value is not None:
            warnings.warn(f"{what}({old}=...) is deprecated, use {_RENAMED[old]}", DeprecationWarning, stacklevel=2)
    context = active_context()
    packed = calls.pack(what, fn, args, kwargs)
    size = _whole(what, "num_proc", context.defaultParallelism if num_proc is None else num_proc)
    least = _whole(what, "min_num_proc", _first(min_num_proc, min_np, size))
    most = _whole(what, "max_num_proc", _first(max_num_proc, max_np, size))
    if not least <= size <= most:
        raise InvalidArgument(f"{what}: expected min_num_proc <= num_proc <= max_num_proc, got {least}, {size}, {most}")
    resets = int(context.getConf().get("spark.task.maxFailures", "4")) - 1 if reset_limit is None else reset_limit
    stage = _Stage(what, context, packed, (stdout, stderr), verbose)
    job = ranks.new_job("spark", _settings(env, nics), keeps_state=True)
    timeout_s = _start_timeout(start_timeout)
    for restart in range(resets + 1):
        slots = stage.wait_for_slots(least, timeout_s)
        try:
            return stage.run(dataclasses.replace(job, restart=restart), min(most, slots))
        except _ProcessDied as error:
            if restart == resets:
                raise RankFailed(f"{error} (start {restart + 1} of {resets + 1}; reset_limit)") from None
            print(f"{error}; the stage is started again", file=sys.stderr, flush=True)
        timeout_s = _START_TIMEOUT_S if elastic_timeout is None else elastic_timeout
    raise InvalidArgument(f"{what}: reset_limit={reset_limit}: expected 0 or more")


class _ProcessDied(RankFailed):
    """A process of the stage ended without an answer."""


@dataclasses.dataclass(frozen=True)
class _Stage:
    """Barrier stages that make one call.

    Attributes:
        what: Who asks for them, for errors.
        context: The SparkContext.
        packed: The call.
        streams: Get the ranks' output.
        verbose: Whether to say what is started.
    """

    what: str
    context: Any
    packed: bytes
    streams: tuple[TextIO | None, TextIO | None]
    verbose: int

    def wait_for_slots(self, least: int, timeout_s: float) -> int:
        """Wait until so many tasks can run at a time; none of them is held meanwhile. Return how many can.

        Raises:
            Timeout: There are fewer; at once where there can be no more.
        """
        deadline = time.monotonic() + timeout_s
        while (slots := self._slots()) < least:
            fixed = self.context.master.split("[")[0] == "local"  # and not local-cluster[...]
            if fixed or time.monotonic() >= deadline:
                waited = "" if fixed else f" after {timeout_s:g} s"
                raise Timeout(
                    f"{self.what}: {least} ranks need {least} task slots at a time, and Spark ({self.context.master}) "
                    f"has {slots}{waited}: ask for fewer ranks, or for more executors and cores"
                )
            time.sleep(_LOOK_EVERY_S)
        return slots

    def run(self, job: EngineJob, size: int) -> list[Any]:
        """Run one stage of so many ranks; return the results by rank."""
        from py4j.protocol import Py4JJavaError

        if self.verbose > 1:
            print(f"{self.what}: {size} ranks as a barrier stage, job {job.name}", file=sys.stderr, flush=True)
        captures = any(stream is not None for stream in self.streams)
        tasks = self.context.parallelize(range(size), size).barrier()
        try:
            answers = tasks.mapPartitions(task.body(job, self.packed, captures)).collect()
        except Py4JJavaError as error:
            raise _ProcessDied(str(calls.died(self.what, _reason(error)))) from None
        self._show(answers)
        found = calls.results(self.what, answers)
        if job.keeps_state:
            self.context.parallelize(range(size), size).foreach(lambda _: ranks.forget_state(job))
        return found

    def _slots(self) -> int:
        scala = self.context._jsc.sc()
        return int(scala.maxNumConcurrentTasks(scala.resourceProfileManager().defaultResourceProfile()))

    def _show(self, answers: Sequence[calls.Answer]) -> None:
        for number, name in enumerate(("stdout", "stderr")):
            stream = self.streams[number]
            if stream is None:
                continue
            for one in answers:
                stream.writelines(f"[{one.rank}]<{name}>:{line}\n" for line in one.output[number].splitlines())


def active_context() -> Any:
    """Return the active SparkContext.

    Raises:
        ConfigError: pyspark is missing.
        InvalidArgument: There is none.
    """
    try:
        from pyspark import SparkContext
    except ImportError as error:
        raise ConfigError(f"ringtune.spark: pyspark cannot be imported: {error}: pip install pyspark") from None
    found = SparkContext._active_spark_context
    if found is None:
        raise InvalidArgument(NO_CONTEXT)
    return found


def _settings(env: Mapping[str, str] | None, nics: Sequence[str] | str | None) -> dict[str, str]:
    names = nics if isinstance(nics, str) else ",".join(nics or ())
    return {**({"RINGTUNE_INTERFACE": names} if names else {}), **(env or {})}


def _start_timeout(given: float | None) -> float:
    text = os.environ.get("HOROVOD_SPARK_START_TIMEOUT", "").strip()
    try:
        return float(text) if given is None and text else _START_TIMEOUT_S if given is None else float(given)
    except ValueError:
        raise ConfigError(f"HOROVOD_SPARK_START_TIMEOUT={text!r}: expected seconds") from None


def _whole(what: str, name: str, number: Any) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise InvalidArgument(f"{what}: {name}={number!r}: expected a whole number of at least 1")
    return number


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)


def _reason(error: Any) -> str:
    """Return why Spark gave a stage up, without the traces of its own code."""
    text = str(error.java_exception.getMessage() or error.java_exception)
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("at ")]
    return " ".join(lines)[:600]
