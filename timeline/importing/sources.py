"""What the user named as traces, one or more a rank: which files there are, which tool wrote each, and whose it is."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ringtune import layout
from ringtune.errors import RingtuneError, TraceIoError
from ringtune.timeline.importing.devices import with_device_ranks
from ringtune.timeline.importing.flight_recorder import Dump, is_dump, read_dump, trace_of
from ringtune.timeline.importing.hang import Hang, find_hang
from ringtune.timeline.importing.nsight import is_nsight, read_nsight
from ringtune.timeline.importing.xla import is_xla, read_xla
from ringtune.timeline.merging.parts import joinable
from ringtune.timeline.reading.reader import read
from ringtune.timeline.reading.stream import EventStream
from ringtune.timeline.spans import Trace

_NAMES = re.compile(r"^(?!perfetto_trace\.).*\.(?:json(?:\.gz)?|sqlite)$|trace_rank_\d+$")
"""Files of a folder that are looked at; flight recorders name theirs without a suffix, and JAX writes some twice."""
_TORCH_NAME = re.compile(r"^(?P<host>.+)_\d+\.\d{10,}\.pt\.trace\.json(?:\.gz)?$")
"""As ``tensorboard_trace_handler`` names a file: host, process, moment."""


@dataclass(frozen=True)
class Source:
    """What was read: traces of one job with known ranks.

    Attributes:
        traces: One or more a rank.
        tools: Which tool wrote each file, by path.
        problems: Files left out, one sentence each.
        hang: Why the job hung, by the dumps of its flight recorders; None where nothing hangs.
    """

    traces: tuple[Trace, ...]
    tools: dict[str, str]
    problems: tuple[str, ...]
    hang: Hang | None = None


def is_kineto(file: Path, head: bytes) -> bool:
    """Whether PyTorch's profiler wrote a file that begins so."""
    return b'"schemaVersion"' in head or b'"deviceProperties"' in head


def read_profile(file: Path) -> list[Trace]:
    """Read one profile of PyTorch's."""
    trace = read(file)
    named = _TORCH_NAME.match(file.name)
    if named and not trace.parts[0].host:
        trace = replace(trace, parts=tuple(replace(part, host=named["host"]) for part in trace.parts))
    return [trace]


@dataclass(frozen=True)
class Tool:
    """A tool whose files can be imported.

    Attributes:
        name: Its name.
        wrote: How to tell its files by their first bytes.
        read: How to read one.
        of_host: Its files are of whole hosts: each gives one trace a device, without ranks.
    """

    name: str
    wrote: Callable[[Path, bytes], bool]
    read: Callable[[Path], list[Trace]]
    of_host: bool = False


FLIGHT_RECORDER = "flight recorder of torch.distributed"

TOOLS = (
    Tool("PyTorch profiler", is_kineto, read_profile),
    Tool("JAX profiler", is_xla, read_xla, of_host=True),
    Tool("Nsight Systems (SQLite export)", is_nsight, read_nsight, of_host=True),
)
_KNOWN = ", ".join([*(tool.name for tool in TOOLS), FLIGHT_RECORDER])


def read_sources(paths: Sequence[Path], *, allow_pickle: bool = False) -> Source:
    """Read files, and all traces in folders and theirs.

    Args:
        paths: Files and folders.
        allow_pickle: Whether pickled dumps of flight recorders may be read.

    Raises:
        RingtuneError: There is no trace, a rank is not known or comes twice, or they are of different jobs.
    """
    traces: list[Trace] = []
    hosts: dict[Path, list[Trace]] = {}
    dumps: dict[int, Dump] = {}
    tools: dict[str, str] = {}
    problems: list[str] = []
    for path in _files(paths):
        try:
            head = next(EventStream(path).chunks(), b"")
            tool = next((tool for tool in TOOLS if tool.wrote(path, head)), None)
            if tool is not None:
                found = tool.read(path)
                tools[str(path)] = tool.name
                if tool.of_host:
                    hosts[path] = found
                else:
                    traces += found
            elif is_dump(path, head):
                _keep(dumps, read_dump(path, allow_pickle=allow_pickle))
            else:
                export = ": export it with `nsys export --type sqlite`" if path.suffix == ".nsys-rep" else ""
                problems.append(f"{path}: not a file of {_KNOWN}{export}; left out")
        except TraceIoError as error:
            problems.append(str(error))
    traces += with_device_ranks(hosts)
    hang = find_hang(list(dumps.values()))
    stalls = hang.instants() if hang else []
    last_ns = max((dump.last_ns for dump in dumps.values()), default=0)
    for rank, dump in dumps.items():
        traces.append(trace_of(dump, last_ns, [found for found in stalls if found.rank == rank]))
        tools[str(dump.path)] = FLIGHT_RECORDER
    _check_ranks(traces)
    usable, unusable = joinable(traces)
    problems += unusable
    if not usable:
        said = f": {problems[0]}" if problems else ""
        raise RingtuneError(
            f"{', '.join(map(str, paths))}: no trace that can be imported{said}; "
            f"give files of {_KNOWN}, or a folder of them"
        )
    _check_sizes(usable)
    return Source(tuple(usable), tools, tuple(problems), hang)


def _files(paths: Sequence[Path]) -> list[Path]:
    found: dict[Path, None] = {}
    for path in paths:
        if path.is_dir() and layout.is_run(path):
            raise RingtuneError(f"{path}: a run folder already; open it with `ringtune timeline summary {path}`")
        if not path.exists():
            raise RingtuneError(f"{path}: no such file or folder; check the path")
        inside = sorted(path.rglob("*")) if path.is_dir() else [path]
        named = [file for file in inside if _NAMES.search(file.name) and file.is_file()] if path.is_dir() else inside
        found |= dict.fromkeys(file.resolve() for file in named)
    return list(found)


def _keep(dumps: dict[int, Dump], dump: Dump) -> None:
    """Take a rank's dump; of one that is there pickled and as JSON, the one with stacks."""
    before = dumps.get(dump.rank)
    if before is not None and before.path.name.removesuffix(".json") != dump.path.name.removesuffix(".json"):
        raise RingtuneError(f"rank {dump.rank} comes twice: {before.path} and {dump.path}; give each rank's dump once")
    if before is None or any(call.frames for call in dump.calls):
        dumps[dump.rank] = dump


def _check_ranks(traces: Sequence[Trace]) -> None:
    """Names that torch makes are in the order of the processes; of other files without a rank nothing is known.

    Raises:
        RingtuneError: A file says its rank neither inside nor by its name.
    """
    unknown = [trace.path for trace in traces if not trace.parts[0].rank_known and trace.path is not None]
    ordered = len(unknown) == len(traces) and all(_TORCH_NAME.match(path.name) for path in unknown)
    if unknown and not ordered and len(traces) > 1:
        raise RingtuneError(
            f"{unknown[0]}: which rank wrote it? It says none, nor does its name; put the rank into the name, as in "
            f"profile-rank0.json{f' ({len(unknown)} such files)' if len(unknown) > 1 else ''}"
        )


def _check_sizes(traces: Sequence[Trace]) -> None:
    sizes = {trace.parts[0].size: trace.path for trace in traces if trace.parts[0].size > 1}
    if len(sizes) > 1:
        (one, first), (other, second) = list(sizes.items())[:2]
        raise RingtuneError(
            f"traces of different jobs: {first} is of a job of {one} ranks, {second} of one of {other}; "
            "import each job by itself"
        )
