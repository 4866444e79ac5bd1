"""Metrics of a running job: names, values, the README's table, Grafana's dashboard, and how they are served."""

from __future__ import annotations

import json
import re
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.core import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from ringtune.errors import ConfigError, RingtuneError
from ringtune.knobs import Knobs
from ringtune.meters import command
from ringtune.meters.catalogue import CATALOGUE, Metric, markdown
from ringtune.meters.durations import BOUNDS_NS, Durations
from ringtune.meters.exporter import Exporter, JobCollector
from ringtune.meters.exposure import KEPT, Blocked, Exposed
from ringtune.meters.publisher import Publisher
from ringtune.meters.sample import Machine
from ringtune.meters.stalls import Stall, Waiting
from ringtune.meters.state import RankState
from ringtune.session import Session
from ringtune.stats import StepStats
from tests.core.fake_native import FakeStore

NAMES = {metric.name: metric for metric in CATALOGUE}
COUNTED = ("ringtune_stalls_total", "ringtune_alerts_total")
"""Rare events, shown as their number."""
GPU = {"index": 1, "use_percent": 40, "memory_used_bytes": 1000, "memory_bytes": 9000}


def state(rank: int, host: str = "a", local_rank: int = 0) -> RankState:
    durations = Durations()
    for duration_ns in (900_000, 1_000_000, 1_000_001, 30_000_000, 10**12):
        durations.add(duration_ns)
    return RankState(
        rank=rank, host=host, local_rank=local_rank, size=3, generation=2, step_counts=durations.counts,
        step_ns=durations.sum_ns, counters=StepStats(wait_ns=1_500_000_000, batches=7).as_dict(),
        traffic={"allreduce": [10 + rank, 4000], "broadcast": [1, 8]}, stalls=0, open_operations=3,
        knobs={**Knobs(fusion_bytes=1 << 20, cycle_time_ns=2_000_000, algorithm=1).as_dict(), "knobs_version": 9},
        sample={**vars(Machine().sample()), "machine_cores": 8 + rank, "gpus": [GPU]}, alerts={"stall": [2, 1]},
        stall=Stall(5, [Waiting("'grad' (allreduce)", "grad", 7, [1])]), awaited=[[1, "'grad' (allreduce)", 7]],
    )  # fmt: skip


def exported(states: list[RankState]) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    registry = CollectorRegistry()
    registry.register(JobCollector(lambda: states))  # type: ignore[arg-type]
    return parsed(generate_latest(registry).decode())


def parsed(text: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


@pytest.mark.parametrize("metric", CATALOGUE, ids=lambda metric: metric.name)
def test_names_follow_prometheus(metric: Metric) -> None:
    """https://prometheus.io/docs/practices/naming: base units in the plural, `_total` for what accumulates."""
    assert re.fullmatch(r"ringtune(_[a-z]+)+", metric.name)
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    assert not re.search(r"_(ns|ms|us|mib|kib|mb|percent)(_|$)", metric.name)
    assert metric.meaning.endswith(".")


def test_every_metric_is_exported_with_its_labels() -> None:
    found = exported([state(0)])
    for metric in CATALOGUE:
        name = metric.name + ("_count" if metric.kind == "histogram" else "")
        assert [name for name, _ in next(iter(found[name]))] == sorted(metric.all_labels), metric.name


def test_values_are_in_base_units() -> None:
    found = exported([state(0)])
    rank = (("rank", "0"),)
    assert found["ringtune_blocked_seconds_total"][rank] == 1.5
    assert found["ringtune_cycle_time_seconds"][()] == 0.002
    assert found["ringtune_gpu_use_ratio"][(("gpu", "1"), ("host", "a"))] == pytest.approx(0.4)
    assert found["ringtune_operations_total"][(("kind", "allreduce"), *rank)] == 10
    assert found["ringtune_open_operations"][rank] == 3 and found["ringtune_knobs_version"][rank] == 9


def test_steps_are_a_histogram() -> None:
    found = exported([state(0)])
    buckets = {dict(labels)["le"]: count for labels, count in found["ringtune_step_duration_seconds_bucket"].items()}
    assert (buckets["0.001"], buckets["0.002"], buckets["0.02"], buckets["0.05"]) == (2, 3, 3, 4)
    assert (buckets["100"], buckets["+Inf"], len(buckets)) == (4, 5, len(BOUNDS_NS) + 1)
    assert found["ringtune_step_duration_seconds_sum"][(("rank", "0"),)] == pytest.approx(1000.032900001)


def test_ranks_speak_for_themselves_and_the_first_of_a_host_for_the_host() -> None:
    found = exported([state(0), state(1, local_rank=1), state(2, "b")])
    assert len(found["ringtune_batches_total"]) == 3
    assert found["ringtune_machine_cores"] == {(("host", "a"),): 8, (("host", "b"),): 10}
    assert found["ringtune_ranks"] == {(): 3}


def test_no_rank_known_yet() -> None:
    assert exported([]) == {}


def test_a_state_travels_whole() -> None:
    sent = state(1)
    assert RankState.from_bytes(sent.to_bytes()) == sent


@pytest.mark.parametrize("document", [b"{", b"[]", b'{"rank": 1}'])
def test_a_state_that_is_none(document: bytes) -> None:
    with pytest.raises(RingtuneError, match="do all ranks run one version"):
        RankState.from_bytes(document)


def test_the_readme_holds_the_table() -> None:
    readme = (Path(__file__).parents[2] / "core" / "README.md").read_text(encoding="utf-8")
    assert markdown() in readme, "put the output of `ringtune metrics --markdown` into core/README.md"


def expressions() -> list[str]:
    panels = json.loads(command.GRAFANA_FILE.read_text(encoding="utf-8"))["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", ())]


