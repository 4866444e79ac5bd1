"""Element types by the names that all frameworks share, with the numbers of ``native/base/dtype.h``."""

from __future__ import annotations

from ringtune.errors import InvalidArgument

NUMBERS = {
    "uint8": 0,
    "int8": 1,
    "int16": 2,
    "int32": 3,
    "int64": 4,
    "float16": 5,
    "bfloat16": 6,
    "float32": 7,
    "float64": 8,
    "bool": 9,
    "uint16": 10,
    "uint32": 11,
    "uint64": 12,
    "complex64": 13,
    "complex128": 14,
}
"""Every dtype that travels."""

REDUCED = frozenset(name for name, number in NUMBERS.items() if number < 10)
"""Those that are also reduced; the others are only gathered, broadcast and exchanged."""


def check_reduced(name: str, what: str) -> None:
    """Refuse a dtype that travels but is not reduced.

    Args:
        name: Of the dtype.
        what: What has it, for the message.

    Raises:
        InvalidArgument: It is only moved.
    """
    if name not in REDUCED:
        raise InvalidArgument(
            f"{what}: {name} is not reduced, only gathered, broadcast and exchanged (allgather, broadcast, alltoall): "
            "cast it to a signed or floating dtype first"
        )
