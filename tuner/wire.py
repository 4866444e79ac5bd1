"""Messages between a training process and its advisor process: one JSON object a line, either way."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from ringtune.knobs import Knobs
from ringtune.tuner.advice import Near, Outcome, Stored, Suggestion, Workload
from ringtune.tuner.fingerprint import JobDescription
from ringtune.tuner.records import ResultRecord, TrialRecord, build
from ringtune.tuner.space import SEARCHED, Space
from ringtune.tuner.study import StudyOptions


@dataclass(frozen=True)
class Setup:
    """The first message: everything an advisor is made of."""

    space: Space
    job: JobDescription
    options: StudyOptions


def encode(kind: str, **fields: Any) -> bytes:
    """Return a message as a line."""
    return orjson.dumps({"kind": kind, **fields}) + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    """Return the message in a line.

    Raises:
        ValueError: The line is no message.
    """
    try:
        message = orjson.loads(line)
    except orjson.JSONDecodeError:
        message = None
    if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
        raise ValueError(f"not understood: {line[:80].decode(errors='replace')!r}")
    return message


def setup_fields(setup: Setup) -> dict[str, Any]:
    """Return the fields of the message for `setup_from`."""
    return {
        "default": setup.space.default.as_dict(),
        "searched": [dimension.name for dimension in setup.space.dimensions],
        "job": asdict(setup.job),
        "options": asdict(setup.options),
    }


def setup_from(fields: dict[str, Any]) -> Setup:
    """Rebuild what `setup_fields` has packed."""
    dimensions = tuple(dimension for dimension in SEARCHED if dimension.name in fields["searched"])
    job = fields["job"]
    pairs = {name: tuple((key, value) for key, value in job[name]) for name in ("versions", "fixed")}
    description = JobDescription(**{**job, **pairs, "searched": tuple(job["searched"]), "places": tuple(job["places"])})
    return Setup(Space(Knobs.from_dict(fields["default"]), dimensions), description, StudyOptions(**fields["options"]))


def workload_from(fields: dict[str, Any]) -> Workload:
    """Return the workload in an ``open`` request."""
    return Workload(fields["collectives"], fields["bytes"], fields["trace"])


def outcome_fields(outcome: Outcome) -> dict[str, Any]:
    """Return the fields of the message for `outcome_from`."""
    trial = {**outcome.trial.as_dict(), "knobs": outcome.trial.knobs.as_dict()}
    return {"trial": trial, "ratio": outcome.ratio, "token": outcome.token}


def outcome_from(fields: dict[str, Any]) -> Outcome:
    """Rebuild what `outcome_fields` has packed."""
    return Outcome(build(TrialRecord, fields["trial"]), fields["ratio"], fields["token"])


def result_fields(result: ResultRecord) -> dict[str, Any]:
    """Return the fields of the message for `result_from`."""
    return {"result": {**result.as_dict(), "knobs": result.knobs.as_dict()}}


def result_from(fields: dict[str, Any]) -> ResultRecord:
    """Rebuild what `result_fields` has packed."""
    return build(ResultRecord, fields["result"])


def stored_fields(stored: Stored) -> dict[str, Any]:
    """Return the fields of the message for `stored_from`."""
    best = stored.best.as_dict() if stored.best is not None else None
    first = [knobs.as_dict() for knobs in stored.first]
    near = asdict(stored.near) if stored.near is not None else None
    rest = {"confirmed": stored.confirmed, "near": near, "notes": stored.notes}
    return {"best": best, "trials": stored.trials, "first": first, **rest}


def stored_from(fields: dict[str, Any]) -> Stored:
    """Rebuild what `stored_fields` has packed."""
    best = fields["best"]
    first = tuple(Knobs.from_dict(knobs) for knobs in fields["first"])
    known = Knobs.from_dict(best) if best is not None else None
    near = fields["near"]
    nearest = Near(Knobs.from_dict(near["knobs"]), near["world"], near["hosts"]) if near is not None else None
    return Stored(known, fields["trials"], first, fields["confirmed"], nearest, tuple(fields["notes"]))


def suggestion_fields(suggestion: Suggestion) -> dict[str, Any]:
    """Return the fields of the message for `suggestion_from`."""
    left = suggestion.left if math.isfinite(suggestion.left) else None
    return {"knobs": suggestion.knobs.as_dict(), "token": suggestion.token, "left": left}


def suggestion_from(fields: dict[str, Any]) -> Suggestion:
    """Rebuild what `suggestion_fields` has packed."""
    left = fields["left"] if fields["left"] is not None else math.inf
    return Suggestion(Knobs.from_dict(fields["knobs"]), fields["token"], left)
