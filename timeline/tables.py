"""The summary as tables for a terminal. Only draws: every number comes from `ringtune.timeline.analysis.summary`."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ringtune.timeline.analysis.summary import RankSummary, Summary
from ringtune.timeline.analysis.tables import new_table, standing_out
from ringtune.timeline.units import bytes_text, rate_text, several, share_text, time_text
from ringtune.timeline.vocabulary import Stage

_PHASES = (
    *(Stage.WAIT_FOR_DATA, Stage.DEVICE_QUEUE, Stage.COPY_TO_HOST),
    *(Stage.NEGOTIATE, Stage.QUEUE, Stage.COPY_IN, Stage.COMMUNICATE, Stage.COPY_OUT),
    *(Stage.COPY_TO_DEVICE, Stage.WAIT, Stage.DEVICE_WAIT, Stage.STEP),
)


def summary_view(summary: Summary, *, every: bool = False) -> RenderableType:
    """Return everything the summary knows, most important first; `every`: of all ranks, however many."""
    parts: list[RenderableType] = [_headline(summary)]
    parts += [Text(f"! {sentence}", "yellow") for sentence in summary.warnings()]
    if summary.ranks:
        parts.append(phase_table(summary, every))
    if any(rank.stages.get(Stage.COMMUNICATE.label) for rank in summary.ranks):
        parts.append(communication_table(summary, every))
    if summary.fusion:
        parts.append(fusion_line(summary))
    if summary.peer_waits:
        parts.append(peer_wait_table(summary, every))
    if summary.arrivals.ranks:
        parts.append(arrival_table(summary, every))
    if summary.knobs_versions:
        parts.append(knobs_table(summary))
    return Group(*parts)


def _headline(summary: Summary) -> Text:
    job = f"job {summary.job}, " if summary.job else ""
    ranks = "1 rank" if summary.size == 1 else f"{summary.size} ranks"
    text = Text(f"{job}{ranks}, {summary.span_count} spans over {time_text(summary.duration_ns)}")
    if summary.steps:
        text.append(f"\n{summary.steps.sentence()}", "bold")
    for sentence in summary.clocks():
        text.append(f"\n{sentence}", "dim")
    return text


def phase_table(summary: Summary, every: bool) -> Table:
    """Time per phase and rank: what the wall clock saw (overlapping spans count once)."""
    stages = [stage for stage in _PHASES if any(stage.label in rank.stages for rank in summary.ranks)]
    table = new_table("Time per phase", "rank", *(stage.label.replace("_", " ") for stage in stages))
    ranks, table.caption = standing_out(summary.ranks, _unusual_wait(summary), every=every)
    for rank in ranks:
        cells = [rank.stages.get(stage.label) for stage in stages]
        table.add_row(str(rank.rank), *(time_text(cell.busy_ns) if cell else "-" for cell in cells))
    return table


def communication_table(summary: Summary, every: bool) -> Table:
    """Bytes, bandwidth, and how much of the communication the training had to wait for."""
    limit = "of the link" if summary.link_bytes_per_s else "of the fastest"
    columns = (
        "rank",
        "host",
        "bytes",
        "bus bandwidth",
        limit,
        "overlapped",
        "exposed",
        "for late ranks",
        "wait of step",
    )
    dominated = {"skew": ", skew-dominated", "transfer": ", transfer-dominated"}.get(summary.dominated_by, "")
    table = new_table(f"Communication{dominated}", *columns)
    ranks, table.caption = standing_out(summary.ranks, _unusual_wait(summary), every=every)
    for rank in ranks:
        table.add_row(str(rank.rank), rank.host or "-", *_communication_cells(rank, _limit(summary)))
    return table


def _unusual_wait(summary: Summary) -> Callable[[RankSummary], float]:
    """How far a rank's waiting is from the others': the late one waits least, one on a bad link most."""

    def waited(rank: RankSummary) -> float:
        stage = rank.stages.get(Stage.WAIT.label) or rank.stages.get(Stage.COMMUNICATE.label)
        return stage.busy_ns if stage else 0.0

    usual = median(map(waited, summary.ranks)) if summary.ranks else 0.0
    return lambda rank: abs(waited(rank) - usual)


def _limit(summary: Summary) -> float:
    """What the bus bandwidth is compared with: the link's limit, else the fastest twentieth of the collectives."""
    fastest = [kind.fastest_bytes_per_s for kind in summary.traffic if kind.fastest_bytes_per_s is not None]
    return summary.link_bytes_per_s or max(fastest, default=0.0)


