from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

from ringtune.alias.horovod_variables import HOROVOD_IGNORED
from ringtune.config import Config, not_yet_warned
from ringtune.errors import ConfigError
from ringtune.knobs import TABLE
from ringtune.variable import FORMER_NAMES, Variable
from ringtune.variables import VARIABLES

Read = Callable[..., Config]
IDS = [variable.name for variable in VARIABLES]
# Slots and addresses that Horovod's own launchers set for every worker, which ringtune ignores without a word.
QUIET = {"CROSS_RANK", "CROSS_SIZE", "GLOO_RENDEZVOUS_ADDR", "GLOO_RENDEZVOUS_PORT", "LOG_HIDE_TIME", "ELASTIC"}

EXAMPLES = {
    "int": ("7", 7),
    "float": ("2.5", 2.5),
    "bool": ("1", True),
    "str": ("word", "word"),
    "path": ("a/b.json", Path("a/b.json")),
    "address": ("node1:29400", ("node1", 29400)),
    "cores": ("0, 2", (0, 2)),
    "switch": ("yes", "on"),
    "secret": ("0123456789abcdef", "0123456789abcdef"),
    "steps": ("500:520, 100:120", ((100, 120), (500, 520))),
}


def example(variable: Variable) -> tuple[str, object]:
    if variable.kind == "choice":
        return variable.choices[-1].upper(), variable.choices[-1]
    text, value = EXAMPLES[variable.kind]
    return text, round(value * variable.factor) if isinstance(value, float) else value


@pytest.mark.parametrize("variable", VARIABLES, ids=IDS)
def test_each_variable_sets_its_field(variable: Variable, config: Read) -> None:
    text, value = example(variable)
    found = config(**{f"RINGTUNE_{variable.name}": text})
    assert found.value(variable.field) == value
    assert found.given == {variable.name}


@pytest.mark.parametrize("variable", [v for v in VARIABLES if v.twin], ids=lambda v: v.name)
def test_horovods_twin_sets_the_same_field(variable: Variable, config: Read) -> None:
    text, value = example(variable)
    assert config(**{f"HOROVOD_{variable.twin}": text}).value(variable.field) == value


@pytest.mark.parametrize("variable", [v for v in VARIABLES if v.twin], ids=lambda v: v.name)
def test_ringtune_wins_over_the_twin(variable: Variable, config: Read) -> None:
    text, value = example(variable)
    both = config(**{f"RINGTUNE_{variable.name}": text, f"HOROVOD_{variable.twin}": "?"})
    assert both.value(variable.field) == value


@pytest.mark.parametrize("former", FORMER_NAMES)
def test_a_former_name_sets_the_same_field_unless_todays_does(former: str, config: Read) -> None:
    variable = next(one for one in VARIABLES if one.name == FORMER_NAMES[former])
    text, value = example(variable)
    found = config(**{f"RINGTUNE_{former}": text})
    assert (found.value(variable.field), found.given) == (value, {variable.name})
    assert config(**{f"RINGTUNE_{former}": "?", f"RINGTUNE_{variable.name}": text}).value(variable.field) == value
    with pytest.raises(ConfigError, match=f"RINGTUNE_{former}='[?]': expected"):
        config(**{f"RINGTUNE_{former}": "?"})


@pytest.mark.parametrize("variable", VARIABLES, ids=IDS)
def test_default_of_the_table_is_the_fields(variable: Variable, config: Read) -> None:
    assert Config().value(variable.field) == variable.default
    assert config(**{f"RINGTUNE_{variable.name}": " "}).value(variable.field) == variable.default


def test_the_table_and_the_class_have_the_same_fields() -> None:
    others = {v.field for v in VARIABLES} - {row.name for row in TABLE}
    assert others | {"knobs", "given", "horovods", "warnings"} == {f.name for f in fields(Config)}
    assert len({v.name for v in VARIABLES}) == len(VARIABLES)


def test_no_horovod_name_is_both_honoured_and_ignored() -> None:
    twins = {v.twin for v in VARIABLES if v.twin}
    assert not twins & set(HOROVOD_IGNORED) and not twins & QUIET and not QUIET & set(HOROVOD_IGNORED)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("RINGTUNE_RANK", "one", "a whole number >= 0"),
        ("RINGTUNE_RANK", "-1", "a whole number >= 0"),
        ("RINGTUNE_SIZE", "0", "a whole number >= 1"),
        ("RINGTUNE_CYCLE_TIME", "fast", r"a number >= 0 \(ms\)"),
        ("RINGTUNE_CYCLE_TIME", "nan", r"a number >= 0 \(ms\)"),
        ("RINGTUNE_CYCLE_TIME", "inf", r"a number >= 0 \(ms\)"),
        ("RINGTUNE_FUSION_THRESHOLD", "64MB", r"a whole number >= 0 \(bytes\)"),
        ("HOROVOD_RANK", "one", "a whole number >= 0"),
        ("RINGTUNE_AUTOTUNE", "maybe", "1 or 0"),
        ("RINGTUNE_TRANSPORT", "rdma", "one of auto, shm, tcp, mpi"),
        ("RINGTUNE_STORE", "node1", "host:port"),
        ("RINGTUNE_STORE", "node1:70000", "host:port"),
        ("RINGTUNE_THREAD_AFFINITY", "0,x", "core numbers"),
        ("RINGTUNE_CACHE_CAPACITY", "-1", "from 0 to 2147483647"),
    ],
)
def test_a_bad_value_names_variable_value_and_expectation(name: str, text: str, expected: str, config: Read) -> None:
    with pytest.raises(ConfigError, match=f"{name}='{text}': expected .*{expected}"):
        config(**{name: text})


