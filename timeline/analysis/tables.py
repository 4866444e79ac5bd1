"""Tables of the analyses across ranks, for a terminal. Only draws: every number comes from the analyses."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ringtune.timeline.analysis import critical_path, stragglers
from ringtune.timeline.analysis.comparison import Change, Comparison
from ringtune.timeline.analysis.critical_path import CriticalPath
from ringtune.timeline.analysis.efficiency import Efficiency
from ringtune.timeline.analysis.stragglers import RankLateness, Stragglers
from ringtune.timeline.database import Answer
from ringtune.timeline.units import several, share_text, time_text

Row = TypeVar("Row")

_LISTED = 12
_GAP = 2
"""Blanks between two columns."""
_SAME_CAUSE = ("late", "p")
"""Headers that need the one before them."""
_MOST_RANKS, _WORST = 16, 8
"""Of more ranks than the first only the second are listed."""
_CAUSE_NAMES = {"late": "late (others waited)", "copy_in": "copy in", "copy_out": "copy out"}


def new_table(title: str, *columns: str) -> Table:
    """Return an empty table; texts stand left, numbers right."""
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for column in columns:
        # On a narrow terminal the host gives way, never a number.
        is_host = column == "host"
        table.add_column(column, justify="left" if is_host else "right", no_wrap=not is_host, overflow="fold")
    return table


def stacked(view: RenderableType, width: int) -> list[RenderableType]:
    """Return what is shown with tables that are too wide cut into several, so that no number is ever cut.

    Args:
        view: Tables and lines, also in groups.
        width: Characters of a line.
    """
    if isinstance(view, Group):
        return [part for one in view.renderables for part in stacked(one, width)]
    if not isinstance(view, Table):
        return [view]
    return [part for one in _stacked(view, width) for part in _titled(one)]


def _titled(table: Table) -> Iterator[RenderableType]:
    """Title and caption as lines of their own: as parts of the table they would be broken at the table's width."""
    title, caption = table.title, table.caption
    table.title = table.caption = None
    if title:
        yield Text(str(title), "bold")
    yield table
    if caption:
        yield Text(str(caption), "dim")


