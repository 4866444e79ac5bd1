"""Horovod's variables: the values that its runtime takes, and the variables that ringtune has no twin of.

A variable of Horovod never ends a job that ran with Horovod. Its runtime reads whole numbers with C's ``strtol`` and
others with ``strtod``: text behind the number is ignored, and text without a number counts as 0. Where ringtune cannot
do what the value says, a warning says what it does instead.
"""

from __future__ import annotations

import math
import re

from ringtune.variable import Variable

TRUE = frozenset({"1", "true", "yes", "on"})
FALSE = frozenset({"0", "false", "no", "off"})

_WHOLE = re.compile(r"[ \t\n\v\f\r]*([+-]?[0-9]+)")
_DECIMAL = re.compile(r"[ \t\n\v\f\r]*([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)")
_MOST_CORE = 1023
# A rank of 0 made of text without a number would be another process's rank: such text is an error.
_RANK_INFO = frozenset({"RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"})


def reading(variable: Variable, text: str) -> tuple[str | None, str]:
    """Return what Horovod makes of a value, as text that this variable takes, and a warning where the two differ.

    Args:
        variable: Row of the table; one that has a twin.
        text: The value in the environment, not empty.

    Returns:
        The text, None where the default is kept; and the warning, empty where there is none.
    """
    word = text.strip().lower()
    if variable.kind in ("int", "float"):
        return _number(variable, text)
    if variable.kind in ("bool", "switch"):
        if word in TRUE | FALSE or (variable.kind == "switch" and word == "auto"):
            return word, ""
        value = _leading(_WHOLE, text)
        return str(int(value > 0)), "" if _is_number(text, value) else f"is read as {int(value > 0)}, as Horovod does"
    if variable.kind == "choice" and word not in variable.choices:
        return None, f"has no effect: expected one of {', '.join(variable.choices)}"
    if variable.kind == "cores":
        return _cores(text)
    return text, ""


def _number(variable: Variable, text: str) -> tuple[str | None, str]:
    pattern = _WHOLE if variable.kind == "int" else _DECIMAL
    if variable.twin in _RANK_INFO:
        found = pattern.match(text)
        return (found[1] if found else text), ""
    value = _leading(pattern, text)
    low = variable.low if variable.low is not None else -math.inf
    most = 2**62 // variable.factor if variable.high is None else variable.high
    if value < low and low != int(low):  # a fractional bound means that the time must not be 0
        return None, f"has no effect: expected {_bound(variable)}"
    taken = min(max(value, low), most)
    plain = int(taken) if variable.kind == "int" else taken
    if taken != value:
        return str(plain), f"counts as {plain}: expected {_bound(variable)}"
    return str(plain), "" if _is_number(text, value) else f"is read as {plain:g}, as Horovod does"


def _bound(variable: Variable) -> str:
    if variable.high is not None:
        return f"{variable.low:g} to {variable.high}"
    unit = f" {variable.unit}" if variable.unit else ""
    return f"a number >= {variable.low:g}{unit}"


def _leading(pattern: re.Pattern[str], text: str) -> float:
    """Return the number at the start of a text, 0 without one, within what a C long holds."""
    found = pattern.match(text)
    if found is None:
        return 0
    number = int(found[1][:40]) if pattern is _WHOLE else float(found[1])
    return min(max(number, -(2**62)), 2**62)


def _is_number(text: str, value: float) -> bool:
    try:
        return float(text) == value
    except ValueError:
        return False


def _cores(text: str) -> tuple[str | None, str]:
    """Return the cores of a list whose entries all begin with a number."""
    found = [_WHOLE.match(part) for part in text.split(",")]
    cores = [int(one[1]) for one in found if one is not None]
    if len(cores) < len(found) or not all(0 <= core <= _MOST_CORE for core in cores):
        return None, "has no effect: expected core numbers separated by commas"
    return ",".join(str(core) for core in cores), ""


HOROVOD_IGNORED = {
    "CONTROLLER": "ringtune negotiates with its own controller",
    "CPU_OPERATIONS": "ringtune has one data plane of its own",
    "HIERARCHICAL_ALLGATHER": "the algorithm is chosen by the runtime",
    "TORUS_ALLREDUCE": "the algorithm is chosen by the runtime",
    "DISABLE_GROUP_FUSION": "groups are planned together with all other operations",
    "AUTOTUNE_WARMUP_SAMPLES": "set RINGTUNE_AUTOTUNE_WARMUP_STEPS, which counts steps",
    "AUTOTUNE_GAUSSIAN_PROCESS_NOISE": "the tuner learns the noise from its measurements",
    "BATCH_D2D_MEMCOPIES": "copies are always batched",
    "ENABLE_ASYNC_COMPLETION": "completion is always asynchronous",
    "ENABLE_XLA_OPS": "TensorFlow is not supported",
    "DISABLE_NVTX_RANGES": "no NVTX ranges are written",
    "ADASUM_MPI_CHUNK_SIZE": "MPI is not used",
    "MPI_THREADS_DISABLE": "MPI is not used",
    "CCL_CACHE": "oneCCL is not used",
    "GLOO_TIMEOUT_SECONDS": "set RINGTUNE_START_TIMEOUT or RINGTUNE_IDLE_TIMEOUT",
}
"""Horovod's variables without a meaning here; a warning says so once."""