def test_an_unknown_name_is_refused_with_the_nearest_one(config: Read) -> None:
    with pytest.raises(ConfigError, match=r"RINGTUNE_FUSION_TRESHOLD='1': .*did you mean RINGTUNE_FUSION_THRESHOLD\?"):
        config(RINGTUNE_FUSION_TRESHOLD=1)
    with pytest.raises(ValueError, match="no such variable"):
        config(RINGTUNE_ZZZ=1)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("STALL_CHECK_TIME", "STALL_CHECK_TIME_SECONDS"),
        ("FUSION_TRESHOLD", "FUSION_THRESHOLD"),
        ("TIMELIN", "TIMELINE"),
    ],
)
def test_the_variable_that_was_meant_is_named(name: str, meant: str, config: Read) -> None:
    with pytest.raises(ValueError, match=f"did you mean RINGTUNE_{meant}\\?"):
        config(**{f"RINGTUNE_{name}": "3"})


@pytest.mark.parametrize("name", sorted(HOROVOD_IGNORED))
def test_horovods_ignored_variables_warn(name: str, config: Read) -> None:
    (warning,) = config(**{f"HOROVOD_{name}": "1"}).warnings
    assert warning.startswith(f"HOROVOD_{name}=1 has no effect")


@pytest.mark.parametrize("name", sorted(QUIET))
def test_what_horovods_launchers_set_is_quiet(name: str, config: Read) -> None:
    assert config(**{f"HOROVOD_{name}": "1"}).warnings == ()


# Everything that Horovod's runtime and launcher read (contract, 2.1 and 2.2), but for Spark's and the builds'.
CONTRACT = """
CONTROLLER CPU_OPERATIONS FUSION_THRESHOLD CYCLE_TIME CACHE_CAPACITY HIERARCHICAL_ALLREDUCE HIERARCHICAL_ALLGATHER
TORUS_ALLREDUCE AUTOTUNE AUTOTUNE_LOG AUTOTUNE_WARMUP_SAMPLES AUTOTUNE_STEPS_PER_SAMPLE AUTOTUNE_BAYES_OPT_MAX_SAMPLES
AUTOTUNE_GAUSSIAN_PROCESS_NOISE TIMELINE TIMELINE_MARK_CYCLES STALL_CHECK_DISABLE STALL_CHECK_TIME_SECONDS
STALL_SHUTDOWN_TIME_SECONDS DISABLE_GROUP_FUSION DYNAMIC_PROCESS_SETS ELASTIC THREAD_AFFINITY NUM_NCCL_STREAMS
BATCH_D2D_MEMCOPIES ENABLE_ASYNC_COMPLETION ENABLE_XLA_OPS DISABLE_NVTX_RANGES ADASUM_MPI_CHUNK_SIZE MPI_THREADS_DISABLE
CCL_CACHE GLOO_IFACE GLOO_TIMEOUT_SECONDS GLOO_RENDEZVOUS_ADDR GLOO_RENDEZVOUS_PORT HOSTNAME RANK SIZE LOCAL_RANK
LOCAL_SIZE CROSS_RANK CROSS_SIZE LOG_LEVEL LOG_HIDE_TIME START_TIMEOUT ELASTIC_TIMEOUT
"""


@pytest.mark.parametrize("name", CONTRACT.split())
def test_every_variable_of_horovod_is_honoured_or_answered(name: str) -> None:
    twins = {variable.twin for variable in VARIABLES}
    assert [name in known for known in (twins, HOROVOD_IGNORED, QUIET)].count(True) == 1


def test_a_warning_is_given_once_however_often_a_job_begins() -> None:
    assert not_yet_warned(["one", "two"]) == ["one", "two"]
    assert not_yet_warned(["two", "three"]) == ["three"]


@pytest.mark.parametrize("text", ["1", "true", "YES", "on"])
def test_true_words(text: str, config: Read) -> None:
    assert config(RINGTUNE_AUTOTUNE=text).autotune


@pytest.mark.parametrize("text", ["0", "False", "no", "OFF"])
def test_false_words(text: str, config: Read) -> None:
    assert not config(RINGTUNE_AUTOTUNE=text).autotune


def test_dynamic_timeline(config: Read) -> None:
    assert config(HOROVOD_TIMELINE="dynamic").timeline_dynamic
    assert not config(RINGTUNE_TIMELINE="t.json").timeline_dynamic


def test_ipv6_store(config: Read) -> None:
    assert config(RINGTUNE_STORE="[::1]:80").store == ("::1", 80)


def test_given_settings_as_json(config: Read) -> None:
    found = config(
        RINGTUNE_CYCLE_TIME=2,
        RINGTUNE_STALL_CHECK_TIME_SECONDS=2.5,
        RINGTUNE_STORE="a:1",
        HOROVOD_TIMELINE="t.json",
        RINGTUNE_THREAD_AFFINITY="1,2",
    )
    assert found.as_dict() == {
        "RINGTUNE_CYCLE_TIME": 2,
        "RINGTUNE_STALL_CHECK_TIME_SECONDS": 2.5,
        "RINGTUNE_THREAD_AFFINITY": [1, 2],
        "RINGTUNE_TIMELINE": "t.json",
    }
