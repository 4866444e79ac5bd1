"""``ringtune check --network``: what it makes of measurements, and real ranks here and between shaped namespaces."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ringtune.benchmarks.netlab import network
from ringtune.benchmarks.training.profiles import gpt2_sizes, model_sizes
from ringtune.timeline.merging.merge import join
from ringtune.timeline.spans import Trace
from ringtune.tuner import preflight
from ringtune.tuner.model import networks
from ringtune.tuner.model.calibrate import calibrate
from ringtune.tuner.model.cluster import Cluster, Link
from ringtune.tuner.model.collectives import allreduce_ns
from ringtune.tuner.model.questions import Change, ask
from ringtune.tuner.preflight import Findings, HostLink
from ringtune.tuner.scoring import Interval
from tests.conftest import missing
from tests.timeline.scenario import Scenario, simulate

GBIT = 1e9 / 8


def exact(value: float) -> Interval:
    return Interval(value, value, value)


def way(source: str, target: str, latency_ns: float, gigabits: float) -> HostLink:
    return HostLink(source, target, exact(latency_ns), exact(gigabits * GBIT))


THREE = (way("a", "b", 40e3, 25), way("b", "c", 45e3, 24), way("c", "a", 38e3, 25))

TRUTH = Link(40e3, 25 * GBIT)


def found(*links: HostLink, truth: Link = TRUTH) -> Findings:
    """One rank on each of three hosts; exact times of such links."""
    cluster = Cluster(3, 1, network=truth)
    times = {size: (allreduce_ns(size, cluster),) * 20 for size in (4096, 1 << 19, 1 << 21, 1 << 23)}
    transports = tuple(tuple("self" if a == b else "tcp" for b in range(3)) for a in range(3))
    return Findings(("a", "b", "c"), transports, links or THREE, times, exact(0.1))


def test_nothing_is_said_of_a_network_that_does() -> None:
    assert preflight.warnings(found(), []) == []


def test_a_network_like_1_gbe_is_warned_of_once() -> None:
    links = [replace(link, bytes_per_s=exact(0.94 * GBIT)) for link in THREE]
    (said,) = preflight.warnings(found(*links), [])
    assert "940 Mbit/s" in said
    assert "1 GbE" in said
    assert "851 ms" in said  # 100 MB at 117.5 MB/s


def test_a_link_much_slower_than_the_others_is_named() -> None:
    (said,) = preflight.warnings(found(THREE[0], replace(THREE[1], bytes_per_s=exact(9 * GBIT)), THREE[2]), [])
    assert said.startswith("b -> c carries 9 Gbit/s, the others 25 Gbit/s")


def test_a_link_much_later_than_the_others_is_named() -> None:
    (said,) = preflight.warnings(found(THREE[0], THREE[1], replace(THREE[2], latency_ns=exact(5e6))), [])
    assert said.startswith("c -> a answers after 5.00 ms")


def test_tcp_between_ranks_of_one_host_is_named() -> None:
    crowded = replace(found(), hosts=("a", "a", "b"), links=())
    (said,) = preflight.warnings(crowded, [])
    assert said.startswith("ranks 0 and 1 on a talk over TCP, where shared memory was expected (1 such pair)")


def test_the_model_gets_the_links_that_collectives_showed() -> None:
    some = preflight.clusters(found())
    assert (some[0].ranks, some[0].hosts) == (3, 3)
    assert some[0].network.bytes_per_s == pytest.approx(25 * GBIT, rel=0.05)
    assert len(some) > 1


def test_what_is_expected_gets_worse_with_the_network_and_is_warned_of() -> None:
    work = networks.known()[0]
    fast = preflight.expected(preflight.clusters(found()), work)
    slow = preflight.expected(preflight.clusters(found(truth=Link(40e3, GBIT))), work)
    assert fast.efficiency.value > 0.85 > 0.2 > slow.efficiency.value
    assert fast.efficiency.low <= fast.efficiency.value <= fast.efficiency.high
    (said,) = preflight.warnings(found(), [fast, slow])
    assert said.startswith("ResNet-50 would train at")


def test_an_allreduce_takes_as_long_as_on_its_slowest_rank() -> None:
    def rank(times: list[int], to: int, received: float) -> dict[str, Any]:
        trips = [*range(20_000, 20_010), 10**9]
        link = {"to": to, "round_trips_ns": trips, "received_bytes_per_s": [received - 1, received, received + 1]}
        collectives = [{"bytes": 4096, "times_ns": times}]
        return {
            "host": "ab"[1 - to],
            "transports": ["self", "tcp"],
            "link": link,
            "collectives": collectives,
            "copies_ns": [1.0, 2.0, 6.0],
        }

    both = preflight.findings([rank([1, 5], 1, 7.0), rank([2, 3], 0, 9.0)])
    assert both.times_ns == {4096: (2.0, 5.0)}
    assert [(link.source, link.target, link.bytes_per_s) for link in both.links] == [
        ("a", "b", Interval(9.0, 8.0, 10.0)), ("b", "a", Interval(7.0, 6.0, 8.0)),
    ]  # fmt: skip
    # Of 11 round trips: the second from both ends; one that a busy machine held up for a second counts for nothing.
    assert both.links[0].latency_ns == Interval(10002.5, 10000.5, 10004.5)
    assert both.copy_ns == Interval(2.0, 1.0, 6.0)


def test_every_figure_has_its_interval() -> None:
    """Times of the true link, each up to a tenth off: what is fitted and expected is as uncertain."""
    exact_times = found().times_ns
    rough = {
        size: tuple(time * (0.9 + 0.01 * place) for place, time in enumerate(times))
        for size, times in exact_times.items()
    }
    some = preflight.clusters(replace(found(), times_ns=rough))
    answer = preflight.expected(some, networks.known()[0])
    document = preflight.document(replace(found(), times_ns=rough), some, [answer])
    figures = [*document["links"], *({"time_ns": one["time_ns"]} for one in document["allreduce"]), document["model"]]
    for figure in [value for one in figures for value in one.values() if isinstance(value, dict)] + [
        document["copy_ns"]
    ]:
        assert figure["low"] <= figure["median"] <= figure["high"]
    rate = document["model"]["bytes_per_s"]
    assert rate["low"] < rate["median"] < rate["high"]
    (expected,) = document["expected"]
    for name in ("step_ns", "efficiency"):
        assert expected[name]["low"] < expected[name]["value"] < expected[name]["high"]


@pytest.mark.parametrize(
    ("sizes", "truth"),
    [
        (networks.resnet50, lambda: model_sizes("resnet50")),
        (networks.vgg16, lambda: model_sizes("vgg16")),
        (networks.gpt2, gpt2_sizes),
    ],
)
def test_the_networks_have_the_sizes_of_their_models(sizes: Any, truth: Any) -> None:
    assert tuple(reversed(sizes())) == truth()


def test_a_job_s_own_trace_is_expected_on_the_measured_links() -> None:
    plan = Scenario(ranks=2, steps=30, hosts=("a", "b"), transfer_ns=20_000_000)
    job, _ = simulate(plan)
    model = calibrate(join([Trace(job.spans[rank], (), (job.part_info(rank),), "part") for rank in job.spans]), "job")
    some = preflight.clusters(found())
    answer = preflight.on(some, model)
    assert (answer.change.label, answer.ranks, answer.hosts) == ("job", 3, 3)
    # Of 25 Gbit/s: far from the 20 ms that each of its 2 MiB took.
    assert answer.step_ns.value < ask(model, Change("as it was")).step_ns.value


def check(*words: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, **({"PATH": f"{path}:{os.environ['PATH']}"} if path else {})}
    command = [
        sys.executable,
        "-c",
        "from ringtune.cli import main; raise SystemExit(main())",
        "check",
        "--network",
        *words,
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, env=environ, check=False)


def test_two_ranks_here(tmp_path: Path) -> None:
    done = check("-np", "2", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["ranks"], document["hosts"], document["links"]) == (2, 1, [])
    assert [one["label"] for one in document["expected"]] == ["ResNet-50", "VGG-16", "GPT-2 small"]
    assert all(0.0 < one["efficiency"]["value"] <= 1.0 for one in document["expected"])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["-np", "0"], "-np"),
        (["--trace", "absent"], "absent"),
        (["-H", "localhost:many"], "localhost:many"),
    ],
)
def test_wrong_words_are_named(words: list[str], says: str) -> None:
    done = check(*words)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_trace_that_is_none_is_refused_before_ranks_start(tmp_path: Path) -> None:
    wrong = tmp_path / "notes.json"
    wrong.write_text('{"note": "no trace"}')
    done = check("--trace", str(wrong))
    assert done.returncode in (1, 2)
    assert "notes.json" in done.stderr
    assert "Traceback" not in done.stderr


def wrong_about_shaped_links(document: dict[str, Any]) -> list[str]:
    """What is measured wrongly of three hosts, of which the last one's cable carries a quarter of the others'."""
    rates = [8e-6 * link["bytes_per_s"]["median"] for link in document["links"]]
    # Mbit/s on the way to the next host: no more than the cable carries, and a busy machine may fill a third of it.
    wrong = [f"{rates[0]} of 800 Mbit/s"] if not 260 < rates[0] < 1050 else []
    wrong += [f"{rate} of 200 Mbit/s" for rate in rates[1:] if not 65 < rate < 265]
    said = " ".join(document["warnings"])
    slow = f"{document['links'][1]['from']} -> {document['links'][1]['to']} carries"
    wrong += [f"no {words!r} in {said!r}" for words in ("1 GbE", slow) if words not in said]
    model = document["model"]["bytes_per_s"]
    return wrong if model["median"] < 60e6 else [*wrong, f"the model has {model}"]


@pytest.mark.slow
def test_hosts_between_shaped_links(tmp_path: Path) -> None:
    """Through the launcher's ssh. A starved machine may miss even wide limits: tried some times, not for ever."""
    lacking = network.missing()
    if lacking is not None:
        missing(lacking)
    with network.hosts(3, network.link_rate("800mbit")) as (_, hosts):
        hosts[2].shape(network.link_rate("200mbit"))
        network.reach(hosts, tmp_path)
        wrong = []
        for _ in range(6):
            done = check("-H", ",".join(f"{host.address}:1" for host in hosts), "--json", path=str(tmp_path))
            assert done.returncode == 0, done.stderr
            document = json.loads(done.stdout)
            assert (document["ranks"], document["hosts"]) == (3, 3)
            wrong.append(wrong_about_shaped_links(document))
            if not wrong[-1]:
                return
    raise AssertionError(f"wrong each time: {wrong}")
