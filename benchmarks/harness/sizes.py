"""Sizes as users write them: ``64MiB``."""

from __future__ import annotations

import re

from ringtune.errors import UsageError

_UNITS = {
    "": 1,
    "B": 1,
    "KB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "KIB": 1024,
    "MIB": 1024**2,
    "GIB": 1024**3,
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def parse_bytes(text: str) -> int:
    """Returns the number of bytes that `text` names: ``512``, ``4KiB``, ``1.5MiB``, ``25MB``.

    Raises:
        UsageError: not a size, an unknown unit, or not a whole positive number of bytes.
    """
    match = _SIZE.fullmatch(text)
    unit = _UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None:
        raise UsageError(f"{text!r} is not a size; write a number with B, KB, MB, GB, KiB, MiB or GiB, as in 64MiB")
    size_bytes = float(match[1]) * unit
    if size_bytes < 1 or size_bytes != int(size_bytes):
        raise UsageError(f"{text!r} is not a whole positive number of bytes")
    return int(size_bytes)


def parse_sizes(text: str) -> list[int]:
    """Returns the bytes of a comma-separated list; ``1KiB,..,64MiB`` fills the gap by factors of four.

    Raises:
        UsageError: an entry is not a size, or ``..`` lacks a smaller size before and a larger one after it.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise UsageError("no sizes given; write for example 1KiB,64KiB,1MiB")
    sizes: list[int] = []
    for index, word in enumerate(words):
        if word != "..":
            sizes.append(parse_bytes(word))
            continue
        if not sizes or index + 1 == len(words) or words[index + 1] == "..":
            raise UsageError(f"{text!r}: '..' stands between two sizes, as in 1KiB,..,64MiB")
        end = parse_bytes(words[index + 1])
        if end <= sizes[-1]:
            raise UsageError(f"{text!r}: the size after '..' must be larger than the one before it")
        while sizes[-1] * 4 < end:
            sizes.append(sizes[-1] * 4)
    return sizes
