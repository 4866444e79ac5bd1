"""`ringtune.numpy`: Horovod's collectives on NumPy arrays over real ranks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import ringtune.numpy
import ringtune.torch
from tests.conftest import needs
from tests.jobs.cases import numpy as cases
from tests.jobs.launching import Job

GetJob = Callable[..., Job]
WORLDS = pytest.mark.parametrize(("size", "transport"), [(2, "shm"), (3, "tcp")], scope="module")


@WORLDS
@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"])
def test_every_dtype_in_every_form(dtype: str, size: int, transport: str, job: GetJob) -> None:
    job(size, transport).run(cases.reduced, dtype=dtype, op="Sum", shape=(7, 13))


@WORLDS
@pytest.mark.parametrize("op", ["Min", "Max", "Product"])
def test_every_operation(op: str, size: int, transport: str, job: GetJob) -> None:
    job(size, transport).run(cases.reduced, dtype="int64", op=op, shape=(1001,))


@WORLDS
@pytest.mark.parametrize("layout", list(cases.MAKE))
def test_any_memory_is_taken(layout: str, size: int, transport: str, job: GetJob) -> None:
    job(size, transport).run(cases.layouts, layout=layout)


@WORLDS
def test_shapes_factors_and_groups(size: int, transport: str, job: GetJob) -> None:
    job(size, transport).run(cases.shapes)


@WORLDS
@pytest.mark.parametrize("dtype", ["uint16", "uint32", "uint64", "complex64", "complex128"])
def test_unsigned_and_complex_ones_are_moved(dtype: str, size: int, transport: str, job: GetJob) -> None:
    job(size, transport).run(cases.moved, dtype=dtype)


def test_bfloat16_of_ml_dtypes(job: GetJob) -> None:
    needs("ml_dtypes")
    job(2).run(cases.reduced, dtype="bfloat16", op="Sum", shape=(7, 13))


def test_what_makes_no_sense_is_refused_in_words(job: GetJob) -> None:
    expected = {
        "list": "got a list, expected a NumPy array",
        "complex": "complex128 is not reduced, only gathered, broadcast and exchanged",
        "longdouble": "is not supported; supported: uint8",
        "object": "dtype object is not supported",
        "read-only": "the array is read-only",
        "scalar allgather": "needs at least one to join along",
        "root": "invalid root rank 99",
        "handle": "Handle 12345 was not created or has been cleared.",
        "no arrays": "expected at least one",
        "min of reducescatter": "only supports AVERAGE and SUM",
    }
    for said in job(2).run(cases.refused):
        assert [name for name, words in expected.items() if words not in said[name]] == []


def test_ranks_that_disagree_fail_and_go_on(job: GetJob) -> None:
    for message, afterwards in job(2).run(cases.disagreeing):
        assert "shape" in message and afterwards == 2


def test_a_rank_that_joins_contributes_nothing(job: GetJob) -> None:
    assert job(3).run(cases.joined_by_the_last) == [[2.0, 2.0, 2.0, 3.0], [2.0, 2.0, 2.0, 3.0], [3.0]]


def test_a_script_needs_no_framework(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(cases.SCRIPT, encoding="utf-8")
    command = [sys.executable, "-m", "ringtune.cli", "run", "-np", "3", "--no-run-dir", "--no-prefix", sys.executable]
    done = subprocess.run([*command, str(script)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"{rank} [6.0, 6.0, 6.0, 6.0]" for rank in range(3)]


def test_names_are_those_of_the_face_for_torch() -> None:
    assert set(ringtune.numpy.__all__) <= set(dir(ringtune.torch))
