"""The use of CPU, memory, network and GPUs over time, from the samples in the run folder (``core/README.md``).

Notation: a rate over two samples is the difference of their sums by that of their times, so it is exact whatever lies
between them; where sums begin anew (another process of an elastic job) there is none. Time is seconds since the first
sample of any rank. What belongs to a machine is shown once, from the samples of its lowest rank.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringtune import layout
from ringtune.dashboard.data.files import Unreadable, integer, mapping, real, sequence
from ringtune.dashboard.data.jsonlines import JsonRows
from ringtune.dashboard.data.live.columns import GrowingColumn
from ringtune.dashboard.data.runs import rank_files
from ringtune.dashboard.units import duration, number, percent, plain, size
from ringtune.timeline.units import several

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

POINT_LIMIT = 400
LINE_LIMIT = 16
"""More ranks than this are shown as their least, median and most."""
_SUMS = ("cpu_ns", "machine_cpu_ns", "network_received_bytes", "network_sent_bytes", "loopback_bytes")
_LEVELS = ("rss_bytes", "rss_peak_bytes", "machine_memory_bytes", "machine_memory_used_bytes", "machine_cores", "pid")
_COLUMNS = (*_SUMS, *_LEVELS, "at_ns", "unix_ns")
_LARGEST = 2.0**62


@dataclass(frozen=True)
class RankSamples:
    """The samples of a rank as columns, by name; ``gpus`` holds, by index, use in per cent and memory in bytes."""

    rank: int
    at_s: Floats
    unix_s: Floats
    columns: Mapping[str, Floats]
    gpus: Mapping[int, tuple[Floats, Floats]] = field(default_factory=dict)

    def rate(self, name: str) -> Floats:
        """Return the growth of a sum a second, between each sample and the one before; NaN where there is none."""
        passed, grown = np.diff(self.at_s, prepend=np.nan), np.diff(self.columns[name], prepend=np.nan)
        same = np.diff(self.columns["pid"], prepend=np.nan) == 0
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(same & (passed > 0) & (grown >= 0), grown / passed, np.nan)


@dataclass(frozen=True)
class Line:
    """A line of a figure: its name, the number its colour follows, its points, and whose samples they are; -1: many."""

    name: str
    key: int
    seconds: Floats
    values: Floats
    rank: int = -1


@dataclass(frozen=True)
class System:
    """Samples of a run, the host of every rank that has one, and the moment of the first, in seconds since 1970."""

    ranks: tuple[RankSamples, ...]
    hosts: Mapping[int, str]
    problems: tuple[str, ...] = ()
    begin_s: float = 0.0

    def machines(self) -> list[tuple[str, RankSamples]]:
        """Return every machine with the samples of its lowest rank."""
        found: dict[str, RankSamples] = {}
        for rank in self.ranks:
            found.setdefault(self.hosts.get(rank.rank, "") or "machine", rank)
        return list(found.items())


class _RankLog:
    """The samples of one rank: columns that grow by the rows that come."""

    def __init__(self, run: Path, rank: int, path: Path) -> None:
        self.follower = JsonRows(run, path)
        self.rank = rank
        self._restart()

    def _restart(self) -> None:
        self._restarts = self.follower.restarts
        self._columns = {name: GrowingColumn(np.float64) for name in _COLUMNS}
        self._gpus: dict[int, tuple[GrowingColumn, GrowingColumn]] = {}

    def take(self) -> None:
        """Take over the rows that the follower read."""
        if self._restarts != self.follower.restarts:
            self._restart()
        rows = self.follower.rows
        if not rows:
            return
        before = len(self._columns["pid"])
        for name, column in self._columns.items():
            column.extend(np.array([_bounded(row.get(name)) for row in rows]))
        for index, pair in _gpus(rows).items():
            unknown = np.full(before, np.nan)
            for grown, values in zip(self._gpus.setdefault(index, _pair(unknown)), pair, strict=True):
                grown.extend(np.full(before - len(grown), np.nan))  # the GPU had no samples for a while
                grown.extend(values)
        rows.clear()

    def samples(self) -> RankSamples | None:
        """Return all samples so far; None without any."""
        length = len(self._columns["pid"])
        if not length:
            return None
        columns = {name: column.view() for name, column in self._columns.items()}
        gpus = {index: (_whole(use, length), _whole(memory, length)) for index, (use, memory) in self._gpus.items()}
        return RankSamples(self.rank, columns["at_ns"] / 1e9, columns["unix_ns"] / 1e9, columns, gpus)


def _pair(unknown: Floats) -> tuple[GrowingColumn, GrowingColumn]:
    pair = GrowingColumn(np.float64), GrowingColumn(np.float64)
    for column in pair:
        column.extend(unknown)
    return pair


def _whole(column: GrowingColumn, length: int) -> Floats:
    """A column of a GPU, also where it has not been there of late."""
    return np.concatenate((column.view(), np.full(length - len(column), np.nan)))


class SampleReader:
    """Follows the samples of one run; each row is read once. Safe to use from several threads."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._logs: dict[int, _RankLog] = {}
        self._lock = threading.Lock()

    def read(self, hosts: Sequence[str]) -> System:
        """Return samples written so far: the first, the last, and as many between as a figure shows."""
        found = self.read_all(hosts)
        return replace(found, ranks=tuple(_some(rank, _evenly(len(rank.at_s))) for rank in found.ranks))

    def read_all(self, hosts: Sequence[str]) -> System:
        """Return all samples written so far."""
        problems: list[str] = []
        with self._lock:
            for rank, path in rank_files(self._run, layout.sample_logs(self._run), ".jsonl").items():
                log = self._logs.setdefault(rank, _RankLog(self._run, rank, path))
                try:
                    log.follower.follow()
                except Unreadable as error:
                    problems.append(str(error))
                log.take()
                problems += log.follower.problems
            known = (self._logs[rank].samples() for rank in sorted(self._logs))
            ranks = tuple(one for one in known if one is not None)
        begin_s = min((float(rank.unix_s[0]) for rank in ranks), default=0.0)
        return System(ranks, dict(enumerate(plain(host, 40) for host in hosts)), tuple(problems), begin_s)


