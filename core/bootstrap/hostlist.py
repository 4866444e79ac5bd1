"""Lists of hosts as SLURM and Flux write them: ``gpu[03-05,9],cpu1``."""

from __future__ import annotations

import re

_PIECE = re.compile(r"(?P<name>[^\[\],\s]+)|\[(?P<numbers>[^\[\]]*)\]")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def expand(text: str) -> list[str]:
    """Return the names of a list in their order; ``gpu[03-05,9],cpu1`` gives ``gpu03 gpu04 gpu05 gpu9 cpu1``.

    Raises:
        ValueError: The text is no such list.
    """
    found: list[str] = []
    for word in re.split(r",(?![^\[]*\])", text.strip()):
        names, at = [""], 0
        for piece in _PIECE.finditer(word.strip()):
            ends = [piece["name"]] if piece["name"] else _numbers(piece["numbers"], text)
            names = [name + end for name in names for end in ends]
            if piece.start() != at:
                break
            at = piece.end()
        if at == 0 or at != len(word.strip()):
            raise ValueError(f"{text!r}: expected a list of hosts such as gpu[03-05,9],cpu1")
        found += names
    return found


def _numbers(text: str, whole: str) -> list[str]:
    numbers: list[str] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"{whole!r}: {part!r} is no range of numbers")
        first, last = match[1], match[2] or match[1]
        numbers += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return numbers
