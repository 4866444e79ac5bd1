"""Numbers with units for people: short, three significant digits, one way everywhere."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence

from ringtune.errors import UsageError
from ringtune.timeline.vocabulary import FOREIGN_BATCHES, MESSAGES

_RATE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([kmgtMGT]?)(B|bit|b)(?:/s|ps)?\s*$")
_FACTORS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_GROUP_BATCHES, _FOREIGN_GROUP_BATCHES = 1 << 29, 3 << 29
_TIMES = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"))


def digits(value: float) -> str:
    """Return a number with three significant digits and its thousands separated, for example ``1.50`` or ``12,300``."""
    if value == 0:
        return "0"
    places = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{min(places, 6)}f}"
    return text.rstrip("0").rstrip(".") if places > 2 else text


def several(number: int, thing: str) -> str:
    """Return a number of things, for example ``1 batch`` or ``2,000 batches``."""
    ending = "" if number == 1 else "es" if thing.endswith(("ch", "s", "x")) else "s"
    return f"{number:,} {thing}{ending}"


def time_text(ns: float) -> str:
    """Return a time in nanoseconds in the unit that fits, for example ``12.3 ms``."""
    [number], unit = times_in_one_unit(ns)
    return f"{number} {unit}"


def times_in_one_unit(*times_ns: float) -> tuple[list[str], str]:
    """Return times in the unit in which the first one that is not 0 reads best, and that unit."""
    chief = next((abs(ns) for ns in times_ns if ns), 0.0)
    size, unit = next((one for one in _TIMES if chief >= one[0]), (1.0, "ns") if chief else _TIMES[0])
    return [digits(ns / size) if size > 1 else f"{ns:.0f}" for ns in times_ns], unit


def bytes_text(count: float) -> str:
    """Return an amount of bytes in binary units, for example ``64 MiB`` or ``1.50 MiB``."""
    for size, unit in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if abs(count) >= size:
            return f"{count / size:,.0f} {unit}" if count % size == 0 else f"{digits(count / size)} {unit}"
    return f"{count:.0f} B"


def rate_text(bytes_per_s: float | None) -> str:
    """Return a bandwidth in decimal units as vendors and nccl-tests do, for example ``9.81 GB/s``; ``-`` for None."""
    if bytes_per_s is None:
        return "-"
    for size, unit in ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s")):
        if bytes_per_s >= size:
            return f"{digits(bytes_per_s / size)} {unit}"
    return f"{bytes_per_s:.0f} B/s"


def parse_rate(text: str) -> float:
    """Read a bandwidth in decimal units, ``12.5GB/s``, ``100Gbit/s`` or ``10gbit`` as iproute2 writes it, as bytes/s.

    Raises:
        UsageError: It is none.
    """
    match = _RATE.match(text)
    rate = float(match[1]) * _FACTORS[match[2].lower()] / (1 if match[3] == "B" else 8) if match else 0.0
    if rate <= 0:
        raise UsageError(f"{text!r} is no bandwidth: expected for example 12.5GB/s or 100Gbit/s")
    return rate


def share_text(part: float, whole: float) -> str:
    """Return a share, for example ``12.5 %``; ``-`` when there is no whole."""
    return f"{100 * part / whole:.1f} %" if whole else "-"


def ranks_text(ranks: Iterable[int]) -> str:
    """Return ranks as a list in order, three and more in a row as one stretch, for example ``0, 4-7``."""
    stretches: list[list[int]] = []
    for rank in sorted(ranks):
        if stretches and rank == stretches[-1][-1] + 1:
            stretches[-1].append(rank)
        else:
            stretches.append([rank])
    words = [[f"{some[0]}-{some[-1]}"] if len(some) > 2 else [str(rank) for rank in some] for some in stretches]
    return ", ".join(word for stretch in words for word in stretch)


def torn_text(ranks: Sequence[int]) -> str:
    """Return the sentence about parts that end early."""
    s, ends = ("", "ends") if len(ranks) == 1 else ("s", "end")
    return f"the part{s} of rank{s} {ranks_text(ranks)} {ends} early (killed, or still recording)"


_BYTES = {"uint8": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "float16": 2, "bfloat16": 2, "float32": 4,
          "float64": 8, "bool": 1, "uint16": 2, "uint32": 4, "uint64": 8, "complex64": 8, "complex128": 16}  # fmt: skip
"""Of an element, by dtype; in the order of the runtime's numbers of dtypes."""
_UNNAMED = re.compile(r"(?P<group>(?:.*\.)?)(?P<kind>allreduce|broadcast)\.(?P<dtype>\d+)\.\d+\.(?P<count>\d+)\.\d")


def tensor_text(name: str, buckets: Mapping[int, str] | None = None) -> str:
    """Return a tensor's name as people know it.

    torch.distributed names no tensor, so what it reduces (DDP: a bucket) is known by what it holds:
    ``allreduce of 262,656 float32 (1.00 MiB)`` for ``allreduce.7.1.262656.0``; or by the name of the bucket.

    Args:
        name: What the trace says.
        buckets: Names of DDP's buckets by their number of elements.
    """
    first, plus, more = name.partition(" +")
    match = _UNNAMED.fullmatch(first)
    if match is None or int(match["dtype"]) >= len(_BYTES):
        return name
    bucket = (buckets or {}).get(int(match["count"]))
    if bucket is not None and match["kind"] == "allreduce":
        return f"{match['group']}{bucket}{plus}{more}"
    dtype, size = list(_BYTES.items())[int(match["dtype"])]
    held = f"{int(match['count']):,} {dtype} ({bytes_text(int(match['count']) * size)})"
    return f"{match['group']}{match['kind']} of {held}{plus}{more}"


def batch_text(batch: int, tensor: str = "") -> str:
    """Return a batch's number as people read it: as counted in its group or its step schedule.

    Args:
        batch: The number, of a batch or of a message.
        tensor: Name of a tensor of it, which begins with the label of its group; the number knows only a part of that.
    """
    if batch < 0:  # it begins anywhere
        return str(batch - MESSAGES.start)
    if batch >> 32:  # a hash of another tool's group, and the number within it
        return str(batch & (1 << 28) - 1)
    if batch >= FOREIGN_BATCHES.stop:
        return f"{batch - FOREIGN_BATCHES.stop} (step schedule)"
    if batch >= _FOREIGN_GROUP_BATCHES:
        return f"{batch & 0xFFFFF} ({_group_of(tensor)})"
    if batch >= FOREIGN_BATCHES.start:
        return str(batch - FOREIGN_BATCHES.start)
    if batch >= _GROUP_BATCHES:
        scheduled = ", step schedule" if batch & 1 << 19 else ""
        return f"{batch & 0x7FFFF} ({_group_of(tensor)}{scheduled})"
    return str(batch)


def numbered_text(batch: int, tensor: str = "") -> str:
    """Return the same with what it is: ``batch 7`` or ``message 7``."""
    return f"{'message' if batch < 0 else 'batch'} {batch_text(batch, tensor)}"


def _group_of(tensor: str) -> str:
    label, colon, _ = tensor.partition(": ")
    return label if colon else "of a group"
