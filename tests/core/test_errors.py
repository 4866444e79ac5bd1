from __future__ import annotations

import pytest

from ringtune import errors, native
from tests.core import fake_native

FAILURES = [
    *("PeerLost", "Timeout", "Mismatch", "Protocol", "ShutDown", "InvariantError", "NotInitialized"),
    "DeviceError",
    "InitializationFailed",
]


@pytest.mark.parametrize("name", FAILURES)
def test_failures_of_the_runtime_are_horovods(name: str) -> None:
    assert issubclass(getattr(errors, name), errors.HorovodInternalError)


@pytest.mark.parametrize(
    "name", [*FAILURES, "TraceIoError", "ConfigError", "InvalidArgument", "NotSupported", "UsageError"]
)
def test_all_are_ringtunes(name: str) -> None:
    assert issubclass(getattr(errors, name), errors.RingtuneError)


@pytest.mark.parametrize("name", ["ConfigError", "InvalidArgument", "NotInitialized", "InitializationFailed"])
def test_mistakes_of_the_caller_are_value_errors(name: str) -> None:
    assert issubclass(getattr(errors, name), ValueError)


def test_horovods_name_is_an_alias() -> None:
    assert errors.HorovodInternalError is errors.RuntimeFailure


@pytest.mark.parametrize("name", ["Mismatch", "ShutDown", "InvalidArgument"])
def test_native_exceptions_find_their_twin(name: str) -> None:
    found = native.translate(getattr(fake_native, name)("what happened"))
    assert type(found) is getattr(errors, name) and str(found) == "what happened"


def test_an_unknown_native_exception_is_a_failure() -> None:
    assert type(native.translate(fake_native.Error("x"))) is errors.RuntimeFailure


def test_translated_hides_the_native_class(fake: None) -> None:
    with pytest.raises(errors.Mismatch, match="x"), native.translated():
        raise fake_native.Mismatch("x")
