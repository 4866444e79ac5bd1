"""``ringtune.run``: call a function on several ranks from Python, for example from a notebook."""

from __future__ import annotations

import signal
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle  # type: ignore[import-untyped]

from ringtune.errors import InvalidArgument, RankFailed, RingtuneError
from ringtune.launch.options import ElasticOptions, LaunchOptions

if TYPE_CHECKING:
    from ringtune.launch.call import Call, CallFailure
    from ringtune.launch.supervisor import Outcome

_RENAMED = {"np": "num_proc", "min_np": "min_num_proc", "max_np": "max_num_proc"}
_WITHOUT_EFFECT = ("disable_cache", "mpi_args")


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: tuple[float, float] | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    host_discovery_script: str | None = None,
    start_timeout: float | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,
    output_filename: str | None = None,
    verbose: int | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | Sequence[str] | None = None,
    network_interfaces: str | Sequence[str] | None = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Call ``func(*args, **kwargs)`` on every rank of a new job and return the results by rank.

    Args:
        func: The function; it and its arguments are pickled with cloudpickle, so it may be defined in a notebook.
        args: Positional arguments.
        kwargs: Keyword arguments.
        num_proc: Number of ranks; default: all slots of the hosts, or 1.
        min_num_proc: Least ranks of an elastic job.
        max_num_proc: Most ranks of an elastic job.
        slots: Slots of a host whose line of the discovery script gives none.
        reset_limit: How often the ranks of an elastic job may change.
        cooldown_range: Seconds until a host where ranks failed gets new ones.
        hosts: ``host:slots,host2:slots``; default: this machine.
        hostfile: File of lines ``host slots=N``.
        host_discovery_script: Prints the hosts of an elastic job.
        start_timeout: Seconds the ranks wait for each other.
        ssh_port: Port of ssh on other hosts.
        ssh_identity_file: Key for ssh.
        disable_cache: Without effect, as is `mpi_args`.
        output_filename: Folder that keeps the output of each rank.
        verbose: 1 and more: say what is started.
        use_gloo: Accepted for Horovod's sake: ringtune has a runtime of its own.
        use_mpi: Likewise.
        mpi_args: Without effect.
        network_interface: Network interfaces of links between hosts, as a list or separated by commas; the first that a
            host has counts.
        network_interfaces: Likewise.
        executable: Python interpreter of the ranks; default: this one.
        np: Deprecated, use `num_proc`.
        min_np: Deprecated, use `min_num_proc`.
        max_np: Deprecated, use `max_num_proc`.

    Returns:
        Results by rank; of an elastic job those of the first `min_num_proc` ranks.

    Raises:
        InvalidArgument: Arguments exclude each other, or the function or its arguments cannot be pickled.
        RankFailed: A rank raised an exception, which is the cause of this one, or ended without a result.
        KeyboardInterrupt: Ctrl-C ended the job.
    """
    given = {name: value for name, value in locals().items() if value is not None}
    wanted = _renamed(given)
    if hosts is not None and hostfile is not None:
        raise InvalidArgument("run(): give hosts or hostfile, not both")
    if use_gloo and use_mpi:
        raise InvalidArgument("run(): give use_gloo or use_mpi, not both; ringtune needs neither")
    options = _options(wanted)
    from ringtune.launch.call import Call
    from ringtune.launch.launcher import launch

    call = Call(_payload(func, args, kwargs))
    launch(replace(options, call=call))
    return _results(call, wanted.get("min_num_proc"))


def _payload(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> bytes:
    try:
        payload: bytes = cloudpickle.dumps((func, tuple(args), dict(kwargs or {})))
    except Exception as error:  # the objects' own methods may raise anything
        raise InvalidArgument(f"run(): the function or its arguments cannot be pickled: {error}") from error
    return payload


def _results(call: Call, least: int | None) -> list[Any]:
    """Return the results by rank.

    Args:
        call: A call whose job has ended.
        least: How many an elastic job must have; None = every rank must have one.
    """
    outcome = call.outcome
    assert outcome is not None
    if outcome.interrupted_by == signal.SIGINT:
        raise KeyboardInterrupt
    if outcome.exit_code != 0 or len(call.results) < (least or call.size):
        raise _failed(call, outcome) from _cause(call)
    ranks = sorted(call.results)
    return [_result(rank, call.results[rank]) for rank in ranks[: least or len(ranks)]]


def _result(rank: int, text: bytes) -> Any:
    try:
        return cloudpickle.loads(text)
    except Exception as error:  # the object's own methods may raise anything
        raise RingtuneError(f"ringtune.run: the result of rank {rank} cannot be unpickled here: {error}") from error


def _first_failure(call: Call) -> CallFailure | None:
    """Return why the job failed: the first that follows from no other; None when that rank could not say."""
    own = [failure for failure in call.failures if not failure.follows]
    if own:
        return own[0]
    ended = call.outcome.failure if call.outcome is not None else None
    died = ended is not None and all(failure.rank != ended.rank for failure in call.failures)
    return call.failures[0] if call.failures and not died else None


def _cause(call: Call) -> BaseException | None:
    failure = _first_failure(call)
    return failure.cause() if failure is not None else None


def _failed(call: Call, outcome: Outcome) -> RankFailed:
    failure, ended = _first_failure(call), outcome.failure
    if failure is not None:
        origin = f"rank {failure.rank} on {failure.host}"
        trace = f"\n\nOn {origin}: {failure.trace}" if failure.trace else ""
        error = RankFailed(f"ringtune.run: {origin} {failure.what}{trace}")
        error.rank, error.host, error.traceback = failure.rank, failure.host, failure.trace
    elif ended is not None:
        error = RankFailed(f"ringtune.run: {ended}; the ranks' output says why")
        error.rank, error.host = ended.rank, ended.host
    else:
        silent = sorted({*range(call.size)} - {*call.results})
        error = RankFailed(f"ringtune.run: ranks {silent} ended without a result: by os._exit(0)?")
    error.exit_code = outcome.exit_code
    return error


def _renamed(given: dict[str, Any]) -> dict[str, Any]:
    wanted = dict(given)
    for old, new in _RENAMED.items():
        if old in wanted:
            warnings.warn(f"run({old}=...) is deprecated, use {new}", DeprecationWarning, stacklevel=3)
            wanted.setdefault(new, wanted.pop(old))
    for name in _WITHOUT_EFFECT:
        if name in wanted:
            warnings.warn(f"run({name}=...) has no effect here", stacklevel=3)
    return wanted


def _options(wanted: Mapping[str, Any]) -> LaunchOptions:
    elastic = None
    if any(name in wanted for name in ("min_num_proc", "max_num_proc", "host_discovery_script")):
        script = wanted.get("host_discovery_script")
        elastic = ElasticOptions(
            min_np=wanted.get("min_num_proc"),
            max_np=wanted.get("max_num_proc"),
            script=Path(script) if script else None,
            default_slots=wanted.get("slots", 1),
            reset_limit=wanted.get("reset_limit"),
            cooldown_s=wanted.get("cooldown_range"),
        )
    named_hosts = "hosts" in wanted or "hostfile" in wanted
    paths = {
        name: Path(wanted[name]) for name in ("hostfile", "ssh_identity_file", "output_filename") if name in wanted
    }
    settings = {"RINGTUNE_START_TIMEOUT": str(wanted["start_timeout"])} if "start_timeout" in wanted else {}
    named = [wanted[name] for name in ("network_interface", "network_interfaces") if name in wanted]
    if interfaces := ",".join(one if isinstance(one, str) else ",".join(one) for one in named):
        settings["RINGTUNE_INTERFACE"] = interfaces
    return LaunchOptions(
        command=[wanted.get("executable", sys.executable), "-m", "ringtune.launch.call"],
        num_proc=wanted.get("num_proc", None if named_hosts else wanted.get("min_num_proc", 1)),
        hosts=wanted.get("hosts"),
        hostfile=paths.get("hostfile"),
        settings=settings,
        output_folder=paths.get("output_filename"),
        ssh_port=wanted.get("ssh_port"),
        ssh_identity_file=paths.get("ssh_identity_file"),
        verbose=bool(wanted.get("verbose")),
        elastic=elastic,
    )
