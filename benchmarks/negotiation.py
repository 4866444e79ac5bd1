"""`ringtune bench negotiation`: what the control plane costs per cycle, for up to thousands of ranks in one process.

The native side (`native/runtime/rehearsal.h`) drives the negotiators of all ranks in one thread. Messages are encoded
and decoded as on a link; nothing is sent over one, so the figures are the work of the control plane without its waits.

Up to fan-out + 1 ranks form a star, in which rank 0 hears everybody: there it grows with the ranks, on purpose.
Growth is therefore judged from the smallest measured job that is larger than twice the fan-out.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from ringtune import layout, native
from ringtune.benchmarks.sizes import format_duration
from ringtune.errors import RingtuneError, UsageError

PHASES = ("cold", "cached", "steady")
TIME_SLACK = 1.25
"""Times may be so much above the bound: they are noisy and grow with the caches' misses. Counts get no slack."""

LARGEST = 4096
_FIGURES = ("messages", "bytes", "ns")
_WHERE = ("coordinator", "busiest")


@dataclass(frozen=True)
class NegotiationRequest:
    """What the user asked for.

    Args:
        ranks: sizes of the jobs, ascending.
        tensors: of a cycle.
        cycles: measured per phase; of new tensors at most three.
        fan_out: children of a rank in the tree; None for the runtime's own.
    """

    ranks: Sequence[int]
    tensors: int
    cycles: int
    fan_out: int | None = None


def parse_scale(text: str) -> list[int]:
    """Returns the rank counts in ``2,..,4096``, ascending; ``..`` goes on by factors of two.

    Raises:
        UsageError: not numbers of 2 to 4096, or ``..`` without a number before and a larger one after it.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    found: list[int] = []
    for index, word in enumerate(words):
        if word == ".." and found and index + 1 < len(words) and words[index + 1].isdigit():
            while found[-1] * 2 < int(words[index + 1]):
                found.append(found[-1] * 2)
        elif word.isdigit() and 2 <= int(word) <= LARGEST:
            found.append(int(word))
        else:
            raise UsageError(f"-np {text!r}: expected rank counts of 2 to {LARGEST} such as 2,8,64 or 2,..,{LARGEST}")
    if not found:
        raise UsageError(f"-np {text!r}: no rank counts; write for example 2,..,{LARGEST}")
    return sorted(set(found))


def run_negotiation(request: NegotiationRequest, console: Console) -> dict[str, Any]:
    """Measures, prints the tables and returns the record for `--json`."""
    module = native.load()
    fan_out = request.fan_out or module.CONTROL_FAN_OUT
    record: dict[str, Any] = {
        "format": layout.FORMAT,
        "benchmark": "negotiation",
        "command": ["ringtune", *sys.argv[1:]],
        "created_unix_ns": time.time_ns(),
        "fan_out": fan_out,
        "tensors": request.tensors,
        "cycles": request.cycles,
        "unit": "ns",
        "cases": [],
    }
    for ranks in request.ranks:
        with native.translated():
            phases = module.rehearse_negotiation(ranks, request.tensors, request.cycles, fan_out)
        record["cases"].append({"ranks": ranks, "phases": phases})
    for phase in PHASES:
        console.print(negotiation_table(record, phase))
    for line in growth_lines(record):
        console.print(line, highlight=False)
    return record


def negotiation_table(record: Mapping[str, Any], phase: str) -> Table:
    """Returns the figures of one phase by number of ranks."""
    tensors = {"cold": "new tensors", "cached": "known tensors", "steady": "tensors of a plan"}[phase]
    table = Table(title=f"{phase}: {record['tensors']} {tensors} a cycle, fan-out {record['fan_out']}")
    for name in (
        "ranks",
        "rank 0: messages",
        "bytes",
        "time",
        "busiest other: messages",
        "bytes",
        "time",
        "a rank: time",
    ):
        table.add_column(name, justify="right")
    for name in ("all: messages", "bytes"):
        table.add_column(name, justify="right")
    for case in record["cases"]:
        loads = case["phases"][phase]
        cells = [str(case["ranks"])]
        for where in _WHERE:
            load = loads[where]
            cells += [f"{load['messages']:.4g}", f"{load['bytes']:.0f}", format_duration(load["ns"])]
        cells.append(format_duration(loads["mean"]["ns"]))
        table.add_row(*cells, f"{loads['all_messages']:.0f}", f"{loads['all_bytes']:.0f}")
    return table


def _logarithmic(base: int, ranks: int) -> float:
    return math.log2(ranks) / math.log2(base)


def _constant(base: int, ranks: int) -> float:
    return 1.0


BOUNDS: dict[str, Callable[[int, int], float]] = {"log": _logarithmic, "constant": _constant}


def judged_cases(record: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Returns the cases in which the tree has at least two full levels, by ranks."""
    return [case for case in record["cases"] if case["ranks"] >= 2 * record["fan_out"]]


