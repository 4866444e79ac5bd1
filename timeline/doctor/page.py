"""The diagnosis of a run as one page of 80 columns. Only draws: every number comes from the analyses."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ringtune.timeline.analysis.efficiency import Efficiency
from ringtune.timeline.analysis.tables import cause_name
from ringtune.timeline.analysis.verdicts import DATA_LOADING
from ringtune.timeline.doctor.diagnosis import Diagnosis
from ringtune.timeline.doctor.outlook import Outlook
from ringtune.timeline.units import several, share_text, time_text

WIDTH = 80
_MOST_LISTED = 4
"""Sentences, phases and ranks of a kind; more do not fit a page."""
_LEAST_SHARE = 0.005
"""Causes of a smaller share of the path are left out."""


def doctor_view(found: Diagnosis) -> RenderableType:
    """Return the page: what to know first, then each part of the story."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for title, lines in _parts(found):
        for number, line in enumerate(lines):
            table.add_row("" if number else title, Text(line))
    return Group(Text(found.headline, "bold"), Text(""), table)


def _parts(found: Diagnosis) -> Iterator[tuple[str, list[str]]]:
    if found.failure is not None:
        yield "Failure", found.failure.lines()
    yield "Recording", _recording(found)
    if found.startup is not None:
        yield "Start-up", [found.startup.sentence()]
    if found.steps is not None:
        yield "Steps", [found.steps.sentence()]
    if spent := _spent(found):
        yield "Time", spent
    if found.summary is not None:
        yield "Late ranks", _late(found)
    yield "Settings", _settings(found)
    if found.summary is not None:
        yield "What if", _what_if(found)


def _recording(found: Diagnosis) -> list[str]:
    summary = found.summary
    if summary is None:
        return [found.unknown["timeline"]]
    hosts = {rank.host for rank in summary.ranks}
    # An import gives a clock of its own a host of its own, host#rank: where the ranks ran, it does not know.
    place = f" on {several(len(hosts), 'host')}" if hosts and not any(one == "" or "#" in one for one in hosts) else ""
    begin = f"{several(summary.size, 'rank')}{place}, {several(summary.span_count, 'span')}"
    warnings = summary.warnings()
    health = "" if warnings else ", complete"
    over = f" over {time_text(summary.duration_ns)}{health}"
    return [begin + over, *summary.clocks(), *(f"! {one}" for one in warnings)]


def _spent(found: Diagnosis) -> list[str]:
    total = sum(found.path.values())
    causes = [(cause_name(cause), ns) for cause, ns in found.path.items() if ns >= _LEAST_SHARE * total]
    lines = [found.unknown["time"]] if "time" in found.unknown else []
    if causes:
        shares = ", ".join(f"{name} {share_text(ns, total)}" for name, ns in causes)
        lines.append(f"what set the length of the steps: {shares}")
    if found.efficiency is not None:
        lines.append(_factors(found.efficiency))
    for one in found.ranges[:_MOST_LISTED]:
        name = DATA_LOADING[0] if one.name.startswith(DATA_LOADING) else f"`{one.name}`"
        apart = one.least_ns < 0.99 * one.most_ns
        begin, end = (f"{time_text(one.least_ns)} to ", f", longest on rank {one.slowest}") if apart else ("", "")
        lines.append(f"{name}: {begin}{time_text(one.most_ns)} a step{end}")
    return lines


def _factors(found: Efficiency) -> str:
    factors = (
        ("load balance", found.load_balance),
        ("serialisation", found.serialisation),
        ("transfer", found.transfer),
    )
    product = " x ".join(f"{name} {100 * float(value):.1f} %" for name, value in factors)
    return f"ranks computed {100 * float(found.parallel):.1f} % of their time = {product}"


def _late(found: Diagnosis) -> list[str]:
    if found.late is None:
        return [f"not known: {found.unknown['late ranks']}"]
    sentences = found.late.sentences()
    more = len(sentences) - _MOST_LISTED
    return sentences[:_MOST_LISTED] + ([f"and {more} more: ringtune timeline stragglers"] if more > 0 else [])


def _settings(found: Diagnosis) -> list[str]:
    result = found.tuning
    if result is not None and result.decision == "improved" and result.gain is not None:
        gain = result.gain
        interval = f"{100 * gain.median:.1f} % [{100 * gain.low:.1f}, {100 * gain.high:.1f}]"
        return [f"this run was tuned: a step is shorter by {interval}"]
    if result is not None:
        return [f"this run was tuned, and {result.decision.replace('-', ' ')}: {result.reason or 'no gain confirmed'}"]
    if found.failure is not None:
        return ["not looked at before the run ends well"]
    carried = found.summary is None or found.summary.knobs_versions
    how = "ringtune tune" if carried else "ringtune tune --restarts"
    if found.efficiency is None:
        return [f"not tuned; what that would give is not known before it is tried: {how}"]
    most = 100 * (1 - float(found.efficiency.transfer))
    bound = f"at most {most:.1f} %, what communication and its control cost"
    return [f"not tuned; what that would give is not known before it is tried ({bound}): {how}"]


def _what_if(found: Diagnosis) -> list[str]:
    if found.failure is not None:
        return ["not predicted for a run that failed"]
    if (reason := found.unknown.get("predictions")) is not None:
        return [f"not predicted: {reason}"]
    return _prospects(found.outlook)


def _prospects(outlook: Outlook) -> list[str]:
    lines = [f"{one.change}: {one.text()} a step" for one in outlook.prospects]
    if lines:
        lines[0] += " by the model (95 % intervals)"
    return lines + list(outlook.notes) or ["not predicted: ask with ringtune predict"]
