"""Which job is this? Results of one session help the next one only when both run the same kind of job."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ringtune.layout import OLD_KEYS
from ringtune.tuner.advice import Workload

_FORMER = {name: old for old, name in OLD_KEYS.items()}


@dataclass(frozen=True)
class JobDescription:
    """What is known about a job before its first step.

    Attributes:
        world: Number of ranks.
        hosts: Number of hosts; their names may change from one run to the next.
        cpu: Model of rank 0's processor.
        cores: Its number of cores.
        transport: How ranks are linked, as configured.
        versions: Versions of ringtune and the framework.
        searched: Names of the searched knobs.
        fixed: Values of the knobs that are not searched.
        places: Host of each rank; for the model only, no part of the fingerprint.
    """

    world: int = 1
    hosts: int = 1
    cpu: str = ""
    cores: int = 0
    transport: str = "auto"
    versions: tuple[tuple[str, str], ...] = ()
    searched: tuple[str, ...] = ()
    fixed: tuple[tuple[str, int], ...] = ()
    places: tuple[str, ...] = ()

    def as_dict(self, workload: Workload) -> dict[str, Any]:
        """Return the description with the workload as JSON values; stored beside the results."""
        known = {name: value for name, value in asdict(self).items() if name != "places"}
        return {**known, "collectives": workload.collectives, "bytes": workload.bytes}

    def fingerprint(self, workload: Workload) -> str:
        """Return 16 hexadecimal digits that name this kind of job.

        Knobs count by the names that they had in earlier versions, so that the studies of these are found.
        """
        fixed = sorted((_FORMER.get(name, name), value) for name, value in self.fixed)
        searched = [_FORMER.get(name, name) for name in self.searched]
        text = json.dumps({**self.as_dict(workload), "fixed": fixed, "searched": searched}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def distance(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """Return how far a job is from another, by `JobDescription.as_dict`; infinite when their gradients differ.

    Doublings of the number of ranks and of hosts count one each, another transport or kind of processor two, a
    different version or a knob with another fixed value two tenths each: they decide between jobs of the same shape.

    Raises:
        KeyError: One of them is no description.
    """
    if any(one[name] != other[name] for name in ("collectives", "bytes")):
        return math.inf
    doublings = sum(abs(math.log2(max(one[name], 1) / max(other[name], 1))) for name in ("world", "hosts"))
    machines = sum(one[name] != other[name] for name in ("transport", "cpu"))
    details = sum(len(_pairs(one[name]) ^ _pairs(other[name])) for name in ("versions", "fixed"))
    return float(doublings + 2.0 * machines + 0.1 * details)


def current(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored description with today's names of knobs (`ringtune.layout.OLD_KEYS`)."""
    fixed = {OLD_KEYS.get(name, name): value for name, value in description["fixed"]}
    searched = [OLD_KEYS.get(name, name) for name in description["searched"]]
    return {**description, "fixed": list(fixed.items()), "searched": searched}


def _pairs(items: Iterable[Iterable[Any]]) -> set[tuple[Any, ...]]:
    """Return name and value pairs as a set; a storage gives lists where tuples were."""
    return {tuple(item) for item in items}


def cpu_model() -> str:
    """Return the processor's model name as Linux gives it; empty when it says nothing."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model", "cpu model"):
            return value.strip()
    return ""
