"""``ringtune predict``: what a job would give on more ranks, another network, or with other settings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click
import orjson
from rich.console import Console
from rich.table import Table

from ringtune.algorithms import ALGORITHMS
from ringtune.errors import UsageError
from ringtune.timeline import load
from ringtune.timeline.analysis.tables import new_table, stacked
from ringtune.timeline.units import bytes_text, parse_rate, rate_text, time_text, times_in_one_unit
from ringtune.tuner.model.adopt import World, adopt, foreign
from ringtune.tuner.model.assumed import LINE_SHARE, assumptions, believed, of_profile
from ringtune.tuner.model.calibrate import Model, calibrate, check
from ringtune.tuner.model.questions import WIRE, Answer, Change, ask, built_in, percents
from ringtune.tuner.model.workload import Workload, from_profile

_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*(ns|us|µs|ms|s)")
_TIME_UNITS = {"ns": 1.0, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9}
_DEFAULT_DOUBLINGS = 5
_SHOWN_SKEW = 0.01
"""Share of its computing from which on a rank that is always the last one is worth a word."""


def parse_time(text: str) -> float:
    """Read a time such as ``10us`` or ``1.5ms``, as ns.

    Raises:
        UsageError: It is none.
    """
    match = _TIME.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r} is no time: expected a number with ns, us, ms or s, as in 10us")
    return float(match[1]) * _TIME_UNITS[match[2]]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("-np", "--num-proc", "ranks", metavar="N,...", help="Numbers of ranks; default: the job's, doubled.")
@click.option("--slots-per-host", type=click.IntRange(min=1), help="Ranks of a host; default: as in the job.")
@click.option(
    "--bandwidth", metavar="RATE", help="Bandwidth of a host's network, e.g. 25Gbit/s; default: as in the job."
)
@click.option("--latency", metavar="TIME", help="Latency between hosts, e.g. 10us; default: as in the job.")
@click.option("--step", metavar="TIME", help="Computing time of a profile's step, e.g. 128.1ms.")
@click.option("--compute-speed", type=float, default=1.0, help="Factor on the speed of computing.")
@click.option("--straggler", type=float, default=1.0, help="The slowest rank computes so many times as long.")
@click.option(
    "--compression", type=click.Choice(list(WIRE)), default="none", help="Compression of gradients on the wire."
)
@click.option(
    "--algorithm", type=click.Choice(ALGORITHMS[1:]), help="Algorithm between hosts; default: as the runtime chooses."
)
@click.option(
    "--cores", type=click.IntRange(min=1), help="Cores that all ranks share, where hosts are parts of one machine."
)
@click.option("--fusion-mb", type=click.FloatRange(min=0), help="Fusion buffer in MiB.")
@click.option("--cycle-time-ms", type=click.FloatRange(min=0), help="Cycle time in ms.")
@click.option(
    "--profile", type=click.Path(path_type=Path), help="Backward profile with the sizes, for a trace without them."
)
@click.option("--ran-ranks", type=click.IntRange(min=2), help="Ranks of the job, where the trace does not say.")
@click.option("--ran-hosts", type=click.IntRange(min=1), help="Hosts of the job, where the trace does not say.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def predict(sources: tuple[Path, ...], ranks: str | None, as_json: bool, **values: Any) -> None:
    """Predict step time and efficiency of the job that left SOURCE.

    SOURCE is a run folder or a trace (ringtune's, PyTorch's: one file a rank, Horovod's), or a backward profile of
    lines `microseconds,bytes`.
    Intervals hold 95 %: what was measured, and the model's error on steps that were left out of its fit.
    """
    model = _model(sources, values)
    base = {
        "slots": values["slots_per_host"],
        "bandwidth": _bandwidth(model, values["bandwidth"]),
        "latency_ns": parse_time(values["latency"]) if values["latency"] else None,
        "straggler": values["straggler"],
        "compression": values["compression"],
        "algorithm": values["algorithm"],
        "compute": values["compute_speed"],
        "cores": values["cores"],
        "knobs": _knobs(values["fusion_mb"], values["cycle_time_ms"]),
    }
    counts = _counts(ranks, model.cluster.ranks)
    growing = [ask(model, Change(_size(model, count, base["slots"]), ranks=count, **base)) for count in counts]
    what_if = [_what_if(model, change, base) for change in built_in(counts[-1])]
    set_rate, set_delay = base["bandwidth"] is not None, base["latency_ns"] is not None
    across = any(answer.hosts > 1 for answer in growing)
    assumed = assumptions(model, across=across, bandwidth=set_rate, latency=set_delay)
    if as_json:
        document = {**_document(model, growing, what_if), "assumed": assumed}
        click.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())
        return
    console = Console()
    console.print(_headline(model), highlight=False)
    if assumed:
        console.print(assumed, highlight=False)
    for table in (_table("more ranks", growing), _table(f"what if, at {counts[-1]} ranks", what_if)):
        for part in stacked(table, console.width):
            console.print(part, highlight=False)


def _what_if(model: Model, change: Change, base: dict[str, Any]) -> Answer:
    """The question, with what the user set added to it."""
    own = {name: getattr(change, name) for name in ("network", "even", "overlap")}
    compression = change.compression if change.compression != "none" else base["compression"]
    knobs = {**base["knobs"], **change.knobs}
    merged = {**base, **own, "compression": compression, "knobs": knobs}
    return ask(model, Change(change.label, ranks=change.ranks, **merged))


def _model(sources: tuple[Path, ...], values: dict[str, Any]) -> Model:
    first, step = sources[0], values["step"]
    if len(sources) == 1 and first.is_file() and _is_profile(first):
        return of_profile(_profile(first, step))
    if step is not None:
        raise UsageError("--step is for a backward profile; a trace knows its steps. --compute-speed changes both.")
    trace = load(sources if len(sources) > 1 else first)
    if foreign(trace):
        given = values["profile"]
        sizes = [gradient.bytes for gradient in _profile(given, None).gradients] if given else None
        trace = adopt(trace, World(values["ran_ranks"], values["ran_hosts"]), sizes)
    elif given := [f"--{name.replace('_', '-')}" for name in ("profile", "ran_ranks", "ran_hosts") if values[name]]:
        raise UsageError(f"{given[0]} is for traces of other tools; ringtune's know that")
    return believed(calibrate(trace, first.stem))


def _bandwidth(model: Model, text: str | None) -> float | None:
    """What links carry; where that was not measured, a share of the line that the user gives."""
    if text is None:
        return None
    return parse_rate(text) * (LINE_SHARE if model.cluster.hosts == 1 else 1.0)


def _profile(path: Path, step: str | None) -> Workload:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"{path}: no backward profile: {error.strerror}") from error
    return from_profile(text, path.stem, parse_time(step) if step else None)


def _is_profile(path: Path) -> bool:
    with path.open("rb") as file:
        head = file.read(4096)
    lines = head.decode("utf-8", errors="replace").splitlines()
    return len(lines) > 3 and re.fullmatch(r"[\d.eE+-]+,\d+", lines[3].strip()) is not None


def _counts(text: str | None, ranks: int) -> list[int]:
    if text is None:
        first = max(ranks, 1)
        return [first * 2**power for power in range(_DEFAULT_DOUBLINGS + (first == 1))]
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise UsageError(f"-np {text!r}: expected numbers of ranks with commas between, as in 8,64,512") from None


def _size(model: Model, ranks: int, slots: int | None) -> str:
    hosts = -(-ranks // (slots or model.cluster.slots))
    return f"{ranks} ranks, {hosts} host{'s' if hosts > 1 else ''}"


def _knobs(fusion_mb: float | None, cycle_ms: float | None) -> dict[str, int]:
    knobs = {}
    if fusion_mb is not None:
        knobs["fusion_bytes"] = round(fusion_mb * (1 << 20))
    if cycle_ms is not None:
        knobs["cycle_time_ns"] = round(cycle_ms * 1e6)
    return knobs


def _headline(model: Model) -> str:
    work, cluster, link = model.work, model.cluster, model.cluster.widest
    amount = f"{len(work.gradients)} gradients of {bytes_text(work.bytes)}"
    lines = [f"{work.name}: {amount}, computes {time_text(work.compute_ns)} a step"]
    error = check(model)
    if error is not None and model.measured_ns is not None:
        lines += [
            f"measured on {cluster.ranks} ranks, {cluster.hosts} host(s): {time_text(model.measured_ns)} a step; "
            f"the model gives {100 * (1 + error):.1f} % of it, and errs by {100 * model.error:.1f} % on steps left out",
            f"links {rate_text(link.bytes_per_s)}, {time_text(link.latency_ns)}; a rank's computing spreads by "
            f"{100 * work.jitter:.1f} % from step to step"
            + (f", the slowest one always takes {100 * work.skew:.1f} % longer" if work.skew >= _SHOWN_SKEW else ""),
        ]
    return "\n".join(lines)


def _table(title: str, answers: list[Answer]) -> Table:
    table = new_table(title, "", "step", "efficiency", "exposed", "late")
    for answer in answers:
        table.add_row(
            answer.change.label,
            answer.step_ns.text(times_in_one_unit),
            answer.efficiency.text(percents),
            answer.exposed_ns.text(times_in_one_unit),
            answer.late_ns.text(times_in_one_unit),
        )
    return table


def _document(model: Model, growing: list[Answer], what_if: list[Answer]) -> dict[str, Any]:
    link = model.cluster.widest
    return {
        "format": 2,
        "workload": {
            "name": model.work.name,
            "gradients": len(model.work.gradients),
            "bytes": model.work.bytes,
            "compute_ns": model.work.compute_ns,
            "jitter": model.work.jitter,
            "skew": model.work.skew,
        },
        "measured": {
            "ranks": model.cluster.ranks,
            "hosts": model.cluster.hosts,
            "step_ns": model.measured_ns,
            "model_error": check(model),
            "left_out_error": model.error,
            "link": {"latency_ns": link.latency_ns, "bytes_per_s": link.bytes_per_s},
        },
        "ranks": [answer.as_dict() for answer in growing],
        "what_if": [answer.as_dict() for answer in what_if],
    }
