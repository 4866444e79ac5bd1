"""`ringtune.keras` and `ringtune.tensorflow.keras` on TensorFlow: Keras 3, and Keras 2 (TF_USE_LEGACY_KERAS=1)."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version

import pytest

pytest.importorskip("tensorflow", reason="make test-frameworks runs this where TensorFlow is installed")


from tests.frameworks.keras_tests import Keras3Tests, KerasJobs, KerasTests

HAS_KERAS_3 = int(version("keras").split(".")[0]) >= 3
needs_keras_3 = pytest.mark.skipif(not HAS_KERAS_3, reason="this TensorFlow comes with Keras 2")


def jobs_of(request: pytest.FixtureRequest, front: str, **environ: str) -> Iterator[KerasJobs]:
    made = KerasJobs(request.getfixturevalue("tmp_path_factory").mktemp("keras"), front, environ)
    yield made
    made.end()


@needs_keras_3
class TestKeras3(Keras3Tests):
    @pytest.fixture(scope="class")
    @staticmethod
    def keras(request: pytest.FixtureRequest) -> Iterator[KerasJobs]:
        yield from jobs_of(request, "keras", KERAS_BACKEND="tensorflow")


@needs_keras_3
class TestTfKeras3(Keras3Tests):
    @pytest.fixture(scope="class")
    @staticmethod
    def keras(request: pytest.FixtureRequest) -> Iterator[KerasJobs]:
        yield from jobs_of(request, "tensorflow.keras", KERAS_BACKEND="tensorflow")


class TestKeras2(KerasTests):
    @pytest.fixture(scope="class")
    @staticmethod
    def keras(request: pytest.FixtureRequest) -> Iterator[KerasJobs]:
        if HAS_KERAS_3:
            pytest.importorskip("tf_keras")
        yield from jobs_of(request, "tensorflow.keras", **({"TF_USE_LEGACY_KERAS": "1"} if HAS_KERAS_3 else {}))
