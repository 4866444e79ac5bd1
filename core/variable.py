"""What a variable of the environment is, and what its names are."""

from __future__ import annotations

import re
from dataclasses import dataclass

PREFIX = "RINGTUNE_"
TWIN_PREFIX = "HOROVOD_"
# A password ends at the last @: SQLAlchemy and libpq take one that holds a / too, and hiding too much does no harm.
_PASSWORD = re.compile(r"(?<=://)([^/@:\s]*):\S*@|([?&]\w*password)=[^&\s]*")


@dataclass(frozen=True)
class Variable:
    """One variable of the environment.

    Attributes:
        name: Name without ``RINGTUNE_``.
        field: Name of the attribute of `ringtune.config.Config` that holds the parsed value.
        kind: ``int``, ``float``, ``bool``, ``str``, ``secret``, ``path``, ``address``,
            ``choice``, ``switch`` (auto, on, off), ``steps`` or ``cores``.
        default: Value when the variable is unset, in the field's unit.
        unit: Unit of the text in the environment, empty if it has none.
        meaning: One sentence for the table in the README.
        twin: Horovod's name without ``HOROVOD_`` that is honoured too, if there is one.
        low: Smallest allowed number, if there is one.
        factor: The field is the number times this (for example milliseconds to nanoseconds).
        choices: Allowed words of a ``choice``.
        high: Largest allowed number, if there is one.
    """

    name: str
    field: str
    kind: str
    default: object
    unit: str
    meaning: str
    twin: str | None = None
    low: float | None = None
    factor: int = 1
    choices: tuple[str, ...] = ()
    high: float | None = None


FORMER_NAMES = {"GPU_PLANE": "GPU_DATA_PATH", "PLAN": "STEP_SCHEDULE"}
"""Names that variables had earlier, without ``RINGTUNE_``, and their names today. Both are read."""


def current_name(name: str) -> str:
    """Return today's name of a variable, with its prefix; any other name as it is."""
    former = FORMER_NAMES.get(name.removeprefix(PREFIX)) if name.startswith(PREFIX) else None
    return PREFIX + former if former else name


def without_password(value: object) -> object:
    """Return a text without the password of a URL in it (``postgresql://ann:...@db``); other values as they are."""
    return _PASSWORD.sub(_hidden, value) if isinstance(value, str) else value


def _hidden(found: re.Match[str]) -> str:
    return f"{found[1]}:***@" if found[2] is None else f"{found[2]}=***"
