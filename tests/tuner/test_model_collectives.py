"""The cost of collectives against the closed forms of their sources."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ringtune.algorithms import Rule
from ringtune.errors import UsageError
from ringtune.tuner.model.cluster import Cluster, Link
from ringtune.tuner.model.collectives import allreduce_ns, batch_ns, choose, crowded_ns, wire_ns
from ringtune.tuner.model.spread import expected_maximum

LATENCY, RATE = 10_000.0, 1e9  # ns; a byte takes a nanosecond
LINK = Link(LATENCY, RATE)


def flat_hosts(ranks: int, algorithm: str) -> Cluster:
    return Cluster(ranks=ranks, slots=1, network=LINK, algorithm=algorithm)


@pytest.mark.parametrize(
    ("algorithm", "ranks", "expected"),
    [
        ("ring", 2, 2 * (LATENCY + 500)),
        ("ring", 4, 6 * (LATENCY + 250)),
        ("ring", 1000, 1998 * (LATENCY + 1)),
        ("flat", 4, LATENCY + 3 * 1000),
        ("recursive-doubling", 8, 3 * (LATENCY + 1000)),
        ("recursive-doubling", 6, 4 * (LATENCY + 1000)),
        ("halving-doubling", 8, 6 * LATENCY + 2 * 1000 * 7 / 8),
        ("halving-doubling", 6, 4 * LATENCY + 2 * 1000 * 3 / 4 + 2 * (LATENCY + 1000)),
        ("tree", 8, 6 * (LATENCY + 1000)),
        ("tree", 5, 6 * (LATENCY + 1000)),
    ],
)
def test_between_hosts_of_one_rank(algorithm: str, ranks: int, expected: float) -> None:
    assert allreduce_ns(1000, flat_hosts(ranks, algorithm)) == pytest.approx(expected, rel=1e-12)


def test_within_a_host_two_ranks_move_the_tensor_once() -> None:
    cluster = Cluster(ranks=2, slots=2, memory=LINK)
    assert allreduce_ns(4000, cluster) == pytest.approx(LATENCY + 4000)


def test_by_levels_slices_go_within_hosts_then_across() -> None:
    cluster = Cluster(ranks=8, slots=4, memory=Link(0.0, RATE), network=LINK)
    inside = 2 * 3 / 4 * 1e6
    assert allreduce_ns(1e6, cluster) == pytest.approx(inside + 2 * (LATENCY + 5e5))
    # A slice of 25,000 bytes between two hosts: the table says recursive doubling, and all slices share the wire.
    assert allreduce_ns(1e5, cluster) == pytest.approx(2 * 3 / 4 * 1e5 + LATENCY + 1e5)


@pytest.mark.parametrize(("ranks", "size"), [(8, 32 << 10), (7, 1e6)])
def test_by_levels_one_rank_of_a_host_goes_on_the_wire_for_few_bytes_or_unequal_hosts(ranks: int, size: float) -> None:
    cluster = Cluster(ranks=ranks, slots=4, memory=Link(0.0, RATE), network=LINK)
    across = LATENCY + size if size < 1e6 else 2 * LATENCY + size
    assert allreduce_ns(size, cluster) == pytest.approx(2 * 2 * size + across)


PAIR = Cluster(ranks=4, slots=1, network=Link(LATENCY, RATE), copy_ns=0.5, algorithm="ring")


@pytest.mark.parametrize(
    ("alone", "scheduled", "size", "before"),
    [
        (False, True, 1 << 18, 0.5 * (1 << 18)),
        (False, False, 1 << 18, 0.5 * (1 << 18)),
        (False, True, 1 << 20, 0.0),
        (False, False, 1 << 20, 0.0),
        (True, False, 1 << 20, 0.0),
        (True, True, 1 << 20, 2 * LATENCY),
        (True, True, 1 << 18, 0.5 * (1 << 18)),
    ],
)
def test_a_batch_pays_for_copies_or_for_votes(alone: bool, scheduled: bool, size: float, before: float) -> None:
    assert batch_ns(size, alone, scheduled, PAIR) == pytest.approx(before + allreduce_ns(size, PAIR))


@pytest.mark.parametrize(("cores", "turns"), [(1, 4), (2, 2), (3, 4 / 3), (4, 1), (64, 1)])
def test_copies_of_ranks_that_share_cores_take_turns(cores: int, turns: float) -> None:
    """Four ranks: the copies of a byte, not what it takes on the wire."""
    crowded, size = replace(PAIR, cores=cores), 1 << 18
    copies = turns * 0.5 * size
    assert batch_ns(size, False, True, crowded) == pytest.approx(copies + allreduce_ns(size, PAIR))
    assert batch_ns(size, True, False, crowded) == pytest.approx(allreduce_ns(size, PAIR))


@pytest.mark.parametrize(
    ("changes", "size", "of_copies"),
    [
        ({}, 1 << 20, 0.0),
        ({"copy_ns": 2.0}, 1 << 20, 0.5),  # a byte of the tensor takes 1.5 ns on the wire
        ({"cores": 1}, 1 << 20, 0.5),
        ({"staged": False}, 1 << 20, 0.5),
        ({"algorithm": "recursive-doubling"}, 1 << 20, 0.5),
    ],
)
def test_copies_beside_an_exchange_count_where_they_are_longer(
    changes: dict[str, Any], size: int, of_copies: float
) -> None:
    cluster = replace(PAIR, **changes)
    assert batch_ns(size, False, True, cluster) == pytest.approx(allreduce_ns(size, cluster) + of_copies * size)


SHARED = replace(PAIR, cores=2, effort=((1 << 20, 0.25), (4 << 20, 2.0)))
"""Four hosts on two cores; a byte on the wire takes 1 ns."""


@pytest.mark.parametrize(
    ("size", "of_cores"),
    [(1 << 20, 0.5), (4 << 20, 4.0), (2 << 20, 2.25), (1 << 10, 0.5), (1 << 30, 4.0)],
)
def test_cores_that_hosts_share_bound_the_rate_as_links_do(size: int, of_cores: float) -> None:
    """Each core works for two hosts; between measured sizes on the logarithmic scale, beyond them as at the ends."""
    moved = 2 * 3 / 4 * size
    assert wire_ns(size, SHARED) == pytest.approx(moved)
    longer = moved * max(of_cores - 1.0, 0.0)
    assert batch_ns(size, True, False, SHARED) - allreduce_ns(size, PAIR) == pytest.approx(longer)


@pytest.mark.parametrize("cores", [None, 4, 8])
def test_hosts_with_a_core_each_are_bound_by_links_alone(cores: int | None) -> None:
    assert crowded_ns(4 << 20, replace(SHARED, cores=cores)) == 0.0
    assert crowded_ns(4 << 20, replace(SHARED, effort=())) == crowded_ns(0, SHARED) == 0.0


def test_what_bytes_take_on_the_wire_is_without_latency_and_copies() -> None:
    assert wire_ns(1000, PAIR) == pytest.approx(2 * 3 / 4 * 1000)


@pytest.mark.parametrize(("ranks", "size"), [(1, 1000), (4, 0)])
def test_nothing_to_do_costs_nothing(ranks: int, size: int) -> None:
    assert allreduce_ns(size, flat_hosts(ranks, "ring")) == 0.0


@pytest.mark.parametrize(
    ("ranks", "slots", "size", "expected"),
    [
        (4, 1, 64 << 10, "recursive-doubling"),
        (4, 1, (64 << 10) + 1, "ring"),
        (16, 1, 32 << 10, "recursive-doubling"),
        (16, 1, 512 << 10, "halving-doubling"),
        (16, 1, 1 << 20, "ring"),
        (16, 4, 1 << 20, "hierarchical"),
    ],
)
def test_the_built_in_table_chooses(ranks: int, slots: int, size: int, expected: str) -> None:
    assert choose(size, Cluster(ranks=ranks, slots=slots)) == expected


def test_a_table_of_the_job_comes_before_the_built_in_one() -> None:
    rules = (Rule("memory", 0, 0, "tree"), Rule("network", 0, 0, "flat"))
    assert choose(1 << 20, Cluster(ranks=4, rules=rules)) == "flat"


@pytest.mark.parametrize(
    "shape", [{"ranks": 0}, {"ranks": 2, "slots": 0}, {"ranks": 2, "cores": 0}, {"ranks": 2, "algorithm": "circle"}]
)
def test_impossible_clusters_are_refused(shape: dict[str, int]) -> None:
    with pytest.raises(UsageError):
        Cluster(**shape)


@pytest.mark.parametrize(("n", "expected"), [(1, 0.0), (2, 0.56419), (3, 0.84628), (10, 1.53875), (1000, 3.24144)])
def test_expected_maximum_of_normal_variables(n: int, expected: float) -> None:
    """Values of Teichroew, "Tables of Expected Values of Order Statistics" (1956), and Harter (1961)."""
    assert expected_maximum(n) == pytest.approx(expected, abs=2e-5)