def growth_lines(record: Mapping[str, Any]) -> list[str]:
    """Returns, per phase, how the figures have grown from the smallest judged job to the largest."""
    cases = judged_cases(record)
    if len(cases) < 2:
        return [f"growth: not judged, it takes two jobs of {2 * record['fan_out']} ranks or more"]
    first, last = cases[0], cases[-1]
    bound = _logarithmic(first["ranks"], last["ranks"])
    lines = [f"growth from {first['ranks']} to {last['ranks']} ranks (log n grows {bound:.2f}x):"]
    for phase in PHASES:
        parts = []
        for where in _WHERE:
            text = ", ".join(
                f"{name} {_growth(first, last, phase, where, figure):.2f}x"
                for name, figure in zip(("messages", "bytes", "time"), _FIGURES, strict=True)
            )
            parts.append(f"{'rank 0' if where == 'coordinator' else 'busiest other'} {text}")
        lines.append(f"  {phase}: " + "; ".join(parts))
    return lines


def missed_growth(record: Mapping[str, Any], kind: str) -> list[str]:
    """Returns a sentence for each figure that grows faster than `kind` (a key of `BOUNDS`) says.

    Messages and bytes are compared without slack, times with `TIME_SLACK`. Within a plan there
    must be no message at all.

    Raises:
        UsageError: fewer than two cases can be judged.
    """
    cases = judged_cases(record)
    if len(cases) < 2:
        raise UsageError(f"--require-growth compares jobs of {2 * record['fan_out']} ranks or more; -np has too few")
    first = cases[0]
    missed = []
    for case in cases[1:]:
        bound = BOUNDS[kind](first["ranks"], case["ranks"])
        for phase in PHASES:
            for where in _WHERE:
                for figure in _FIGURES:
                    growth = _growth(first, case, phase, where, figure)
                    allowed = bound * (TIME_SLACK if figure == "ns" else 1.0)
                    if growth > allowed:
                        missed.append(
                            f"{phase}, {where}: {figure} grow {growth:.2f}x from {first['ranks']} to {case['ranks']} "
                            f"ranks, allowed {allowed:.2f}x"
                        )
    for case in record["cases"]:
        if case["phases"]["steady"]["all_messages"] > 0:
            missed.append(f"steady: {case['ranks']} ranks exchange messages within a plan")
    return missed


def _growth(first: Mapping[str, Any], case: Mapping[str, Any], phase: str, where: str, figure: str) -> float:
    before = first["phases"][phase][where][figure]
    after = case["phases"][phase][where][figure]
    if before == 0:
        return 1.0 if after == 0 else math.inf
    return float(after / before)


def require_growth(record: Mapping[str, Any], kind: str) -> None:
    """Raises RingtuneError when something grows faster than `kind` says."""
    missed = missed_growth(record, kind)
    if missed:
        raise RingtuneError(f"grows faster than required ({kind}):\n" + "\n".join(missed))
