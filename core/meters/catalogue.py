"""The metrics that a running job exports: names by Prometheus' conventions, units, labels and where values come from.

README, exporter and Grafana's dashboard are held against this table by tests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ringtune.knobs import TABLE
from ringtune.markdown import bullets
from ringtune.meters.state import RankState

_S = 1e-9

Labelled = tuple[tuple[str, ...], float]
"""Values of the labels behind the first one, and the number."""


@dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes:
        name: Its name as Prometheus shows it.
        kind: ``counter``, ``gauge`` or ``histogram``.
        scope: What its first label is: each ``rank``, each ``host`` (its first rank reports), or the ``job`` (rank
            0 reports, without that label).
        meaning: One sentence.
        values: Labels and values of one rank's state; of the histogram none.
        labels: Names of the labels behind the first one.
    """

    name: str
    kind: str
    scope: str
    meaning: str
    values: Callable[[RankState], Iterable[Labelled]]
    labels: tuple[str, ...] = ()

    @property
    def all_labels(self) -> tuple[str, ...]:
        """Names of its labels."""
        return self.labels if self.scope == "job" else (self.scope, *self.labels)


def _one(value: Callable[[RankState], float]) -> Callable[[RankState], Iterable[Labelled]]:
    return lambda state: [((), value(state))]


def _counter(name: str, scale: float = 1) -> Callable[[RankState], Iterable[Labelled]]:
    return _one(lambda state: state.counters[name] * scale)


def _alerts(place: int) -> Callable[[RankState], Iterable[Labelled]]:
    return lambda state: [((kind,), values[place]) for kind, values in state.alerts.items()]


def _awaited(state: RankState) -> Iterable[Labelled]:
    return [((str(rank), operation), (time.time_ns() - since) * _S) for rank, operation, since in state.awaited]


def _knob(name: str, scale: float = 1) -> Callable[[RankState], Iterable[Labelled]]:
    return _one(lambda state: state.knobs[name] * scale)


def _sample(name: str, scale: float = 1) -> Callable[[RankState], Iterable[Labelled]]:
    return _one(lambda state: state.sample[name] * scale)


def _traffic(index: int) -> Callable[[RankState], Iterable[Labelled]]:
    return lambda state: [((kind,), values[index]) for kind, values in sorted(state.traffic.items())]


def _gpu(name: str, scale: float = 1) -> Callable[[RankState], Iterable[Labelled]]:
    return lambda state: [((str(gpu["index"]),), gpu[name] * scale) for gpu in state.sample["gpus"]]