def test_grafana_shows_every_metric_and_no_other() -> None:
    used = {re.sub(r"_(bucket|sum|count)$", "", name) for e in expressions() for name in re.findall(r"ringtune_\w+", e)}
    assert used == set(NAMES)


@pytest.mark.parametrize("expression", expressions())
def test_grafana_asks_for_labels_that_there_are(expression: str) -> None:
    for name, matchers in re.findall(r"(ringtune_\w+)\{([^}]*)\}", expression):
        metric = NAMES[re.sub(r"_(bucket|sum|count)$", "", name)]
        asked = set(re.findall(r"(\w+)=~", matchers)) - {"instance"}  # Prometheus adds the instance
        assert asked <= set(metric.all_labels)
        assert name.endswith("_total") <= (f"rate({name}{{" in expression or name in COUNTED)


def test_grafana_tells_exposed_communication_from_waiting_for_late_ranks() -> None:
    """As the Overview does: the least blocked rank's time is exposed, what others have beyond it is for late ranks."""
    exposed, late = (one for one in expressions() if "exposed" in one)
    assert exposed.startswith("rate(ringtune_exposed_seconds_total{") and "rank" not in exposed
    assert late.startswith("rate(ringtune_blocked_seconds_total{") and late.endswith(f"group_left () {exposed}")


STEPS_OF_RANKS = st.lists(st.lists(st.integers(0, 10**9), min_size=1, max_size=60), min_size=1, max_size=4)


@given(waits=STEPS_OF_RANKS, first=st.integers(0, 5), data=st.data())
def test_exposed_is_what_the_least_blocked_rank_of_each_step_has(
    waits: list[list[int]], first: int, data: st.DataObject
) -> None:
    """However ranks are ahead of one another when they tell, and however often each step is told."""
    blocked, exposed = [Blocked() for _ in waits], Exposed()
    ended = [0] * len(waits)
    while any(done < len(told) for done, told in zip(ended, waits, strict=True)):
        for rank, told in enumerate(waits):
            for _ in range(data.draw(st.integers(0 if ended[rank] else 1, 20))):
                if ended[rank] < len(told):
                    blocked[rank].add(first + ended[rank], told[ended[rank]])
                    ended[rank] += 1
        exposed.add([one.since(max(0, exposed.next_step - 2)) for one in blocked])
    assert exposed.total_ns == sum(map(min, zip(*waits, strict=False)))


def test_steps_that_are_told_too_late_are_not_exposed() -> None:
    exposed, first, second = Exposed(), Blocked(), Blocked()
    for step in range(2 * KEPT):
        first.add(step, 2)
        second.add(step, 1)
    assert len(first.since(0)) == KEPT
    exposed.add([first.since(0), second.since(0)])
    exposed.add([first.since(0), second.since(0)])
    assert exposed.total_ns == KEPT


def test_grafana_file_by_the_command_line(tmp_path: Path) -> None:
    for target in (str(tmp_path / "g.json"), "-"):
        done = subprocess.run(
            [sys.executable, "-m", "ringtune.cli", "metrics", "--grafana", target], capture_output=True, timeout=280,
            check=True,
        )  # fmt: skip
    document = (tmp_path / "g.json").read_bytes()
    assert document == done.stdout and json.loads(document)["title"] == "ringtune"