def _evenly(length: int) -> Ints:
    if length <= POINT_LIMIT:
        return np.arange(length)
    return np.linspace(0, length - 1, POINT_LIMIT).astype(np.int64)


def _some(rank: RankSamples, chosen: Ints) -> RankSamples:
    columns = {name: column[chosen] for name, column in rank.columns.items()}
    gpus = {index: (use[chosen], memory[chosen]) for index, (use, memory) in rank.gpus.items()}
    return RankSamples(rank.rank, rank.at_s[chosen], rank.unix_s[chosen], columns, gpus)


def _gpus(rows: Sequence[dict[str, Any]]) -> dict[int, tuple[Floats, Floats]]:
    said = [{integer(gpu.get("index"), -1): gpu for gpu in map(mapping, sequence(row.get("gpus")))} for row in rows]
    found = {}
    for index in sorted({index for row in said for index in row if index >= 0})[:64]:
        use = [real(row.get(index, {}).get("use_percent")) for row in said]
        memory = [real(row.get(index, {}).get("memory_used_bytes")) for row in said]
        found[index] = (np.array(use), np.array(memory))
    return found


def _bounded(value: object) -> float:
    known = real(value)
    return 0.0 if math.isnan(known) else min(max(known, -_LARGEST), _LARGEST)


def last_samples(found: System) -> dict[int, float]:
    """Return by rank the moment of its last sample, in seconds since the first of all."""
    return {rank.rank: float(rank.unix_s[-1]) - found.begin_s for rank in found.ranks}


def later_lines(found: System, drawn: Mapping[int, float]) -> dict[str, list[Line]]:
    """Return what the lines of all figures have behind the samples that were drawn last, by rank as `last_samples`."""
    parts = []
    for rank in found.ranks:
        # Begin at the last sample that was drawn, since the next rate is counted from it.
        first = int(np.searchsorted(rank.unix_s - found.begin_s, drawn.get(rank.rank, -np.inf), "right")) - 1
        parts.append(_some(rank, np.arange(max(0, first), len(rank.unix_s))))
    lines = all_lines(replace(found, ranks=tuple(parts)))
    return {name: [_behind(line, drawn) for line in group] for name, group in lines.items()}


def _behind(line: Line, drawn: Mapping[int, float]) -> Line:
    new = line.seconds > drawn.get(line.rank, max(drawn.values(), default=-np.inf))
    return replace(line, seconds=line.seconds[new], values=line.values[new])


def all_lines(found: System) -> dict[str, list[Line]]:
    """Return the lines of all figures by name."""
    return {**process_lines(found), **machine_lines(found)}