CATALOGUE = (
    Metric("ringtune_ranks", "gauge", "job", "Ranks of the job.", _one(lambda s: s.size)),
    Metric(
        "ringtune_elastic_generation",
        "gauge",
        "job",
        "Number of the set of ranks in an elastic job; 0 in a job with fixed ranks.",
        _one(lambda s: s.generation),
    ),
    Metric(
        "ringtune_step_duration_seconds",
        "histogram",
        "rank",
        "Optimizer steps by duration, 1 ms to 100 s; `_count` is the number of steps.",
        lambda state: [],
    ),
    Metric("ringtune_operations_total", "counter", "rank", "Collective operations finished.", _traffic(0), ("kind",)),
    Metric(
        "ringtune_payload_bytes_total",
        "counter",
        "rank",
        "Payload of this rank that was reduced, gathered or broadcast.",
        _traffic(1),
        ("kind",),
    ),
    Metric(
        "ringtune_batches_total", "counter", "rank", "Batches that operations were fused into.", _counter("batches")
    ),
    Metric(
        "ringtune_negotiation_seconds_total",
        "counter",
        "rank",
        "Time from submit to agreement of all ranks, summed over operations.",
        _counter("negotiate_ns", _S),
    ),
    Metric(
        "ringtune_communication_seconds_total",
        "counter",
        "rank",
        "Time of the batches on the links.",
        _counter("communicate_ns", _S),
    ),
    Metric(
        "ringtune_copy_seconds_total",
        "counter",
        "rank",
        "Time of copies into and out of the fusion buffer.",
        _counter("copy_ns", _S),
    ),
    Metric(
        "ringtune_blocked_seconds_total",
        "counter",
        "rank",
        "Time that callers were blocked: by exposed communication or, beyond that of the job, for a late rank.",
        _counter("wait_ns", _S),
    ),
    Metric(
        "ringtune_exposed_seconds_total",
        "counter",
        "job",
        "Exposed communication: of every step what its least blocked rank was blocked for.",
        _one(lambda s: s.exposed_ns * _S),
    ),
    Metric(
        "ringtune_control_messages_total",
        "counter",
        "rank",
        "Messages of the negotiation, sent and received.",
        _counter("control_messages"),
    ),
    Metric("ringtune_control_bytes_total", "counter", "rank", "Their size.", _counter("control_bytes")),
    Metric(
        "ringtune_open_operations",
        "gauge",
        "rank",
        "Operations that were submitted and are not done: the depth of the queue.",
        _one(lambda s: s.open_operations),
    ),
    Metric(
        "ringtune_stalls_total",
        "counter",
        "rank",
        "Stalls reported: an operation that some ranks did not submit for long.",
        _one(lambda s: s.stalls),
    ),
    Metric("ringtune_alerts_total", "counter", "job", "Alerts raised.", _alerts(0), ("kind",)),
    Metric("ringtune_alert_active", "gauge", "job", "Whether an alert holds now, 1 or 0.", _alerts(1), ("kind",)),
    Metric(
        "ringtune_stall_waiting_seconds",
        "gauge",
        "job",
        "While a stall is an alert, how long its oldest operation has waited for a rank that has not submitted it.",
        _awaited,
        ("missing_rank", "operation"),
    ),
    Metric("ringtune_knobs_version", "gauge", "rank", "Version of the knobs in force.", _knob("knobs_version")),
    *(
        Metric(
            f"ringtune_{row.metric}",
            "gauge",
            "job",
            row.gauge or row.meaning,
            _knob(row.name, _S if row.kind == "float" else 1),
        )
        for row in TABLE
    ),
    Metric(
        "ringtune_process_cpu_seconds_total",
        "counter",
        "rank",
        "CPU time of the rank's process.",
        _sample("cpu_ns", _S),
    ),
    Metric("ringtune_process_resident_memory_bytes", "gauge", "rank", "Its resident memory.", _sample("rss_bytes")),
    Metric(
        "ringtune_rank_observed_timestamp_seconds",
        "gauge",
        "rank",
        "When the rank last reported, seconds since 1970: the value of a stuck or dead rank stays behind.",
        _sample("unix_ns", _S),
    ),
    Metric("ringtune_machine_cores", "gauge", "host", "Cores of the machine.", _sample("machine_cores")),
    Metric(
        "ringtune_machine_cpu_seconds_total",
        "counter",
        "host",
        "CPU time of all processes, over all cores.",
        _sample("machine_cpu_ns", _S),
    ),
    Metric("ringtune_machine_memory_bytes", "gauge", "host", "Memory of the machine.", _sample("machine_memory_bytes")),
    Metric(
        "ringtune_machine_memory_used_bytes",
        "gauge",
        "host",
        "The part that is not available.",
        _sample("machine_memory_used_bytes"),
    ),
    Metric(
        "ringtune_network_received_bytes_total",
        "counter",
        "host",
        "Bytes that came in over all interfaces but loopback.",
        _sample("network_received_bytes"),
    ),
    Metric(
        "ringtune_network_sent_bytes_total",
        "counter",
        "host",
        "Bytes that went out over them.",
        _sample("network_sent_bytes"),
    ),
    Metric(
        "ringtune_loopback_bytes_total",
        "counter",
        "host",
        "Bytes through the loopback interface.",
        _sample("loopback_bytes"),
    ),
    Metric(
        "ringtune_gpu_use_ratio",
        "gauge",
        "host",
        "Share of the time during which a kernel ran, 0 to 1.",
        _gpu("use_percent", 0.01),
        ("gpu",),
    ),
    Metric(
        "ringtune_gpu_memory_used_bytes",
        "gauge",
        "host",
        "Memory of the GPU in use.",
        _gpu("memory_used_bytes"),
        ("gpu",),
    ),
    Metric("ringtune_gpu_memory_bytes", "gauge", "host", "Memory of the GPU.", _gpu("memory_bytes"), ("gpu",)),
)
"""All metrics, in the order in which they are exported."""


def speaks(metric: Metric, state: RankState) -> bool:
    """Whether that rank reports the metric."""
    return metric.scope == "rank" or (state.local_rank == 0 if metric.scope == "host" else state.rank == 0)


def markdown() -> str:
    """Return the list of metrics for the README, in lines of at most 120 characters."""
    return bullets(
        f"`{metric.name}` ({'; by '.join([metric.kind, *_labels(metric)])}): {metric.meaning}" for metric in CATALOGUE
    )


def _labels(metric: Metric) -> list[str]:
    said = ", ".join(f"`{label}`" for label in metric.all_labels)
    return [said] if said else []