def get(url: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    with urllib.request.urlopen(url, timeout=120) as answer:
        return parsed(answer.read().decode())


def address(error_output: str) -> str:
    match = re.search(r"metrics for Prometheus at (http://127\.0\.0\.1:\d+/metrics)", error_output)
    assert match is not None, error_output
    return match[1]


def test_a_session_serves_its_metrics_until_it_closes(
    opened: Callable[..., Session], capfd: pytest.CaptureFixture[str]
) -> None:
    session = opened(RINGTUNE_METRICS_PORT=0, RINGTUNE_SAMPLE_SECONDS=0)
    url = address(capfd.readouterr().err)
    for _ in range(3):
        session.end_step()
    found = get(url)
    assert found["ringtune_step_duration_seconds_count"] == {(("rank", "0"),): 3}
    session.close()
    with pytest.raises(OSError):
        get(url)


def test_rank_0_shows_who_has_spoken(opened: Callable[..., Session], capfd: pytest.CaptureFixture[str]) -> None:
    session = opened(3, RINGTUNE_METRICS_PORT=0)
    url = address(capfd.readouterr().err)
    assert {labels for labels in get(url)["ringtune_batches_total"]} == {(("rank", "0"),)}
    FakeStore.values[f"{session.job}/metrics/2"] = state(2).to_bytes()
    assert {labels for labels in get(url)["ringtune_batches_total"]} == {(("rank", "0"),), (("rank", "2"),)}


def test_a_store_that_is_gone_costs_the_others_only(
    opened: Callable[..., Session], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: Any) -> None:
        raise RuntimeError("lost the store")

    opened(3, RINGTUNE_METRICS_PORT=0)
    url = address(capfd.readouterr().err)
    monkeypatch.setattr(FakeStore, "get_all", lost)
    for _ in range(2):
        assert len(get(url)["ringtune_batches_total"]) == 1
    assert capfd.readouterr().err.count("metrics show this rank alone from now on: lost the store") == 1


@pytest.mark.parametrize(("size", "said"), [(2, 120), (64, 120), (65, 60), (640, 12)])
def test_many_ranks_speak_less_often(size: int, said: int, opened: Callable[..., Session]) -> None:
    session = opened(2)
    session.rank, session.size = 1, size
    told: list[str] = []
    session.store = type("Store", (), {"set": lambda self, key, value: told.append(key)})()
    publisher = Publisher(session, Durations(), Blocked(), print)
    sample = Machine().sample()
    for _ in range(120):
        publisher.append(sample)
    assert told == [f"{session.job}/metrics/1"] * said


def test_a_port_in_use_is_one_sentence(opened: Callable[..., Session]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        expected = f"RINGTUNE_METRICS_PORT={port}: cannot serve metrics on 127.0.0.1:{port}: Address already in use"
        with pytest.raises(ConfigError, match=expected):
            opened(RINGTUNE_METRICS_PORT=port)
    assert Session.current() is None


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 70000), ("203.0.113.7", 0), ("no such host", 0)])
def test_an_address_that_cannot_be(host: str, port: int) -> None:
    with pytest.raises(ConfigError, match="cannot serve metrics on"):
        Exporter(host, port, list)


def answered(port: int, request: bytes, reset: bool = False) -> bytes:
    """Return the first line that the server answers; of one that is reset nothing is read."""
    with socket.create_connection(("127.0.0.1", port), 120) as link:
        link.sendall(request)
        if reset:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return b""
        with link.makefile("rb") as answer:
            return answer.read().partition(b"\r\n")[0]


@pytest.fixture
def port() -> Iterator[int]:
    exporter = Exporter("127.0.0.1", 0, list)
    yield int(exporter.url.split(":")[2].partition("/")[0])
    exporter.close()


@pytest.mark.parametrize(
    ("name", "served"),
    [
        ("localhost", True),
        ("127.0.0.1:9090", True),
        ("[::1]:9090", True),
        (socket.gethostname(), True),
        ("evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("", False),
        ("[", False),
        ("[::1", False),
        ("[evil]", False),
    ],
)
def test_on_loopback_the_host_header_must_name_this_machine(
    name: str, served: bool, port: int, capfd: pytest.CaptureFixture[str]
) -> None:
    found = answered(port, f"GET /metrics HTTP/1.0\r\nHost: {name}\r\n\r\n".encode())
    assert found.split()[1] == (b"200" if served else b"421"), found
    assert capfd.readouterr().err == ""


def test_a_connection_that_is_reset_prints_nothing(port: int, capfd: pytest.CaptureFixture[str]) -> None:
    whole = b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n"
    for request in (b"", whole[:9], whole[:-2], whole) * 5:
        answered(port, request, reset=True)
    assert answered(port, whole).split()[1] == b"200"  # all before it have been accepted
    # What failed in a request has been printed when its thread has ended.
    while any(thread.name.endswith("(process_request_thread)") for thread in threading.enumerate()):
        time.sleep(0.01)
    assert capfd.readouterr().err == ""


def test_without_the_package(opened: Callable[..., Session], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "ringtune.meters.exporter")
    with pytest.raises(RingtuneError, match=r"pip install 'ringtune\[metrics\]'"):
        opened(RINGTUNE_METRICS_PORT=0)


def test_a_forked_child_leaves_the_port_to_its_parent(opened: Callable[..., Session]) -> None:
    code = (
        "import os, sys, socket\n"
        "from ringtune.meters.exporter import Exporter\n"
        "e = Exporter('127.0.0.1', 0, list)\n"
        "read, write = os.pipe()\n"
        "pid = os.fork()\n"
        "if pid == 0: os.read(read, 1); os._exit(0)\n"
        "port = int(e.url.split(':')[2].split('/')[0])\n"
        "e.close()\n"
        "try: socket.create_connection(('127.0.0.1', port)); print('held')\n"
        "except ConnectionRefusedError: print('free')\n"
        "os.write(write, b'x'); os.waitpid(pid, 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=280, check=True)
    assert done.stdout == "free\n"
