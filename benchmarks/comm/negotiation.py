"""`ringtune bench negotiation`: the cost of the control plane per cycle, for up to thousands of ranks in one process.

The native side (`native/runtime/control_simulation.h`) drives the negotiators of all ranks in one thread. Messages are
encoded and decoded as on a link and not sent, so the figures are the work of the control plane without its waits.

Up to fan-out + 1 ranks form a star, in which every rank sends to rank 0, and the ranks below it get children of their
own up to fan-out * fan-out: until then work grows with the ranks, on purpose, though no rank ever handles more than one
message each way for each of its fan-out + 1 links. Growth is judged from the smallest measured job of that size.
"""

from __future__ import annotations

import itertools
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from ringtune import layout, native
from ringtune.errors import RingtuneError, UsageError
from ringtune.timeline.units import time_text

PHASES = ("cold", "cached", "steady")
TIME_SLACK = 1.25
"""How far times may exceed the bound: they are noisy, and thousands of ranks evict each other from the processor's
caches, which ranks on machines of their own do not. Counts have no slack."""

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
            phases = module.simulate_negotiation(ranks, request.tensors, request.cycles, fan_out)
        record["cases"].append({"ranks": ranks, "phases": phases})
    for phase in PHASES:
        console.print(negotiation_table(record, phase))
    for line in growth_lines(record):
        console.print(line, highlight=False)
    return record


def negotiation_table(record: Mapping[str, Any], phase: str) -> Table:
    """Returns the figures of one phase by number of ranks."""
    tensors = {"cold": "new tensors", "cached": "known tensors", "steady": "tensors of a step schedule"}[phase]
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
            cells += [f"{load['messages']:.4g}", f"{load['bytes']:.0f}", time_text(load["ns"])]
        cells.append(time_text(loads["mean"]["ns"]))
        table.add_row(*cells, f"{loads['all_messages']:.0f}", f"{loads['all_bytes']:.0f}")
    return table


def _bound(base: int, ranks: int) -> float:
    """Returns how much log n grows."""
    return math.log2(ranks) / math.log2(base)


def judged_cases(record: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Returns the cases in which the ranks at the top of the tree have all their children."""
    return [case for case in record["cases"] if case["ranks"] >= record["fan_out"] ** 2]


def growth_lines(record: Mapping[str, Any]) -> list[str]:
    """Returns, per phase, how the figures have grown from the smallest judged job to the largest."""
    cases = judged_cases(record)
    if len(cases) < 2:
        return [f"growth: not judged, it takes two jobs of {record['fan_out'] ** 2} ranks or more"]
    first, last = cases[0], cases[-1]
    bound = _bound(first["ranks"], last["ranks"])
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


def missed_growth(record: Mapping[str, Any]) -> list[str]:
    """Returns a sentence for each figure that grows faster than log n, and each count that is not bounded.

    Messages and bytes are compared without slack, times with `TIME_SLACK` and not within a step schedule. In a job of
    any size no rank may handle more messages a cycle than one each way per link, and within a step schedule there must
    be none at all.

    Raises:
        UsageError: fewer than two cases can be judged.
    """
    cases = judged_cases(record)
    if len(cases) < 2:
        raise UsageError(f"--require-growth compares jobs of {record['fan_out'] ** 2} ranks or more; -np has too few")
    return [
        *_unbounded(record),
        *(line for case in cases[1:] for line in _outgrown(cases[0], case)),
    ]


def _unbounded(record: Mapping[str, Any]) -> list[str]:
    most = 2 * (record["fan_out"] + 1)
    missed = []
    for case in record["cases"]:
        for phase in PHASES:
            allowed = 0 if phase == "steady" else most
            found = max(case["phases"][phase][where]["messages"] for where in _WHERE)
            if found > allowed:
                missed.append(f"{phase}, {case['ranks']} ranks: {found:g} messages of one rank, allowed {allowed}")
    return missed


def _outgrown(first: Mapping[str, Any], case: Mapping[str, Any]) -> list[str]:
    missed = []
    for phase, where, figure in itertools.product(PHASES, _WHERE, _FIGURES):
        if phase == "steady" and figure == "ns":
            continue  # within a step schedule a rank's work depends on no other rank: only the caches make a difference
        growth = _growth(first, case, phase, where, figure)
        allowed = _bound(first["ranks"], case["ranks"]) * (TIME_SLACK if figure == "ns" else 1.0)
        if growth > allowed:
            missed.append(
                f"{phase}, {where}: {figure} grow {growth:.2f}x from {first['ranks']} to {case['ranks']} ranks, "
                f"allowed {allowed:.2f}x"
            )
    return missed


def _growth(first: Mapping[str, Any], case: Mapping[str, Any], phase: str, where: str, figure: str) -> float:
    before = first["phases"][phase][where][figure]
    after = case["phases"][phase][where][figure]
    if before == 0:
        return 1.0 if after == 0 else math.inf
    return float(after / before)


def require_growth(record: Mapping[str, Any]) -> None:
    """Raises RingtuneError when something grows faster than log n; see `missed_growth`."""
    missed = missed_growth(record)
    if missed:
        raise RingtuneError("grows faster than log n:\n" + "\n".join(missed))