def process_lines(found: System) -> dict[str, list[Line]]:
    """Return, of the ranks' processes, ``cpu`` in cores and ``memory`` in bytes."""
    lines: dict[str, list[Line]] = {"cpu": [], "memory": []}
    for rank in found.ranks:
        seconds, name = rank.unix_s - found.begin_s, f"rank {rank.rank}"
        lines["cpu"].append(Line(name, rank.rank, seconds, rank.rate("cpu_ns") / 1e9, rank.rank))
        lines["memory"].append(Line(name, rank.rank, seconds, rank.columns["rss_bytes"], rank.rank))
    return {name: grouped(group) for name, group in lines.items()}


def machine_lines(found: System) -> dict[str, list[Line]]:
    """Return, of the machines, ``busy`` and ``used`` (of cores and memory) in per cent, ``network`` in bytes/s."""
    lines: dict[str, list[Line]] = {"busy": [], "used": [], "network": [], "gpu": []}
    for number_, (host, rank) in enumerate(found.machines()):
        seconds, column = rank.unix_s - found.begin_s, rank.columns
        with np.errstate(divide="ignore", invalid="ignore"):
            busy = 100 * rank.rate("machine_cpu_ns") / 1e9 / column["machine_cores"]
            used = 100 * column["machine_memory_used_bytes"] / column["machine_memory_bytes"]
        lines["busy"].append(Line(host, number_, seconds, busy, rank.rank))
        lines["used"].append(Line(host, number_, seconds, used, rank.rank))
        for word, name in (
            ("in", "network_received_bytes"),
            ("out", "network_sent_bytes"),
            ("loopback", "loopback_bytes"),
        ):
            key = len(lines["network"])
            lines["network"].append(Line(f"{host}, {word}", key, seconds, rank.rate(name), rank.rank))
        for index, (use, _) in rank.gpus.items():
            lines["gpu"].append(Line(f"{host}, GPU {index}", len(lines["gpu"]), seconds, use, rank.rank))
    return {**{name: lines[name][:LINE_LIMIT] for name in ("network", "gpu")},
            **{name: grouped(lines[name]) for name in ("busy", "used")}}  # fmt: skip


def grouped(lines: list[Line]) -> list[Line]:
    """Return the lines, or the least, median and most of them where they are many."""
    if len(lines) <= LINE_LIMIT:
        return lines
    seconds = np.unique(np.concatenate([line.seconds for line in lines]))
    at = seconds[np.linspace(0, len(seconds) - 1, min(POINT_LIMIT, len(seconds))).astype(int)]
    known = [(line.seconds[keep], line.values[keep]) for line in lines for keep in [np.isfinite(line.values)]]
    table = np.array([np.interp(at, x, y, left=np.nan, right=np.nan) for x, y in known if len(x)])
    filled = np.isfinite(table).any(axis=0) if len(table) else np.zeros(0, dtype=bool)
    words = ((0, "least"), (50, "median"), (100, "most"))
    return [
        Line(f"{word} of {len(lines)}", key, at[filled], np.nanpercentile(table[:, filled], share, axis=0))
        for key, (share, word) in enumerate(words)
        if filled.any()
    ]


def numbers(found: System) -> list[tuple[str, str, str]]:
    """Return the page's numbers as label, value and note."""
    if not found.ranks:
        return []
    cpu = np.concatenate([rank.rate("cpu_ns") / 1e9 for rank in found.ranks])
    peak = max(found.ranks, key=lambda rank: float(rank.columns["rss_peak_bytes"].max()))
    lines = machine_lines(found)
    busy = np.concatenate([line.values for line in lines["busy"]])
    last = max(float(rank.unix_s[-1]) for rank in found.ranks) - found.begin_s
    where = f"{several(len(found.ranks), 'rank')} on {several(len(found.machines()), 'machine')}"
    cards = [
        ("Watched for", duration(last * 1e9), where),
        ("CPU of a rank", number(_mean(cpu)), "cores, on average"),
        ("Memory of a rank", size(peak.columns["rss_peak_bytes"].max()), f"the most, on rank {peak.rank}"),
        ("Machines busy", percent(_mean(busy) / 100), "of all cores, all programs"),
    ]
    if lines["gpu"]:
        use = np.concatenate([line.values for line in lines["gpu"]])
        cards.append(("GPUs busy", percent(_mean(use) / 100), f"on average, {len(lines['gpu'])} GPUs"))
    return cards


def _mean(values: Floats) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else float("nan")
