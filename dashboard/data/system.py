"""What ranks and their machines used over time: from the samples in the run folder (``core/README.md``).

Notation: a rate over two samples is the difference of their sums by that of their times, so it is exact whatever lies
between them; where sums begin anew (another process of an elastic job) there is none. Time is seconds since the first
sample of any rank. What belongs to a machine is shown once, from the samples of its lowest rank.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringtune import layout
from ringtune.dashboard.data.files import Unreadable, integer, mapping, real, sequence
from ringtune.dashboard.data.jsonlines import LineFollower
from ringtune.dashboard.data.runs import rank_files
from ringtune.dashboard.units import duration, number, percent, plain, size

Floats = NDArray[np.float64]

POINT_LIMIT = 400
LINE_LIMIT = 16
"""More ranks than this are shown as their least, median and most."""
_SUMS = ("cpu_ns", "machine_cpu_ns", "network_received_bytes", "network_sent_bytes", "loopback_bytes")
_LEVELS = ("rss_bytes", "rss_peak_bytes", "machine_memory_bytes", "machine_memory_used_bytes", "machine_cores", "pid")
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
    """A line of a figure: its name, the number its colour follows, and its points."""

    name: str
    key: int
    seconds: Floats
    values: Floats


@dataclass(frozen=True)
class System:
    """All samples of a run, and the host of every rank that has one."""

    ranks: tuple[RankSamples, ...]
    hosts: Mapping[int, str]
    problems: tuple[str, ...] = ()

    def machines(self) -> list[tuple[str, RankSamples]]:
        """Return every machine with the samples of its lowest rank."""
        found: dict[str, RankSamples] = {}
        for rank in self.ranks:
            found.setdefault(self.hosts.get(rank.rank, "") or "machine", rank)
        return list(found.items())


class SampleReader:
    """Reads the samples of one run again and again; what was read stays read. Safe to use from several threads."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._followers: dict[int, LineFollower] = {}
        self._lock = threading.Lock()

    def read(self, hosts: Sequence[str]) -> System:
        """Return all samples written so far."""
        problems: list[str] = []
        with self._lock:
            for rank, path in rank_files(self._run, layout.sample_logs(self._run), ".jsonl").items():
                follower = self._followers.setdefault(rank, LineFollower(self._run, path))
                try:
                    follower.follow()
                except Unreadable as error:
                    problems.append(str(error))
                problems += follower.problems
            rows = {rank: self._followers[rank].rows for rank in sorted(self._followers)}
            known = tuple(_samples(rank, thinned(found)) for rank, found in rows.items() if found)
        return System(known, dict(enumerate(plain(host, 40) for host in hosts)), tuple(problems))


def thinned(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return at most `POINT_LIMIT` rows, the first and the last among them."""
    if len(rows) <= POINT_LIMIT:
        return list(rows)
    return [rows[at] for at in np.linspace(0, len(rows) - 1, POINT_LIMIT).astype(int).tolist()]


def _samples(rank: int, rows: Sequence[dict[str, Any]]) -> RankSamples:
    names = (*_SUMS, *_LEVELS, "at_ns", "unix_ns")
    columns = {name: np.array([_bounded(row.get(name)) for row in rows]) for name in names}
    return RankSamples(rank, columns["at_ns"] / 1e9, columns["unix_ns"] / 1e9, columns, _gpus(rows))


def _gpus(rows: Sequence[dict[str, Any]]) -> dict[int, tuple[Floats, Floats]]:
    said = [{integer(gpu.get("index"), -1): gpu for gpu in map(mapping, sequence(row.get("gpus")))} for row in rows]
    found = {}
    for index in sorted({index for row in said for index in row if index >= 0})[:64]:
        use = [real(row.get(index, {}).get("use_percent")) for row in said]
        memory = [real(row.get(index, {}).get("memory_used_bytes")) for row in said]
        found[index] = (np.array(use), np.array(memory))
    return found


def _bounded(value: object) -> float:
    return float(np.clip(np.nan_to_num(real(value), nan=0.0), -_LARGEST, _LARGEST))


def begin_s(found: System) -> float:
    """Return the moment of the first sample, in seconds since 1970."""
    return min((float(rank.unix_s[0]) for rank in found.ranks), default=0.0)


def process_lines(found: System) -> dict[str, list[Line]]:
    """Return, of the ranks' processes, ``cpu`` in cores and ``memory`` in bytes."""
    lines: dict[str, list[Line]] = {"cpu": [], "memory": []}
    for rank in found.ranks:
        seconds, name = rank.unix_s - begin_s(found), f"rank {rank.rank}"
        lines["cpu"].append(Line(name, rank.rank, seconds, rank.rate("cpu_ns") / 1e9))
        lines["memory"].append(Line(name, rank.rank, seconds, rank.columns["rss_bytes"]))
    return {name: grouped(group) for name, group in lines.items()}


def machine_lines(found: System) -> dict[str, list[Line]]:
    """Return, of the machines, ``busy`` and ``used`` (of cores and memory) in per cent, ``network`` in bytes/s."""
    lines: dict[str, list[Line]] = {"busy": [], "used": [], "network": [], "gpu": []}
    for number_, (host, rank) in enumerate(found.machines()):
        seconds, column = rank.unix_s - begin_s(found), rank.columns
        with np.errstate(divide="ignore", invalid="ignore"):
            busy = 100 * rank.rate("machine_cpu_ns") / 1e9 / column["machine_cores"]
            used = 100 * column["machine_memory_used_bytes"] / column["machine_memory_bytes"]
        lines["busy"].append(Line(host, number_, seconds, busy))
        lines["used"].append(Line(host, number_, seconds, used))
        for word, name in (
            ("in", "network_received_bytes"),
            ("out", "network_sent_bytes"),
            ("loopback", "loopback_bytes"),
        ):
            lines["network"].append(Line(f"{host}, {word}", len(lines["network"]), seconds, rank.rate(name)))
        for index, (use, _) in rank.gpus.items():
            lines["gpu"].append(Line(f"{host}, GPU {index}", len(lines["gpu"]), seconds, use))
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
    last = max(float(rank.unix_s[-1]) for rank in found.ranks) - begin_s(found)
    cards = [
        ("Watched for", duration(last * 1e9), f"ranks: {len(found.ranks)}, machines: {len(found.machines())}"),
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
