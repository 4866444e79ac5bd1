"""``ringtune check --network``: starts the ranks of a job where it will run, and prints what to expect there."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click
import orjson
from rich.console import Console
from rich.table import Table

from ringtune.errors import RingtuneError
from ringtune.launch import LaunchOptions, launch
from ringtune.standard_streams import screen_width
from ringtune.timeline import load
from ringtune.timeline.units import bytes_text, time_text
from ringtune.tuner import preflight
from ringtune.tuner.model.calibrate import Model, calibrate
from ringtune.tuner.model.cluster import Cluster
from ringtune.tuner.model.networks import known
from ringtune.tuner.model.questions import Answer
from ringtune.tuner.preflight_worker import MARK
from ringtune.tuner.scoring import Interval, median_interval

_KEPT_LINES = 25


@dataclass(frozen=True)
class NetworkCheck:
    """What to check.

    Attributes:
        ranks: Of the job; None = all slots of `hosts`, or two here.
        hosts: As for ``ringtune run -H``; None = this machine.
        trace: A job's own trace or run folder, to be expected as well; None.
        seconds: For each of the measurement's phases.
        as_json: Print JSON.
    """

    ranks: int | None = None
    hosts: str | None = None
    trace: Path | None = None
    seconds: float = 1.0
    as_json: bool = False


def check_network(wanted: NetworkCheck) -> None:
    """Measure and print.

    Raises:
        UsageError: Hosts or ranks make no sense.
        RingtuneError: A rank failed, or the trace has no steps.
    """
    model = calibrate(load(wanted.trace), wanted.trace.stem) if wanted.trace is not None else None
    found = measure(wanted)
    some = preflight.clusters(found)
    answers = _answers(some, model)
    if wanted.as_json:
        click.echo(orjson.dumps(preflight.document(found, some, answers), option=orjson.OPT_INDENT_2).decode())
        return
    console = Console(width=screen_width(120))
    _print(console, found, answers)


def measure(wanted: NetworkCheck) -> preflight.Findings:
    """Run the ranks.

    Raises:
        RingtuneError: One failed; the message ends with what the job printed last.
    """
    said: list[str] = []
    printed: deque[str] = deque(maxlen=_KEPT_LINES)

    def on_line(rank: int, stream: str, line: str) -> None:
        if line.startswith(MARK):
            said.append(line.removeprefix(MARK))
        else:
            printed.append(f"[{rank}] {line}".rstrip())

    code = launch(
        LaunchOptions(
            command=[sys.executable, "-m", "ringtune.tuner.preflight_worker", str(wanted.seconds)],
            num_proc=wanted.ranks if wanted.ranks is not None or wanted.hosts is not None else 2,
            hosts=wanted.hosts,
            echo=False,
            on_line=on_line,
        )
    )
    if code == 130:
        raise KeyboardInterrupt
    if code != 0 or not said:
        tail = "\n".join(printed) or "(it printed nothing)"
        raise RingtuneError(f"the network could not be measured: the ranks ended with exit code {code}:\n{tail}")
    return preflight.findings(orjson.loads(said[0])["ranks"])


def _answers(some: list[Cluster], model: Model | None) -> list[Answer]:
    own = [preflight.on(some, model)] if model is not None else []
    return [*own, *(preflight.expected(some, work) for work in known())]


def _print(console: Console, found: preflight.Findings, answers: list[Answer]) -> None:
    hosts = len(set(found.hosts))
    console.print(f"{len(found.hosts)} ranks on {hosts} host{'s' if hosts > 1 else ''}", highlight=False)
    if found.links:
        table = Table("from", "to", "latency", "carries", title="links between hosts", title_justify="left")
        for link in found.links:
            latency = _spread(link.latency_ns, time_text)
            table.add_row(link.source, link.target, latency, _spread(link.bytes_per_s, preflight.bits_text))
        console.print(table)
    if found.times_ns:
        table = Table("allreduce of", "takes", title="over all ranks", title_justify="left")
        for size, times in found.times_ns.items():
            table.add_row(bytes_text(size), _spread(median_interval(times), time_text))
        console.print(table)
    table = Table("network", "a rank computes", "a step takes", "waits", "efficiency", title="to be expected",
                  title_justify="left")  # fmt: skip
    for answer in answers:
        value, length, waits = answer.efficiency, answer.step_ns, answer.exposed_ns
        table.add_row(
            answer.change.label,
            time_text(answer.step.compute_ns),
            _spread(Interval(length.value, length.low, length.high), time_text),
            _spread(Interval(waits.value, waits.low, waits.high), time_text),
            f"{100 * value.value:.1f} % [{100 * value.low:.1f}, {100 * value.high:.1f}]",
        )
    console.print(table)
    console.print(
        "Computing is that of a V100 (ResNet-50, VGG-16: batch 32); a faster processor waits longer. --trace RUN asks "
        "for your own job. [95 % intervals]",
        highlight=False,
    )
    for warning in preflight.warnings(found, answers):
        console.print(f"[yellow]warning:[/] {warning}", highlight=False)


def _spread(value: Interval, text: Callable[[float], str]) -> str:
    """A figure with its 95 % interval."""
    return f"{text(value.median)} [{text(value.low)}, {text(value.high)}]"
