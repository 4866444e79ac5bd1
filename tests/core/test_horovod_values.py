"""Values of Horovod's variables are read as Horovod's runtime reads them: none of them ends a job that ran there."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringtune.config import Config
from ringtune.errors import ConfigError
from ringtune.session import Session
from ringtune.variable import Variable
from ringtune.variables import VARIABLES
from tests.core.fake_native import RuntimeOptions, fake_of

Read = Callable[..., Config]

TWINS = [variable for variable in VARIABLES if variable.twin]
RANK_INFO = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
SETTINGS = [variable for variable in TWINS if variable.twin not in RANK_INFO]
INTS = [variable for variable in SETTINGS if variable.kind == "int"]
FLOATS = [variable for variable in SETTINGS if variable.kind == "float"]
BOOLS = [variable for variable in SETTINGS if variable.kind == "bool"]
MOST = {"nccl_streams": 8, "cache_capacity": 2**31 - 1}
WORDS = {"1", "0", "true", "false", "yes", "no", "on", "off"}

libc = ctypes.CDLL(None)
libc.strtol.restype = ctypes.c_long
libc.strtod.restype = ctypes.c_double

# What people write, and anything else that a variable can hold.
habits = st.sampled_from(
    ["1", "0", "-1", " 5", "5 ", "64.0", "2.5", "1e3", "5ms", "64MB", "0x10", "+7", "(None,)", "None", "auto", "true",
     "16", "1,2", "0, 1", "1-3", ".5", "-.5e2", "1e400", "9" * 60, "INFO", "loud", "~/t.json", "5s", "1_000", "\u0663"]
)  # fmt: skip
texts = habits | st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=8)


def c_long(text: str) -> int:
    """C's own answer, within what a knob can hold."""
    return int(libc.strtol(text.encode(), None, 10))


@given(variable=st.sampled_from(SETTINGS), text=texts)
def test_no_value_of_horovods_is_an_error(variable: Variable, text: str) -> None:
    found = Config.from_environ({f"HOROVOD_{variable.twin}": text})
    assert found.knobs is not None
    assert len(found.warnings) <= 1
    for sentence in found.warnings:
        assert sentence.startswith(f"HOROVOD_{variable.twin}={text!r} ")


@given(variable=st.sampled_from(INTS), text=texts)
def test_whole_numbers_are_those_of_strtol(variable: Variable, text: str) -> None:
    if not text.strip():
        return
    found = Config.from_environ({f"HOROVOD_{variable.twin}": text})
    assert variable.low is not None
    most = MOST.get(variable.field, 2**62)
    assert found.value(variable.field) == min(max(c_long(text), int(variable.low)), most)


@given(variable=st.sampled_from(FLOATS), text=texts)
def test_other_numbers_are_those_of_strtod(variable: Variable, text: str) -> None:
    value = libc.strtod(text.encode(), None)
    # C also knows hexadecimal numbers and words for infinity, which nobody sets here.
    if not text.strip() or not math.isfinite(value) or "x" in text.lower():
        return
    found = Config.from_environ({f"HOROVOD_{variable.twin}": text}).value(variable.field)
    assert variable.low is not None
    if value < variable.low:
        assert found == (0 if variable.low == 0 else variable.default)
    else:
        assert found == pytest.approx(min(value * variable.factor, 2**62), rel=1e-6)


@given(variable=st.sampled_from(BOOLS), text=texts)
def test_switches_are_on_from_one_on(variable: Variable, text: str) -> None:
    if text.strip() and text.strip().lower() not in WORDS:
        found = Config.from_environ({f"HOROVOD_{variable.twin}": text})
        assert found.value(variable.field) is (c_long(text) > 0)


@pytest.mark.parametrize(
    ("name", "text", "field", "value", "said"),
    [
        ("FUSION_THRESHOLD", "67108864.0", "fusion_bytes", 67108864, None),
        ("FUSION_THRESHOLD", " 5", "fusion_bytes", 5, None),
        ("FUSION_THRESHOLD", "64MB", "fusion_bytes", 64, "is read as 64, as Horovod does"),
        ("FUSION_THRESHOLD", "1e3", "fusion_bytes", 1, "is read as 1, as Horovod does"),
        ("FUSION_THRESHOLD", "-1", "fusion_bytes", 0, "counts as 0: expected a number >= 0 bytes"),
        ("CYCLE_TIME", "5ms", "cycle_time_ns", 5_000_000, "is read as 5, as Horovod does"),
        ("CYCLE_TIME", "1e3", "cycle_time_ns", 1_000_000_000, None),
        ("CYCLE_TIME", "(None,)", "cycle_time_ns", 0, "is read as 0, as Horovod does"),
        ("NUM_NCCL_STREAMS", "16", "nccl_streams", 8, "counts as 8: expected 1 to 8"),
        ("STALL_CHECK_TIME_SECONDS", "0", "stall_warning_ns", 6 * 10**10, "has no effect: expected a number >= 0.001"),
        ("AUTOTUNE", "2", "autotune", True, None),
        ("AUTOTUNE", "enabled", "autotune", False, "is read as 0, as Horovod does"),
        ("HIERARCHICAL_ALLREDUCE", "2", "hierarchical", "on", None),
        ("LOG_LEVEL", " Info ", "log_level", "info", None),
        ("LOG_LEVEL", "loud", "log_level", "warning", "has no effect: expected one of trace, debug"),
        ("THREAD_AFFINITY", " 0, 1x", "thread_affinity", (0, 1), None),
        ("THREAD_AFFINITY", "a,b", "thread_affinity", (), "has no effect: expected core numbers"),
        ("RANK", " 1.0", "rank", 1, None),
        ("TIMELINE", "dynamic", "timeline_dynamic", True, None),
    ],
)  # fmt: skip
def test_habits(name: str, text: str, field: str, value: object, said: str | None, config: Read) -> None:
    found = config(**{f"HOROVOD_{name}": text})
    assert found.value(field) == value
    sentences = [sentence for sentence in found.warnings if f"HOROVOD_{name}={text!r} {said}" in sentence]
    assert bool(sentences) == (said is not None) and len(found.warnings) == len(sentences)


@pytest.mark.parametrize("name", RANK_INFO)
def test_a_place_is_never_guessed(name: str, config: Read) -> None:
    with pytest.raises(ConfigError, match=f"HOROVOD_{name}='x'"):
        config(**{f"HOROVOD_{name}": "x"})


@given(variable=st.sampled_from(SETTINGS), text=texts)
def test_ringtunes_own_name_stays_strict(variable: Variable, text: str) -> None:
    """What is taken there is exact; and the sentences are about Horovod's variables alone."""
    try:
        found = Config.from_environ({f"RINGTUNE_{variable.name}": text})
    except ConfigError as error:
        assert str(error).startswith(f"RINGTUNE_{variable.name}=")
    else:
        assert found.warnings == () and found.horovods == frozenset()


def test_fewer_cores_than_ranks_are_ignored_and_said_once(
    opened: Callable[..., Session], capsys: pytest.CaptureFixture[str]
) -> None:
    now = opened(2, RINGTUNE_LOCAL_RANK=0, RINGTUNE_LOCAL_SIZE=2, HOROVOD_THREAD_AFFINITY="3")
    options: RuntimeOptions = fake_of(now).options
    assert options.thread_affinity == -1
    assert capsys.readouterr().err.count("HOROVOD_THREAD_AFFINITY has no effect: it names 1 cores") == 1
