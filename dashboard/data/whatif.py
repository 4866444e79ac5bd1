"""What if: the dials of a question, their positions and words, and what the model answers.

A dial's value is in the unit of its name in the address; its position is an index, so that a slider needs no unit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ringtune.dashboard.units import count, duration, number, size
from ringtune.errors import RingtuneError
from ringtune.tuner.model.assumed import assumptions, believed
from ringtune.tuner.model.calibrate import Model, check
from ringtune.tuner.model.questions import WIRE, Answer, Change, Value, ask, built_in, ratio

GBIT = 1e9 / 8
MIB = 1 << 20
MOST_RANKS = 4096
CURVE_GRADIENTS = 1000
"""Gradients times resamples that are played for one point of a curve: a curve takes some tens of milliseconds."""
FEWEST_DRAWS = 4
ENOUGH_DRAWS = 39
"""Fewest resamples of which 2.5 % lie beyond the outermost: with fewer there is no interval of 95 %."""


@dataclass(frozen=True)
class Dial:
    """One setting that can be turned.

    Attributes:
        name: In addresses.
        label: For people.
        values: Positions, in increasing order.
        start: As the job ran; one of ``values``.
        value: Now; one of ``values``.
        origin: Where the start comes from: ``as it ran``, or ``assumed``.
    """

    name: str
    label: str
    values: tuple[float, ...]
    start: float
    value: float
    origin: str = "as it ran"

    @property
    def position(self) -> int:
        """Index of the value."""
        return self.values.index(self.value)

    @property
    def text(self) -> str:
        """The value in words, and whether it is the job's own."""
        return words(self.name, self.value) + (f", {self.origin}" if self.value == self.start else "")


@dataclass(frozen=True)
class _Kind:
    """The kind of a dial: label, positions, bounds of what an address may ask for, and how values are written."""

    label: str
    grid: tuple[float, ...]
    bounds: tuple[float, float]
    text: Callable[[float], str]
    whole: bool = False


def _times(value: float) -> str:
    return "as long" if value == 1 else f"{number(value)} times as long"


_KINDS: dict[str, _Kind] = {
    "ranks": _Kind("Ranks", tuple(2.0**n for n in range(13)), (1, MOST_RANKS), lambda v: count(int(v)), whole=True),
    "slots": _Kind("Ranks a host", (1, 2, 4, 8, 16, 32, 64), (1, 1024), lambda v: count(int(v)), whole=True),
    "gbit": _Kind(
        "Bandwidth between hosts",
        (1, 2.5, 5, 10, 25, 40, 50, 100, 200, 400, 800),
        (0.01, 10_000),
        lambda v: f"{number(v)} Gbit/s",
    ),
    "us": _Kind(
        "Latency between hosts",
        (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000),
        (0.01, 1e6),
        lambda v: duration(1e3 * v),
    ),
    "straggler": _Kind("Slowest rank computes", (1, 1.05, 1.1, 1.2, 1.3, 1.5, 2, 3), (1, 100), _times),
    "compute": _Kind("Computing speed", (0.5, 1, 1.5, 2, 3, 4, 8, 16), (0.01, 1000), lambda v: f"× {number(v)}"),
    "fusion": _Kind(
        "Fusion buffer",
        (0, 0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128, 256),
        (0, 4096),
        lambda v: "off" if v == 0 else size(v * MIB),
    ),
    "cycle": _Kind(
        "Cycle time", (0, 0.1, 0.25, 0.5, 1, 2, 5, 10, 20), (0, 1000), lambda v: "0 ms" if v == 0 else duration(1e6 * v)
    ),
}
DIALS = tuple(_KINDS)
"""Names of all dials, in their order."""
NETWORK_DIALS = (_KINDS["gbit"].label, _KINDS["us"].label)


def words(name: str, value: float) -> str:
    """Return the value of a dial with its unit."""
    return _KINDS[name].text(value)


def dials(model: Model, asked: Mapping[str, str]) -> tuple[Dial, ...]:
    """Return the dials of a job, at the positions an address asks for; what makes no sense there is as it ran."""
    cluster = model.cluster
    starts = {
        "ranks": float(cluster.ranks),
        "slots": float(cluster.slots),
        "gbit": cluster.network.bytes_per_s / GBIT,
        "us": cluster.network.latency_ns / 1e3,
        "straggler": 1.0,
        "compute": 1.0,
        "fusion": model.knobs.fusion_bytes / MIB,
        "cycle": model.knobs.cycle_time_ns / 1e6,
    }
    assumed = ("gbit", "us") if cluster.hosts == 1 else ()
    return tuple(
        replace(_dial(name, start, asked.get(name, "")), origin="assumed" if name in assumed else "as it ran")
        for name, start in starts.items()
    )


def _dial(name: str, start: float, asked: str) -> Dial:
    kind, value = _KINDS[name], start
    try:
        wanted = float(asked)
    except ValueError:
        wanted = math.nan
    if kind.bounds[0] <= wanted <= kind.bounds[1]:
        value = float(round(wanted)) if kind.whole else wanted
    # An address holds few digits; close to the start means the start.
    value = start if math.isclose(value, start, rel_tol=1e-3) else value
    return Dial(name, kind.label, tuple(sorted({*map(float, kind.grid), start, value})), start, value)


def changed(found: Iterable[Dial]) -> dict[str, str]:
    """Return what an address must say: the dials that are not as the job ran."""
    return {dial.name: f"{dial.value:.6g}" for dial in found if dial.value != dial.start}


