"""Horovod's small helpers (``horovod.common.util``), one case per row of the contract."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import ringtune.torch as hvd
from ringtune.common import util
from ringtune.common.exceptions import HorovodVersionMismatchError
from ringtune.session import Session


@pytest.mark.parametrize("name", ["gloo_built", "mpi_built", "nccl_built", "ddl_built", "ccl_built"])
def test_util_knows_what_is_built(name: str) -> None:
    assert getattr(util, name)(verbose=True) == bool(getattr(hvd, name)())


def test_gloos_place_is_taken_while_a_job_runs(opened: Callable[..., Session]) -> None:
    assert hvd.gloo_enabled() is False
    opened(2)
    assert hvd.gloo_enabled() is True
    hvd.shutdown()
    assert hvd.gloo_enabled() is False


@pytest.mark.parametrize(
    ("items", "parts", "expected"), [([1, 2, 3], 2, [[1, 2], [3]]), ([1], 2, [[1], []]), ([], 1, [[]])]
)
def test_split_list(items: list[int], parts: int, expected: list[list[int]]) -> None:
    assert util.split_list(items, parts) == expected


@pytest.mark.parametrize(("number", "expected"), [(1, True), (2, True), (3, False), (8, True), (0, False)])
def test_powers_of_two(number: int, expected: bool) -> None:
    assert util.num_rank_is_power_2(number) is expected


def test_env_sets_and_restores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEPT", "before")
    monkeypatch.delenv("MADE", raising=False)
    with util.env(KEPT="inside", MADE="inside"):
        assert (os.environ["KEPT"], os.environ["MADE"]) == ("inside", "inside")
    assert (os.environ["KEPT"], "MADE" in os.environ) == ("before", False)


@pytest.mark.parametrize(("value", "expected"), [([], True), ("a", True), (3, False), (None, False)])
def test_is_iterable(value: Any, expected: bool) -> None:
    assert util.is_iterable(value) is expected


@pytest.mark.parametrize(
    ("version", "target", "expected"),
    [("2.13.0+cpu", "2.2.0", True), ("1.9.1", "1.10.0", False), ("2.0", "2.0.0", True), ("2.1.0a0", "2.1.0", True)],
)
def test_versions(version: str, target: str, expected: bool) -> None:
    assert util.is_version_greater_equal_than(version, target) is expected


def test_a_target_that_is_no_version() -> None:
    with pytest.raises(ValueError, match=r"major\.minor\.patch"):
        util.is_version_greater_equal_than("2.0.0", "2.0")


@pytest.mark.parametrize("name", ["torch", "tensorflow", "mxnet", "click"])
def test_frameworks_that_are_served(name: str) -> None:
    assert util.extension_available(name) is (name != "click" and importlib.util.find_spec(name) is not None)
    assert util.gpu_available(name) is (name == "torch" and torch.cuda.is_available())


def test_an_extension_that_is_not_served() -> None:
    util.check_extension("horovod.torch", "HOROVOD_WITH_PYTORCH", __file__, "mpi_lib_v2")
    with pytest.raises(ImportError, match="serves PyTorch, TensorFlow and MXNet"):
        util.check_extension("horovod.spark", "HOROVOD_WITH_SPARK", __file__, "mpi_lib")


def test_installed_versions_do_not_matter_until_something_failed() -> None:
    util.check_installed_version("torch", "1.0")
    with pytest.raises(HorovodVersionMismatchError):
        util.check_installed_version("torch", "1.0", RuntimeError("broken"))


def test_results_are_remembered() -> None:
    calls: list[int] = []

    @util._cache
    def count(number: int) -> int:
        calls.append(number)
        return number

    assert (count(2), count(2), calls) == (2, 2, [2])


def test_the_suffix_of_extensions() -> None:
    assert util.get_ext_suffix().endswith(".so")


def test_nothing_here_warns_on_import() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        importlib.reload(sys.modules["ringtune.common.util"])