def _communication_cells(rank: RankSummary, limit: float) -> tuple[str, ...]:
    size, rate = bytes_text(rank.bytes), rate_text(rank.bus_bytes_per_s)
    share = share_text(rank.bus_bytes_per_s, limit) if rank.bus_bytes_per_s is not None else "-"
    if rank.exposure is None:
        return size, rate, share, "-", "-", "-", "-"
    step = rank.steps.total_ns if rank.steps else 0
    about = rank.exposure
    times = (time_text(ns) for ns in (about.overlapped_ns, about.exposed_ns, about.late_ns))
    return size, rate, share, *times, share_text(about.wait_ns, step)


def fusion_line(summary: Summary) -> Text:
    """Batch fill in one sentence."""
    fusion = summary.fusion
    if fusion is None:
        return Text("")
    rate = f", {fusion.batches_per_step:.1f} a step" if fusion.batches_per_step is not None else ""
    fill = f", {100 * fusion.fill:.1f} % of the fusion buffer" if fusion.fill is not None else ""
    return Text(
        f"Fusion: {several(fusion.batches, 'batch')}{rate}, {fusion.tensors_per_batch:.1f} tensors "
        f"and {bytes_text(fusion.bytes_per_batch)} each{fill}"
    )


def peer_wait_table(summary: Summary, every: bool) -> Table:
    """Which rank was ready and waited for which peer."""
    table = new_table("Waited for another rank", "rank", "for rank", "times", "sum", "longest")
    ordered = sorted(summary.peer_waits, key=lambda wait: -wait.total_ns)
    waits, table.caption = standing_out(ordered, lambda wait: wait.total_ns, every=every)
    for wait in waits:
        cells = (str(wait.count), time_text(wait.total_ns), time_text(wait.longest_ns))
        table.add_row(str(wait.rank), str(wait.peer), *cells)
    return table


def arrival_table(summary: Summary, every: bool) -> Table:
    """Which ranks the others waited for."""
    arrivals = summary.arrivals
    title = f"Arrived last ({arrivals.tensors} tensors, {arrivals.tensors_undecided} too close to tell)"
    table = new_table(title, "rank", "tensors", "batches", "median late", "largest", "sum over batches")
    ranks, table.caption = standing_out(arrivals.ranks, lambda rank: rank.batch_lateness_ns, every=every)
    for rank in ranks:
        table.add_row(
            str(rank.rank),
            f"{rank.tensors_last} ({share_text(rank.tensors_last, arrivals.tensors)})",
            str(rank.batches_last),
            time_text(rank.median_lateness_ns),
            time_text(rank.largest_lateness_ns),
            time_text(rank.batch_lateness_ns),
        )
    return table


def knobs_table(summary: Summary) -> Table:
    """Versions of the knobs that were in force."""
    table = new_table("Knobs", "version", "steps", "batches", "fusion buffer", "cycle time")
    for one in summary.knobs_versions:
        steps = f"{one.first_step}-{one.last_step}" if one.first_step >= 0 else "-"
        size, cycle = one.knobs.get("fusion_bytes"), one.knobs.get("cycle_time_ns")
        fusion_cell = bytes_text(size) if isinstance(size, int) else "-"
        cycle_cell = time_text(cycle) if isinstance(cycle, int) else "-"
        table.add_row(str(one.knobs_version), steps, str(one.batches), fusion_cell, cycle_cell)
    return table