def question(found: Iterable[Dial], wire: str) -> Change:
    """Return the question that dials and a compression ask."""
    turned = {dial.name: dial.value for dial in found if dial.value != dial.start}
    knobs = {}
    if "fusion" in turned:
        knobs["fusion_bytes"] = round(turned["fusion"] * MIB)
    if "cycle" in turned:
        knobs["cycle_time_ns"] = round(turned["cycle"] * 1e6)
    return Change(
        "with these settings",
        ranks=int(turned["ranks"]) if "ranks" in turned else None,
        slots=int(turned["slots"]) if "slots" in turned else None,
        bandwidth=turned["gbit"] * GBIT if "gbit" in turned else None,
        latency_ns=turned["us"] * 1e3 if "us" in turned else None,
        straggler=turned.get("straggler", 1.0),
        compute=turned.get("compute", 1.0),
        compression=wire if wire in WIRE else "none",
        knobs=knobs,
    )


@dataclass(frozen=True)
class Baseline:
    """A job as it ran, which is the same for every question.

    Attributes:
        model: Fitted to it.
        answer: The model's answer for it.
        curve: At other numbers of ranks.
        error: Predicted over measured length of a step, less 1; None where that is not known.
        doubt: Why the model is not to be believed; "" if it is.
    """

    model: Model
    answer: Answer
    curve: tuple[Answer, ...]
    error: float | None
    doubt: str

    @staticmethod
    def of(model: Model) -> Baseline:
        """Return the baseline of a model."""
        as_ran = Change("as it ran")
        answer, doubt = ask(model, as_ran), ""
        try:
            believed(model)
        except RingtuneError as error:
            doubt = str(error)
        return Baseline(model, answer, curve(model, answer), check(model), doubt)


@dataclass(frozen=True)
class Outlook:
    """What the model says.

    Attributes:
        answer: To the question.
        as_ran: For the job as it ran.
        curve: To the question at other numbers of ranks, and at its own.
        as_ran_curve: The same for the job as it ran.
        measured_ns: Length of a step as it was measured; None where that is not known.
        measured_efficiency: Of the job as it was measured.
        error: See `Baseline`.
        throughput: Samples a second, against the job as it ran.
        host_bound: All ranks fit on one host, so the network between hosts does not matter.
        assumed: What stands in for terms that were not measured, in a sentence; "" if nothing does.
    """

    answer: Answer
    as_ran: Answer
    curve: tuple[Answer, ...]
    as_ran_curve: tuple[Answer, ...]
    measured_ns: float | None
    measured_efficiency: float | None
    error: float | None
    throughput: Value
    host_bound: bool
    assumed: str


def data(base: Baseline, change: Change) -> Outlook:
    """Answer a question."""
    model = base.model
    answer = ask(model, change)
    set_rate, set_delay = change.bandwidth is not None, change.latency_ns is not None
    return Outlook(
        answer=answer,
        as_ran=base.answer,
        curve=curve(model, answer),
        as_ran_curve=base.curve,
        measured_ns=model.measured_ns,
        measured_efficiency=model.work.compute_ns / model.measured_ns if model.measured_ns else None,
        error=base.error,
        throughput=_throughput(base.answer, answer),
        host_bound=answer.hosts == 1,
        assumed=assumptions(model, across=answer.hosts > 1, bandwidth=set_rate, latency=set_delay, named=NETWORK_DIALS),
    )


def _throughput(before: Answer, after: Answer) -> Value:
    step, more = ratio(before, after), after.ranks / before.ranks
    return Value(more / step.value, more / step.high, more / step.low if step.low > 0 else math.inf)


def curve(model: Model, own: Answer) -> tuple[Answer, ...]:
    """Return an answer with those to the same question at 1, 2, 4 ... ranks and at the job's own number."""
    ranks = {2**n for n in range(13)} | {model.cluster.ranks}
    quick = _quick(model)
    others = [ask(quick, replace(own.change, ranks=n)) for n in ranks - {own.ranks}]
    return tuple(sorted((own, *others), key=lambda answer: answer.ranks))


def _quick(model: Model) -> Model:
    """Return the model with as many resamples as a curve has time for."""
    kept = max(FEWEST_DRAWS, CURVE_GRADIENTS // max(1, len(model.work.gradients)))
    return replace(model, draws=model.draws[:kept])


def bands(model: Model) -> str:
    """Return what the bands of curves, and the intervals of advice, are: 95 % where there is time for it."""
    draws = len(_quick(model).draws)
    if draws >= ENOUGH_DRAWS:
        return "Bands: 95 % intervals, the model's error included."
    return (
        f"Bands: the spread of {draws} resamples of the steps (too few for an interval of 95 %), the model's error "
        f"included. The intervals of the numbers above come from {len(model.draws)}."
    )


@dataclass(frozen=True)
class Advice:
    """One more change on top of a question, and the share of the step's time it would save."""

    label: str
    answer: Answer
    saved: Value


def advice(model: Model, change: Change) -> tuple[Advice, ...]:
    """Return what the usual improvements would give on top of a question, the most helpful first."""
    quick = _quick(model)
    base = ask(quick, change)
    found = []
    for one in built_in(base.ranks)[1:]:
        answer = ask(quick, _on_top(change, one))
        step = ratio(base, answer)
        found.append(Advice(one.label, answer, Value(1 - step.value, 1 - step.high, 1 - step.low)))
    return tuple(sorted(found, key=lambda one: -one.saved.value))


def _on_top(change: Change, more: Change) -> Change:
    merged: dict[str, Any] = {"network": more.network, "even": more.even, "overlap": more.overlap}
    if more.compression != "none":
        merged["compression"] = more.compression
    if more.even:
        merged["straggler"] = 1.0
    return replace(change, label=more.label, knobs={**change.knobs, **more.knobs}, **merged)
