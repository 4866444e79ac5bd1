"""`ringtune bench links`: allreduces and steps' gradients between hosts beside iperf3 and Gloo on the same links.

The hosts are network namespaces with links shaped to a rate (see `netlab/network.py`). For each rate, iperf3 measures
the line one way and both ways at once, then ringtune and its peers race (see `harness/races.py`), then iperf3 measures
again; all of that `rounds` times. During an allreduce of N bytes over H hosts at least 2 (H - 1) / H N bytes cross each
host's link in one direction: these, per second, over iperf3's one-way rate are the share of the line.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from ringtune import layout
from ringtune.benchmarks.comm.micro import Case
from ringtune.benchmarks.harness.environments import SUBJECT
from ringtune.benchmarks.harness.jobs import thread_variables
from ringtune.benchmarks.harness.peers import Selection, contenders_by_job
from ringtune.benchmarks.harness.racejob import JobLost, JobPlan, RaceJob
from ringtune.benchmarks.harness.races import Budget, Race
from ringtune.benchmarks.harness.statistics import paired_ratio_interval, quartiles, share_text
from ringtune.benchmarks.netlab import network
from ringtune.benchmarks.netlab.network import Host, Network
from ringtune.errors import RingtuneError, UsageError
from ringtune.timeline.units import times_in_one_unit
from ringtune.tuner.scoring import Interval

_STORE_PORT = 29450
_WORKER = "ringtune.benchmarks.comm.micro_worker"
_IPERF_SECONDS = 2


@dataclass(frozen=True)
class LinksRequest:
    """What the user asked for.

    Args:
        rates: as `network.link_rate` reads them.
        hosts: network namespaces.
        ranks_per_host: ranks in each; those of one host share memory.
        benchmark: ``allreduce``, or ``gradients``: several tensors at once.
        cases: the rows.
        seconds: measured per size and contender in each round.
        rounds: how often iperf3 and the race alternate.
        peers: who takes part.
    """

    rates: Sequence[str]
    hosts: int
    ranks_per_host: int
    benchmark: str
    cases: Sequence[Case]
    seconds: float
    rounds: int
    peers: Selection


def run_links(request: LinksRequest, console: Console) -> dict[str, Any]:
    """Measures, prints a table per rate and returns the record for `--json`.

    Raises:
        UsageError: root or a program is missing.
        RingtuneError: a rank failed, a wrong result included.
    """
    lacking = network.missing()
    if lacking is None and shutil.which("iperf3") is None:
        lacking = "the program 'iperf3'"
    if lacking is not None:
        raise UsageError(f"'ringtune bench links' makes hosts of network namespaces and needs {lacking}")
    for name, reason in request.peers.absent.items():
        console.print(f"absent: {name} ({reason})")
    record: dict[str, Any] = {
        "format": layout.FORMAT,
        "benchmark": "links",
        "command": ["ringtune", *sys.argv[1:]],
        "created_unix_ns": time.time_ns(),
        "hosts": request.hosts,
        "ranks_per_host": request.ranks_per_host,
        "case": request.benchmark,
        "unit": "ns",
        "absent": dict(request.peers.absent),
        "rates": [],
    }
    for rate in request.rates:
        record["rates"].append(_measure(request, rate))
        console.print(links_table(record, record["rates"][-1]))
    return record


def _measure(request: LinksRequest, rate: str) -> dict[str, Any]:
    lines: list[tuple[float, float]] = []
    samples: list[dict[str, list[float]]] = [{} for _ in request.cases]
    with network.hosts(request.hosts, network.link_rate(rate)) as (driver, hosts):
        lines.append(_line_rates(hosts[0], hosts[1]))
        for _ in range(request.rounds):
            for case, times in zip(samples, _race(request, Network(driver, hosts)), strict=True):
                for name, values in times.items():
                    case.setdefault(name, []).extend(values)
            lines.append(_line_rates(hosts[0], hosts[1]))
    one_way = statistics.median(line[0] for line in lines)
    both_ways = statistics.median(line[1] for line in lines)
    return {
        "rate": rate,
        "iperf3_bits": one_way,
        "iperf3_bidir_bits": both_ways,
        "iperf3_samples": lines,
        "cases": [
            _case_record(request, case, times, one_way) for case, times in zip(request.cases, samples, strict=True)
        ],
    }


def _case_record(
    request: LinksRequest, case: Case, times_ns: dict[str, list[float]], line_bits: float
) -> dict[str, Any]:
    peers = {name: quartiles(values).median for name, values in times_ns.items() if name != SUBJECT}
    best = min(peers, key=lambda name: peers[name]) if peers else None
    size_bytes = sum(case.sizes_bytes)
    crossing_bits = 8 * size_bytes * 2 * (request.hosts - 1) / request.hosts
    own = quartiles(times_ns[SUBJECT])
    return {
        "label": case.label,
        "bytes": size_bytes,
        "times": {name: {**quartiles(values).as_dict(), "samples": values} for name, values in times_ns.items()},
        "line_share": Interval(
            *(crossing_bits / time_ns * 1e9 / line_bits for time_ns in (own.median, own.high, own.low))
        ).as_dict(),
        "best_peer": best,
        "ratio": paired_ratio_interval(times_ns[best], times_ns[SUBJECT]).as_dict() if best else None,
    }


def _line_rates(server: Host, client: Host) -> tuple[float, float]:
    """Returns received bits per second of iperf3 one way, and of the slower direction both ways at once."""
    one = _iperf(server, client, [])
    both = _iperf(server, client, ["--bidir"])
    slower = min(both["sum_received"]["bits_per_second"], both["sum_received_bidir_reverse"]["bits_per_second"])
    return float(one["sum_received"]["bits_per_second"]), float(slower)


def _iperf(server: Host, client: Host, options: list[str]) -> dict[str, Any]:
    serving = subprocess.Popen(
        server.command(["iperf3", "-s", "-1", "--forceflush"]), stdout=subprocess.PIPE, text=True
    )
    try:
        assert serving.stdout is not None
        serving.stdout.readline()  # the line of dashes; the next one reports that it listens
        serving.stdout.readline()
        words = ["iperf3", "-c", server.address, "-t", str(_IPERF_SECONDS), "-J", *options]
        done = subprocess.run(client.command(words), capture_output=True, text=True, check=False)
    finally:
        serving.terminate()
        serving.wait()
        if serving.stdout is not None:
            serving.stdout.close()
    answer = json.loads(done.stdout or "{}")
    if "error" in answer or "end" not in answer:
        raise RingtuneError(f"iperf3 failed: {answer.get('error', done.stderr.strip())}")
    end = answer["end"]
    assert isinstance(end, dict)
    return end


def _race(request: LinksRequest, wires: Network) -> list[dict[str, list[float]]]:
    """Returns nanoseconds per call, per size and contender; every contender is a job over all hosts."""

    def on_loss(plan: JobPlan, error: JobLost) -> None:
        raise error

    with ExitStack() as stack:
        jobs = []
        for number, (library, ways) in enumerate(contenders_by_job(request.peers, request.benchmark).items()):
            job = RaceJob(_plan(request, library, ways, _Job(wires, _STORE_PORT + number)))
            stack.callback(job.close)
            jobs.append(job)
        race = Race(jobs, on_loss)
        return [
            race.run_case({"sizes_bytes": case.sizes_bytes, "dtype": "float32"}, Budget(request.seconds)).times_ns
            for case in request.cases
        ]


@dataclass(frozen=True)
class _Job:
    """Where a job runs: on all hosts, and the port of its rendezvous store on the first one."""

    network: Network
    store_port: int


def _plan(request: LinksRequest, library: str, ways: Mapping[str, str], job: _Job) -> JobPlan:
    ranks = len(job.network.hosts) * request.ranks_per_host

    def command(join: str, rank: int) -> list[str]:
        words = [sys.executable, "-m", _WORKER, join, "1", library]
        return network.on_host(job.network, rank, ranks, job.store_port, words)

    return JobPlan(
        library,
        ways,
        ranks,
        lambda join: [command(join, rank) for rank in range(ranks)],
        {**os.environ, **thread_variables(1)},
        job.network.driver,
    )


def links_table(record: dict[str, Any], rate: dict[str, Any]) -> Table:
    """Returns the table of one rate."""
    line = f"iperf3 {rate['iperf3_bits'] / 1e9:.3f} Gbit/s one way, {rate['iperf3_bidir_bits'] / 1e9:.3f} both ways"
    ranks = f"{record['hosts']} hosts x {record['ranks_per_host']} ranks"
    what = record["case"]
    table = Table(title=f"{what} at {rate['rate']}, {ranks}; {line}", caption="median and quartiles per reduction")
    table.add_column("", no_wrap=True)
    names = list(rate["cases"][0]["times"])
    for name in names:
        table.add_column(name, justify="right", style="bold" if name == SUBJECT else None, no_wrap=True)
    table.add_column("of the line", justify="right", no_wrap=True)
    table.add_column("to the best peer", justify="right", no_wrap=True)
    for case in rate["cases"]:
        share, ratio = case["line_share"], case["ratio"]
        table.add_row(
            case["label"],
            *(_spread(case["times"][name]) for name in names),
            share_text(share),
            f"{ratio['median']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]" if ratio else "",
        )
    return table


def _spread(times: dict[str, Any]) -> str:
    (median, low, high), unit = times_in_one_unit(times["median"], times["low"], times["high"])
    return f"{median} [{low}, {high}] {unit}"
