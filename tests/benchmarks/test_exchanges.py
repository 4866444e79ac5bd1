"""Collectives other than allreduce in a race: their data, and real ranks of ringtune and Gloo."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console

from ringtune.benchmarks.comm.micro import MicroRequest, collectives_cases, micro_table, run_micro
from ringtune.benchmarks.harness.peers import PEERS, Selection, select_peers
from ringtune.benchmarks.harness.race.bursts import Burst, run_burst
from ringtune.benchmarks.harness.race.exchanges import COLLECTIVES, MAX_RANKS, Exchange, ExchangeContest
from ringtune.benchmarks.harness.race.patterns import DTYPES, Array, Task, item_bytes
from ringtune.errors import UsageError

LENGTH = 24


def exchanges(collective: str, size: int, dtype: str) -> list[Exchange]:
    """Return the memory of all ranks."""
    sizes = [LENGTH * item_bytes(dtype) if collective != "barrier" else 0]
    return [Exchange(Task(sizes, dtype, rank, size, collective=collective)) for rank in range(size)]


def numbers(array: Array, dtype: str) -> Array:
    if dtype == "bfloat16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("collective", [name for name in COLLECTIVES if name != "barrier"])
def test_what_is_expected_is_what_the_collective_means(collective: str, size: int, dtype: str) -> None:
    ranks = exchanges(collective, size, dtype)
    given = [numbers(one.given, dtype).copy() for one in ranks]
    part = LENGTH // size
    for rank, one in enumerate(ranks):
        want = {
            "broadcast": lambda: given[0],
            "allgather": lambda: np.concatenate(given),
            "reducescatter": lambda: np.sum(given, axis=0)[rank * part : (rank + 1) * part],  # noqa: B023
            "alltoall": lambda: np.concatenate([g[rank * part : (rank + 1) * part] for g in given]),  # noqa: B023
        }[collective]()
        assert np.array_equal(numbers(one.expected, dtype), want)
        assert (one.received is one.given) == (collective == "broadcast")
        one.check(one.expected)


@pytest.mark.parametrize("collective", [name for name in COLLECTIVES if name != "barrier"])
def test_a_wrong_result_is_named(collective: str) -> None:
    contest = ExchangeContest(exchanges(collective, 2, "int32")[1], lambda: None)
    with pytest.raises(ArithmeticError, match=f"wrong {collective}: element [01] of"):
        run_burst(contest, Burst(1, 1))


def test_a_result_of_another_length_is_named() -> None:
    one = exchanges("allgather", 2, "float32")[0]
    with pytest.raises(ArithmeticError, match="wrong allgather"):
        one.check(one.expected[1:])


def test_more_ranks_than_sums_are_exact_for() -> None:
    with pytest.raises(ValueError, match=f"{MAX_RANKS} at most"):
        Exchange(Task([0], "uint8", 0, MAX_RANKS + 1, collective="barrier"))


def test_cases() -> None:
    cases = collectives_cases(["alltoall", "barrier", "alltoall"], [1024, 4096], 2, "float32")
    assert [(case.label, case.sizes_bytes, case.collective) for case in cases] == [
        ("alltoall 1 KiB", (1024,), "alltoall"),
        ("alltoall 4 KiB", (4096,), "alltoall"),
        ("barrier", (0,), "barrier"),
    ]


@pytest.mark.parametrize(
    ("names", "sizes", "message"),
    [(["bcast"], [1024], "unknown collective 'bcast'; known: broadcast"), (["alltoall"], [1024], "3 ranks x 4 bytes")],
)
def test_what_makes_no_case(names: list[str], sizes: list[int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        collectives_cases(names, sizes, 3, "float32")


def test_a_peer_without_them_is_refused() -> None:
    with pytest.raises(UsageError, match="unknown peer 'oneccl' for 'ringtune bench collectives'"):
        select_peers("oneccl", "collectives")


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_ringtune_beside_gloo(dtype: str) -> None:
    peers = Selection(("ringtune", "gloo"), {}, (PEERS["gloo"],))
    cases = collectives_cases(COLLECTIVES, [1024], 2, dtype)
    console = Console(file=io.StringIO(), width=200)
    record = run_micro(MicroRequest("collectives", 2, None, cases, dtype, 0.02, 1, peers), console)
    assert [case["label"] for case in record["cases"]] == [case.label for case in cases]
    for case in record["cases"]:
        assert min(case["times"]["ringtune"]["samples"]) > 0
        assert case["limit_ratio"] is None
    assert {case["label"] for case in record["cases"] if "gloo" in case["times"]} >= {"broadcast 1 KiB", "barrier"}
    assert not record["failed"]
    assert "per call" in str(micro_table(record).caption)
