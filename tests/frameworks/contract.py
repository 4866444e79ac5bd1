"""The tests that every front end passes: a test file of a framework derives a class from `Contract`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ringtune.common.dtypes import NUMBERS, REDUCED
from tests.frameworks import cases
from tests.jobs.launching import Job

GetJob = Callable[..., Job]
MODES = pytest.mark.parametrize("mode", ["eager", "compiled"])


class Contract:
    """Exact values, names, sets and errors over real ranks.

    Attributes:
        front: Name of the front end in `tests.frameworks.fronts`.
        accepted: Keys of misuses that make sense to it, as Horovod has it.
        lacks: Dtypes that its framework has no arrays of.
    """

    front = ""
    lacks: frozenset[str] = frozenset()
    accepted: frozenset[str] = frozenset()

    @MODES
    @pytest.mark.parametrize("dtype", sorted(REDUCED - {"bool"}))
    def test_every_dtype_is_reduced(self, dtype: str, mode: str, job: GetJob) -> None:
        self.need(dtype)
        job().run(cases.reduced, front=self.front, mode=mode, dtype=dtype)

    def need(self, dtype: str) -> None:
        if dtype in self.lacks:
            pytest.skip(f"{self.front} has no arrays of {dtype}")

    @MODES
    def test_three_ranks(self, mode: str, job: GetJob) -> None:
        job(3).run(cases.reduced, front=self.front, mode=mode, dtype="float32")
        job(3).run(cases.moved, front=self.front, mode=mode, dtype="int64")
        job(3).run(cases.scattered, front=self.front, mode=mode, dtype="float64")

    @MODES
    @pytest.mark.parametrize("dtype", list(NUMBERS))
    def test_every_dtype_is_moved(self, dtype: str, mode: str, job: GetJob) -> None:
        self.need(dtype)
        job().run(cases.moved, front=self.front, mode=mode, dtype=dtype)

    @MODES
    @pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
    def test_reducescatter(self, dtype: str, mode: str, job: GetJob) -> None:
        job().run(cases.scattered, front=self.front, mode=mode, dtype=dtype)

    @MODES
    def test_what_is_only_moved_is_not_reduced(self, mode: str, job: GetJob) -> None:
        for said in job().run(cases.refused_dtypes, front=self.front, mode=mode):
            assert [one for one in said if "is not reduced, only gathered, broadcast and exchanged" not in one] == []

    def test_unequal_rows(self, job: GetJob) -> None:
        job(3).run(cases.unequal, front=self.front)

    @MODES
    def test_factors_and_compression(self, mode: str, job: GetJob) -> None:
        job().run(cases.factors, front=self.front, mode=mode)

    @MODES
    def test_several_arrays_in_one_call(self, mode: str, job: GetJob) -> None:
        job().run(cases.together, front=self.front, mode=mode)

    @MODES
    def test_process_sets(self, mode: str, job: GetJob) -> None:
        said = job(3).run(cases.sets, front=self.front, mode=mode)
        assert said[0] == said[2] == "" and "is not in process set" in said[1]

    @MODES
    def test_ranks_that_disagree_are_told_and_go_on(self, mode: str, job: GetJob) -> None:
        for _ in range(2):
            for message, afterwards in job().run(cases.disagreeing, front=self.front, mode=mode):
                assert "Mismatched ALLREDUCE tensor shapes" in message and "disagree" in message
                assert afterwards == 2

    def test_what_makes_no_sense_is_refused_in_words(self, job: GetJob) -> None:
        expected = {
            "text": "allreduce: tensor",
            "no number": "allreduce: prescale_factor='2' is a str, expected a number",
            "operation": "allreduce: op=99: expected one of Average (0)",
            "both": "The op parameter supersedes average",
            "root": "invalid root rank 99",
            "name": "allreduce: name=5 is an int, expected a string",
            "set": "allreduce: process_set=0 is an int, expected a ProcessSet",
            "scalar": "needs at least one",
            "no tensors": "expected at least one",
            "splits": "alltoall: splits[0]=1.0 is a float, expected a whole number",
            "min": "only supports AVERAGE and SUM",
            "compression": "allreduce: compression='fp16' is a str, expected hvd.Compression.none",
        }
        for said in job().run(cases.refused, front=self.front):
            wrong = {name: said[name] for name, words in expected.items() if words not in said[name]}
            assert wrong == dict.fromkeys(self.accepted, "")

    def test_objects(self, job: GetJob) -> None:
        job().run(cases.objects, front=self.front)

    def test_a_rank_that_joins_contributes_nothing(self, job: GetJob) -> None:
        assert job(3).run(cases.joined, front=self.front) == [([3, 3], 2), ([3, 3], 2), ([3, 3, 1, 1], 2)]
