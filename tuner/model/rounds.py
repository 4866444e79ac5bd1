"""Steps without marks, found in the repeating order of a rank's reductions.

Backward produces the same gradients in the same order in every step, and between two steps (optimizer, loading,
forward) nothing is reduced: a step begins with the gradient before which the rank reduces nothing for longest.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ringtune.timeline.spans import UNKNOWN, Ints

ALIKE = 0.9
"""Share of the reductions that must repeat after a period."""

EXPLAINED = 0.8
"""Share of the variance of the (logarithms of) pauses that a period must explain where sizes are no evidence."""


def by_name(names: Sequence[str], submit: Ints) -> Ints:
    """Number the rounds of named gradients in the order of submission, 0 on; -1: before the first whole round.

    A name that comes again begins the next round.
    """
    step = np.full(len(names), UNKNOWN, dtype=np.int64)
    if not len(names):
        return step
    pauses = np.diff(submit, prepend=submit[0]).astype(np.float64)
    texts = np.array(names)
    usual, counts = np.unique(texts, return_counts=True)
    usual = usual[counts > 1]  # a name that occurs once is no gradient of every step
    if not len(usual):
        return step
    # Of names that were submitted together only the first has a pause before it.
    waited = {name: float(np.median(pauses[texts == name])) for name in usual.tolist()}
    first = max(waited, key=lambda name: waited[name])
    seen: set[str] = set()
    number = UNKNOWN
    for index in range(names.index(first), len(names)):
        if names[index] in seen or number == UNKNOWN:
            number += 1
            seen.clear()
        seen.add(names[index])
        step[index] = number
    return step


def by_size(sizes: Ints, begin: Ints, end: Ints) -> Ints:
    """Number the rounds of reductions without names, by their sizes and by the pauses before them; -1 as above."""
    count = len(sizes)
    step = np.full(count, UNKNOWN, dtype=np.int64)
    pauses = np.log(np.maximum(begin[1:] - np.maximum.accumulate(end)[:-1], 1).astype(np.float64))
    period = next((p for p in range(1, count // 2 + 1) if np.mean(sizes[p:] == sizes[:-p]) >= ALIKE), None)
    if period is None:
        return step
    by_pause = (p for p in range(period, count // 3 + 1, period) if p > 1 and _explained(pauses, p) >= EXPLAINED)
    period = next(by_pause, period)
    # The pause before reduction i stands at i - 1.
    means = [float(np.mean(pauses[(phase - 1) % period :: period])) for phase in range(period)]
    first = int(np.argmax(means)) if period > 1 else 0
    where = np.arange(count) - first
    step[where >= 0] = where[where >= 0] // period
    return step


def _explained(pauses: NDArray[np.float64], period: int) -> float:
    """Share of the pauses' variance that lies between the phases of a period."""
    within = sum(
        float(np.sum((pauses[phase::period] - np.mean(pauses[phase::period])) ** 2)) for phase in range(period)
    )
    whole = float(np.sum((pauses - np.mean(pauses)) ** 2))
    return 1.0 - within / whole if whole > 0 else 0.0