def _stacked(table: Table, width: int) -> Iterator[Table]:
    """Parts of a table, each with its first column and as many others as fit; names too long for a line fold."""
    cells = [[str(cell) for cell in column.cells] for column in table.columns]
    widths = [max(map(cell_len, [str(column.header), *of])) for column, of in zip(table.columns, cells, strict=True)]
    widest = [max(width // 2, width - _GAP - max(widths[1:], default=0))]
    widest += [width - _GAP - min(widths[0], widest[0])] * (len(widths) - 1)
    for at, most in enumerate(widest):
        table.columns[at].no_wrap &= widths[at] <= most
        widths[at] = min(widths[at], most)
    groups: list[list[int]] = [[]]
    for at in range(1, len(widths)):
        if groups[-1] and widths[0] + sum(widths[one] + _GAP for one in (*groups[-1], at)) > width:
            begin = [at]
            while table.columns[begin[0]].header in _SAME_CAUSE and len(groups[-1]) > 1:
                begin.insert(0, groups[-1].pop())
            groups.append(begin[:-1])
        groups[-1].append(at)
    if len(groups) == 1:
        yield table
        return
    for number, chosen in enumerate(groups):
        headers = [str(table.columns[at].header) for at in (0, *chosen)]
        part = new_table(f"{table.title}{' (continued)' if number else ''}", *headers)
        for row in zip(*(cells[at] for at in (0, *chosen)), strict=True):
            part.add_row(*row)
        for column, at in zip(part.columns, (0, *chosen), strict=True):
            column.no_wrap = table.columns[at].no_wrap
        part.caption = table.caption if number == len(groups) - 1 else None
        yield part


def standing_out(rows: Sequence[Row], cost: Callable[[Row], Any], *, every: bool) -> tuple[list[Row], str]:
    """Return the rows of a table of ranks, and what it leaves out in words: of many ranks only the worst are listed.

    Args:
        rows: One or more a rank, in the order in which all are listed.
        cost: How much a row stands out.
        every: List all.
    """
    if every or len(rows) <= _MOST_RANKS:
        return list(rows), ""
    worst = sorted(rows, key=cost, reverse=True)[:_WORST]
    return worst, f"the {_WORST} that stand out, of {len(rows)}; --all lists all"


def critical_path_view(found: CriticalPath) -> RenderableType:
    """The path's causes, by rank, and the longest steps."""
    head = Text(f"Critical path: {time_text(found.length_ns)} over {len(found.steps)} steps", "bold")
    causes = new_table("What set the length, all steps", "cause", "time", "share", "a step")
    for cause in sorted(found.causes, key=lambda name: -found.causes[name]):
        total = found.causes[cause]
        share = share_text(total, found.length_ns)
        causes.add_row(cause_name(cause), time_text(total), share, time_text(total / max(1, len(found.steps))))
    ranks = new_table("By rank, longest first", "cause", "rank", "time", "share", "steps")
    for part in found.contributions[:_LISTED]:
        share = share_text(part.total_ns, found.length_ns)
        ranks.add_row(cause_name(part.cause), str(part.rank), time_text(part.total_ns), share, str(part.steps))
    return Group(head, causes, ranks, _step_table(found), *_transfers(found))


def _step_table(found: CriticalPath) -> RenderableType:
    shown = [cause for cause in critical_path.CAUSES if cause in found.causes]
    columns = ("step", "length", *(cause_name(cause) for cause in shown), "most")
    table = new_table("Longest steps", *columns)
    for step in sorted(found.steps, key=lambda step: -step.length_ns)[:_LISTED]:
        cells = [time_text(step.causes[cause]) if cause in step.causes else "-" for cause in shown]
        name = str(step.step) if step.step >= 0 else "-"
        table.add_row(name, time_text(step.length_ns), *cells, f"{cause_name(step.main_cause)}, rank {step.main_rank}")
    return table


def _transfers(found: CriticalPath) -> list[RenderableType]:
    if not found.batches:
        return []
    table = new_table("Transfers on the path, longest first", "first tensor", "time", "share")
    for label, total in found.batches[:_LISTED]:
        table.add_row(label or "-", time_text(total), share_text(total, found.length_ns))
    return [table]


def cause_name(name: str) -> str:
    """Return a cause of the critical path in words."""
    return _CAUSE_NAMES.get(name, name)


def stragglers_view(found: Stragglers, *, every: bool = False) -> RenderableType:
    """Who else made the others wait than the first sentence says, and the evidence; `every`: of all ranks."""
    table = new_table(
        f"Last in how many of {found.steps} steps, and by how much (batches that all ranks recorded: {found.batches})",
        "rank", "host", *(f"{cause}: steps" if part == 0 else ("late" if part == 1 else "p")
                          for cause in stragglers.CAUSES for part in range(3)), "carried over", "straggler",
    )  # fmt: skip
    ranks, table.caption = standing_out(found.ranks, _late_ns, every=every)
    for rank in ranks:
        table.add_row(str(rank.rank), rank.host or "-", *_cause_cells(rank), time_text(rank.carried_ns),
                      ", ".join(rank.verdict) or "-")  # fmt: skip
    parts: list[RenderableType] = [*(Text(one) for one in found.sentences()[1:]), table]
    if len(found.hosts) > 1:
        parts.append(_host_table(found, every=every))
    return Group(*parts, *_lists(found))


def _late_ns(rank: RankLateness) -> int:
    return sum(cause.total_ns for cause in rank.causes.values())


def _cause_cells(rank: RankLateness) -> list[str]:
    cells = []
    for cause in stragglers.CAUSES:
        late = rank.causes[cause]
        cells += [str(late.steps_last), time_text(late.total_ns), _p_text(late.p_value)]
    return cells


def _host_table(found: Stragglers, *, every: bool) -> RenderableType:
    table = new_table("By host", "host", "ranks", *(cause for cause in stragglers.CAUSES))
    hosts, table.caption = standing_out(found.hosts, lambda host: sum(host.total_ns.values()), every=every)
    for host in hosts:
        cells = [
            f"{several(host.steps_last[cause], 'step')}, {time_text(host.total_ns[cause])}"
            for cause in stragglers.CAUSES
        ]
        table.add_row(host.host or "-", str(host.ranks), *cells)
    return table


def _lists(found: Stragglers) -> list[RenderableType]:
    parts: list[RenderableType] = []
    if found.tensors:
        table = new_table("Tensors waited for, longest first", "tensor", "times", "too close", "mostly rank", "late")
        for tensor in found.tensors[:_LISTED]:
            who = f"{tensor.rank} ({tensor.rank_times}x)" if tensor.rank >= 0 else "-"
            table.add_row(tensor.tensor, str(tensor.times), str(tensor.undecided), who, time_text(tensor.total_ns))
        parts.append(table)
    if found.worst_steps:
        table = new_table("Worst steps", "step", "cause", "rank", "late")
        for step in found.worst_steps[:_LISTED]:
            table.add_row(str(step.step), step.cause, str(step.rank), time_text(step.lateness_ns))
        parts.append(table)
    return parts


def efficiency_view(found: Efficiency, *, every: bool = False) -> RenderableType:
    """The factors and what each says; of many ranks those that compute farthest from the usual one, or all."""
    table = new_table("Efficiency: the factors multiply exactly to it", "factor", "value", "what is missing to 100 %")
    rows = [
        ("load balance", found.load_balance, "some ranks compute longer than others"),
        ("x serialisation", found.serialisation, "ranks wait for what others have not yet computed"),
        ("x transfer", found.transfer, "communication and its control"),
        ("= parallel efficiency", found.parallel, "share of the ranks' time that trained"),
    ]
    if found.computation is not None:
        rows += [
            ("x computation scaling", found.computation, "computing is slower than in the reference run"),
            ("= efficiency", found.efficiency, ""),
        ]
    for name, value, meaning in rows:
        table.add_row(name, f"{100 * float(value):.2f} %", meaning)
    useful = new_table("Useful time", "rank", "useful", "share")
    usual_ns = statistics.median(found.useful_ns.values())
    ranks, useful.caption = standing_out([*found.useful_ns.items()], lambda row: abs(row[1] - usual_ns), every=every)
    for rank, ns in ranks:
        useful.add_row(str(rank), time_text(ns), share_text(ns, found.runtime_ns))
    length = Text(f"{found.steps} steps in {time_text(found.runtime_ns)}; {time_text(found.ideal_ns)} if communication "
                  "were free")  # fmt: skip
    return Group(length, table, useful)


def comparison_view(found: Comparison, *, every: bool = False) -> RenderableType:
    """What changed, worst first; of many ranks those that changed most, or `every` one."""
    head = Text(f"A: {found.first} ({found.first_steps} steps)\nB: {found.second} ({found.second_steps} steps)")
    table = new_table(
        "Time a step, B against A, worst first", "what", "A", "B", "difference", "95 % interval", "p", "B is"
    )
    shown, table.caption = _shown_changes(found.changes, every=every)
    for change in shown:
        style = {"slower": "red", "faster": "green"}.get(change.verdict)
        table.add_row(*_change_cells(change), style=style)
    parts: list[RenderableType] = [head, table]
    for name, only in (("A", found.only_first), ("B", found.only_second)):
        if only:
            more = f" and {len(only) - _LISTED} more" if len(only) > _LISTED else ""
            parts.append(Text(f"only in {name}: {', '.join(only[:_LISTED])}{more}", "yellow"))
    return Group(*parts)


def _shown_changes(changes: Sequence[Change], *, every: bool) -> tuple[list[Change], str]:
    """Return the changes to list, and what is left out of those that each rank has, in words."""
    left_out: set[tuple[str, str]] = set()
    said = ""
    for kind in ("compute", "waiting"):
        ranks = [change for change in changes if change.kind == kind]
        chosen, words = standing_out(ranks, _certainty, every=every)
        left_out |= {(kind, change.what) for change in ranks} - {(kind, change.what) for change in chosen}
        said = f"of compute and waiting {words}" if words else said
    return [change for change in changes if (change.kind, change.what) not in left_out], said


def _certainty(change: Change) -> tuple[bool, float]:
    return change.verdict in ("slower", "faster"), abs(change.difference_ns)


def _change_cells(change: Change) -> tuple[str, ...]:
    name = change.what if change.kind == "step" else f"{change.kind} {change.what}"
    ratio = f" ({100 * (change.ratio - 1):+.1f} %)" if change.ratio is not None else ""
    sign = "+" if change.difference_ns > 0 else ""
    interval = f"{time_text(change.low_ns)} .. {time_text(change.high_ns)}"
    difference = f"{sign}{time_text(change.difference_ns)}{ratio}"
    p_value = _p_text(change.p_value)
    return name, time_text(change.first_ns), time_text(change.second_ns), difference, interval, p_value, change.verdict


def answer_view(answer: Answer) -> RenderableType:
    """Rows of a query."""
    table = new_table("", *answer.columns)
    for row in answer.rows:
        table.add_row(*("-" if value is None else str(value) for value in row))
    return table


def _p_text(p_value: float) -> str:
    return "<0.0001" if p_value < 1e-4 else f"{p_value:.4f}"
