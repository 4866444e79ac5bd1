"""`ringtune.keras` on JAX and torch: the tests that `test_tensorflow_keras.py` makes of TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.frameworks import keras_cases as cases
from tests.frameworks.bench import check_bench
from tests.frameworks.keras_tests import Keras3Tests, KerasJobs, killed_rank_is_replaced

# Not imported here: each rank chooses its backend first.
if find_spec("keras") is None:
    pytest.skip("Keras is not installed; `make test-frameworks` makes an environment", allow_module_level=True)

FRONT = "keras"


class TestTorch(Keras3Tests):
    @pytest.fixture(scope="class")
    @staticmethod
    def keras(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KerasJobs]:
        pytest.importorskip("torch")
        made = KerasJobs(tmp_path_factory.mktemp("keras"), "keras", {"KERAS_BACKEND": "torch"})
        yield made
        made.end()


class TestJax(Keras3Tests):
    def test_keras_distribution_is_left_alone(self, keras: KerasJobs) -> None:
        for said in keras.run(cases.distribution):
            assert "would be reduced twice" in said

    @pytest.fixture(scope="class")
    @staticmethod
    def keras(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KerasJobs]:
        pytest.importorskip("jax")
        environ = {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
        made = KerasJobs(tmp_path_factory.mktemp("keras"), "keras", environ)
        yield made
        made.end()


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_a_killed_rank_is_replaced_and_fit_goes_on_from_the_commit(backend: str, tmp_path: Path) -> None:
    pytest.importorskip(backend)
    killed_rank_is_replaced(tmp_path, {"KERAS_BACKEND": backend, "JAX_PLATFORMS": "cpu"})


def test_bench_frameworks(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    check_bench("keras", tmp_path)
