"""How numbers and foreign text are written, everywhere the same way."""

from __future__ import annotations

import html
import math
import time
import unicodedata

from ringtune.timeline.units import bytes_text, digits, rate_text, time_text

_DURATIONS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))
NO_VALUE = "–"


def duration(ns: float | None) -> str:
    """Return a time in nanoseconds in the unit that fits, for example ``12.3 ms``; a dash for None or NaN."""
    return NO_VALUE if ns is None or not math.isfinite(ns) else time_text(ns)


def time_scale(ns: float) -> tuple[float, str]:
    """Return nanoseconds in the unit, and the unit, in which an axis that reaches ``ns`` reads best."""
    for factor, unit in _DURATIONS:
        if ns >= factor:
            return factor, unit
    return _DURATIONS[-1]


def long_duration(ns: float | None) -> str:
    """Return a span of minutes to days, for example ``2 h 05 min``; below a minute like `duration`."""
    if ns is None or not math.isfinite(ns):
        return NO_VALUE
    seconds = int(ns / 1e9)
    if seconds < 60:
        return duration(ns)
    minutes, rest = divmod(seconds, 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def age(seconds: float) -> str:
    """Return how long ago something was, in whole seconds at most as exact, for example ``12 s`` or ``3 min 05 s``."""
    return f"{max(1, round(seconds))} s" if seconds < 60 else long_duration(1e9 * seconds)


def size(count_bytes: float | None) -> str:
    """Return a number of bytes with a binary unit, for example ``64 MiB``; a dash for None or NaN."""
    return NO_VALUE if count_bytes is None or not math.isfinite(count_bytes) else bytes_text(count_bytes)


def count(value: int | None) -> str:
    """Return a whole number with thousands separated."""
    return NO_VALUE if value is None else f"{value:,}"


def number(value: float | None) -> str:
    """Return a plain number with three significant digits."""
    return NO_VALUE if value is None or not math.isfinite(value) else digits(value)


def percent(share: float | None) -> str:
    """Return a share of one as per cent, for example ``94.2 %``."""
    return NO_VALUE if share is None or not math.isfinite(share) else f"{100 * share:.1f} %"


def signed_percent(share: float) -> str:
    """Return a share of one as per cent with its sign, for example ``+3.1 %``."""
    return f"{100 * share:+.1f} %"


def probability(p_value: float) -> str:
    """Return a p-value with four places, for example ``0.0312``; ``<0.0001`` below."""
    return NO_VALUE if not math.isfinite(p_value) else "<0.0001" if p_value < 1e-4 else f"{p_value:.4f}"


def rate(bytes_per_s: float | None) -> str:
    """Return a bandwidth in decimal units, as vendors and nccl-tests do, for example ``9.81 GB/s``."""
    return NO_VALUE if bytes_per_s is None or not math.isfinite(bytes_per_s) else rate_text(bytes_per_s)


def moment(unix_ns: int | None) -> str:
    """Return a moment in local time, for example ``2025-11-20 14:03:22``; a dash where there is none."""
    if not unix_ns:
        return NO_VALUE
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_ns / 1e9))
    except (OverflowError, ValueError, OSError):
        return NO_VALUE


def plain(text: object, limit: int = 120) -> str:
    """Return foreign text on one line: control and direction characters replaced, cut in the middle at limit."""
    line = str(text)[: 8 * limit]
    if not line.isprintable():
        line = "".join(" " if unicodedata.category(c).startswith("C") else c for c in line)
    if len(line) <= limit:
        return line
    head = (limit - 1) * 2 // 3
    return f"{line[:head]}…{line[len(line) - (limit - 1 - head) :]}"


def markup(text: object, limit: int = 120) -> str:
    """Return foreign text for plotly, which reads labels as a little HTML: like `plain`, with ``<&>`` written out."""
    return html.escape(plain(text, limit), quote=False)
