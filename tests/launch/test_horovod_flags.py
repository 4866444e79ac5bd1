"""Command lines of horovodrun: every flag of the contract is taken, set, or answered in words."""

from __future__ import annotations

import dataclasses
import socket
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from ringtune.bootstrap.interfaces import address_of
from ringtune.config import Config
from ringtune.errors import ConfigError, UsageError
from ringtune.launch import command
from ringtune.launch.config_file import settings_from_file
from ringtune.launch.options import LaunchOptions
from ringtune.launch.settings import SETTINGS
from ringtune.variables import VARIABLES


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[LaunchOptions]:
    """What `ringtune run` would launch."""
    launched: list[LaunchOptions] = []

    def launch(options: LaunchOptions) -> int:
        launched.append(options)
        return 0

    monkeypatch.setattr(command, "launch", launch)
    return launched


def run(*words: str) -> Result:
    return CliRunner().invoke(command.run, [*words, "--no-run-dir", "true"], standalone_mode=False)


@pytest.mark.parametrize(
    ("words", "variable", "text"),
    [
        (["--fusion-threshold-mb", "32"], "RINGTUNE_FUSION_THRESHOLD", str(32 << 20)),
        (["--cycle-time-ms", "3.5"], "RINGTUNE_CYCLE_TIME", "3.5"),
        (["--cache-capacity", "5"], "RINGTUNE_CACHE_CAPACITY", "5"),
        (["--hierarchical-allreduce"], "RINGTUNE_HIERARCHICAL_ALLREDUCE", "1"),
        (["--no-hierarchical-allreduce"], "RINGTUNE_HIERARCHICAL_ALLREDUCE", "0"),
        (["--autotune"], "RINGTUNE_AUTOTUNE", "1"),
        (["--no-autotune"], "RINGTUNE_AUTOTUNE", "0"),
        (["--autotune-log-file", "/a.csv"], "RINGTUNE_AUTOTUNE_LOG", "/a.csv"),
        (["--autotune-steps-per-sample", "4"], "RINGTUNE_AUTOTUNE_STEPS_PER_TRIAL", "4"),
        (["--autotune-bayes-opt-max-samples", "9"], "RINGTUNE_AUTOTUNE_MAX_TRIALS", "9"),
        (["--timeline-filename", "/t.json"], "RINGTUNE_TIMELINE", "/t.json"),
        (["--timeline-filename", "DYNAMIC"], "RINGTUNE_TIMELINE", "DYNAMIC"),
        (["--timeline-mark-cycles"], "RINGTUNE_TIMELINE_MARK_CYCLES", "1"),
        (["--no-timeline-mark-cycles"], "RINGTUNE_TIMELINE_MARK_CYCLES", "0"),
        (["--no-stall-check"], "RINGTUNE_STALL_CHECK_DISABLE", "1"),
        (["--stall-check"], "RINGTUNE_STALL_CHECK_DISABLE", "0"),
        (["--stall-check-warning-time-seconds", "7"], "RINGTUNE_STALL_CHECK_TIME_SECONDS", "7.0"),
        (["--stall-check-shutdown-time-seconds", "9"], "RINGTUNE_STALL_SHUTDOWN_TIME_SECONDS", "9.0"),
        (["--thread-affinity", "0,1"], "RINGTUNE_THREAD_AFFINITY", "0,1"),
        (["--log-level", "DEBUG"], "RINGTUNE_LOG_LEVEL", "debug"),
        (["--start-timeout", "5"], "RINGTUNE_START_TIMEOUT", "5.0"),
        (["--network-interfaces", "eth0,lo"], "RINGTUNE_INTERFACE", "eth0,lo"),
        (["--network-interface", "lo"], "RINGTUNE_INTERFACE", "lo"),
        (["--network-interface", "ib0", "--network-interfaces", "eth0,lo"], "RINGTUNE_INTERFACE", "ib0,eth0,lo"),
        (["--network-interface", "ib0", "--network-interface", "lo"], "RINGTUNE_INTERFACE", "ib0,lo"),
        (["--network-interface", "lo", "--network-interface", "lo"], "RINGTUNE_INTERFACE", "lo,lo"),
        (["--num-nccl-streams", "2"], "RINGTUNE_NUM_NCCL_STREAMS", "2"),
    ],
)
def test_a_flag_sets_its_variable(words: list[str], variable: str, text: str, asked: list[LaunchOptions]) -> None:
    result = run(*words)
    assert (result.exception, result.output) == (None, "")
    [options] = asked
    assert options.settings == {variable: text}


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        (["-np", "3"], "num_proc", 3),
        (["--num-proc", "3"], "num_proc", 3),
        (["-H", "a:1,b:2"], "hosts", "a:1,b:2"),
        (["--hosts", "a:1"], "hosts", "a:1"),
        (["-hostfile", "f"], "hostfile", Path("f")),
        (["--hostfile", "f"], "hostfile", Path("f")),
        (["-p", "22"], "ssh_port", 22),
        (["--ssh-port", "22"], "ssh_port", 22),
        (["-i", "k"], "ssh_identity_file", Path("k")),
        (["--ssh-identity-file", "k"], "ssh_identity_file", Path("k")),
        (["--output-filename", "d"], "output_folder", Path("d")),
        (["-prefix-timestamp"], "timestamp_output", True),
        (["--prefix-output-with-timestamp"], "timestamp_output", True),
        (["--verbose"], "verbose", True),
    ],
)
def test_a_flag_says_where_and_how(words: list[str], field: str, value: Any, asked: list[LaunchOptions]) -> None:
    assert run(*words).exception is None
    assert getattr(asked[0], field) == value


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        (["--min-np", "1"], "min_np", 1),
        (["--min-num-proc", "1"], "min_np", 1),
        (["--max-np", "4"], "max_np", 4),
        (["--max-num-proc", "4"], "max_np", 4),
        (["--host-discovery-script", "s"], "script", Path("s")),
        (["--min-np", "1", "--slots-per-host", "2"], "default_slots", 2),
        (["--min-np", "1", "--elastic-timeout", "9"], "timeout_s", 9.0),
        (["--min-np", "1", "--reset-limit", "3"], "reset_limit", 3),
        (["--min-np", "1", "--blacklist-cooldown-range", "1", "5"], "cooldown_s", (1.0, 5.0)),
    ],
)
def test_an_elastic_flag(words: list[str], field: str, value: Any, asked: list[LaunchOptions]) -> None:
    assert run(*words).exception is None
    assert getattr(asked[0].elastic, field) == value


@pytest.mark.parametrize(
    "words",
    [
        ["--disable-cache"],
        ["--gloo"],
        ["--mpi"],
        ["--mpi-args", "-x"],
        ["--binding-args", "-x"],
        ["--mpi-threads-disable"],
        ["--no-mpi-threads-disable"],
        ["--tcp"],
        ["--hierarchical-allgather"],
        ["--no-hierarchical-allgather"],
        ["--torus-allreduce"],
        ["--no-torus-allreduce"],
        ["--autotune-warmup-samples", "3"],
        ["--autotune-gaussian-process-noise", "0.5"],
        ["--gloo-timeout-seconds", "30"],
        ["--log-with-timestamp"],
        ["--log-without-timestamp"],
        ["--log-hide-timestamp"],
        ["--no-log-hide-timestamp"],
    ],
    ids=lambda words: words[0],
)
def test_a_flag_without_effect_says_so_once(words: list[str], asked: list[LaunchOptions]) -> None:
    result = run(*words)
    assert result.exception is None
    assert len(result.stderr.splitlines()) == 1
    assert "has no effect: " in result.stderr
    assert asked[0].settings == {}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--jsrun"], "jsrun itself"),
        (["--gloo", "--mpi"], "not both"),
        (["--cycle-time-ms", "-1"], "x>=0"),
        (["--fusion-threshold-mb", "-1"], "x>=0"),
        (["--autotune-gaussian-process-noise", "2"], "0<=x<=1"),
        (["--config-file", "nowhere.yaml"], "nowhere.yaml"),
    ],
)
def test_a_flag_that_makes_no_sense_is_refused(words: list[str], message: str, asked: list[LaunchOptions]) -> None:
    error = run(*words).exception
    assert isinstance(error, UsageError | click.UsageError)
    assert message in str(error)
    assert not asked


@pytest.mark.parametrize("flag", ["-v", "--version"])
def test_the_version(flag: str, asked: list[LaunchOptions]) -> None:
    assert run(flag).output.startswith("ringtune ")
    assert not asked


# Flag -> the variable of Horovod's that it sets, and how many of its units the flag counts in.
NUMBERS = {
    "--fusion-threshold-mb": ("FUSION_THRESHOLD", 1 << 20),
    "--cycle-time-ms": ("CYCLE_TIME", 1),
    "--cache-capacity": ("CACHE_CAPACITY", 1),
    "--num-nccl-streams": ("NUM_NCCL_STREAMS", 1),
    "--autotune-bayes-opt-max-samples": ("AUTOTUNE_BAYES_OPT_MAX_SAMPLES", 1),
    "--autotune-steps-per-sample": ("AUTOTUNE_STEPS_PER_SAMPLE", 1),
    "--start-timeout": ("START_TIMEOUT", 1),
    "--stall-check-warning-time-seconds": ("STALL_CHECK_TIME_SECONDS", 1),
    "--stall-check-shutdown-time-seconds": ("STALL_SHUTDOWN_TIME_SECONDS", 1),
}
NOT_COUNTED = {"--thread-affinity"}


def test_every_flag_of_a_number_is_compared_with_its_variable() -> None:
    twins = {f"RINGTUNE_{variable.name}": variable.twin for variable in VARIABLES if variable.twin}
    of_variables = [one for one in SETTINGS if isinstance(one.type, click.ParamType) and one.variable in twins]
    typed = [one for one in of_variables if not isinstance(one.type, click.Choice | type(click.STRING))]
    assert {one.flags[0] for one in typed} == {*NUMBERS, *NOT_COUNTED}
    assert {twins[one.variable] for one in typed if one.flags[0] in NUMBERS} == {twin for twin, _ in NUMBERS.values()}


@pytest.mark.parametrize("value", ["0", "1", "16", "64.0", "2.5", "0.0001", "1e3", "9" * 30])
@pytest.mark.parametrize("flag", list(NUMBERS))
def test_a_flag_takes_what_its_variable_takes(flag: str, value: str, asked: list[LaunchOptions]) -> None:
    twin, unit = NUMBERS[flag]
    by_variable = Config.from_environ({f"HOROVOD_{twin}": value if unit == 1 else str(int(float(value) * unit))})
    result = run(flag, value)
    assert result.exception is None
    by_flag = Config.from_environ(asked[0].settings)
    for field in dataclasses.fields(Config):
        if field.name not in ("given", "horovods", "warnings"):
            assert getattr(by_flag, field.name) == getattr(by_variable, field.name), field.name
    said = [sentence.partition("=")[2].partition(" ")[2] for sentence in by_variable.warnings]
    assert result.stderr.splitlines() == [f"ringtune run: {flag} {value} {sentence}" for sentence in said]


@pytest.mark.parametrize("value", ["-1", "-0.5", "nan", "inf", "many", "5ms", ""])
@pytest.mark.parametrize("flag", list(NUMBERS))
def test_a_flag_refuses_what_is_no_amount(flag: str, value: str, asked: list[LaunchOptions]) -> None:
    error = run(flag, value).exception
    assert isinstance(error, click.UsageError) and flag in error.format_message()
    assert not asked


@pytest.mark.parametrize(
    ("value", "settings", "said"),
    [
        (" 0, 1", {"RINGTUNE_THREAD_AFFINITY": "0,1"}, ""),
        ("a,b", {}, "ringtune run: --thread-affinity a,b has no effect: expected core numbers separated by commas\n"),
    ],
)
def test_cores_are_those_of_the_variable(
    value: str, settings: dict[str, str], said: str, asked: list[LaunchOptions]
) -> None:
    result = run("--thread-affinity", value)
    assert (asked[0].settings, result.stderr) == (settings, said)


DOCUMENT = """
params:
  fusion_threshold_mb: 32
  cycle_time_ms: 3
  cache_capacity: 2048
  hierarchical_allreduce: true
  hierarchical_allgather: true
autotune:
  enabled: true
  log_file: /log.csv
  steps_per_sample: 5
  bayes_opt_max_samples: 10
timeline:
  filename: /t.json
  mark_cycles: true
stall_check:
  enabled: false
  warning_time_seconds: 120
  shutdown_time_seconds: 240
library_options:
  thread_affinity: "0"
  num_nccl_streams: 3
logging:
  level: INFO
"""


def test_a_config_file(tmp_path: Path, asked: list[LaunchOptions], capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(DOCUMENT)
    assert settings_from_file(path) == {
        "RINGTUNE_FUSION_THRESHOLD": str(32 << 20),
        "RINGTUNE_CYCLE_TIME": "3.0",
        "RINGTUNE_CACHE_CAPACITY": "2048",
        "RINGTUNE_HIERARCHICAL_ALLREDUCE": "1",
        "RINGTUNE_AUTOTUNE": "1",
        "RINGTUNE_AUTOTUNE_LOG": "/log.csv",
        "RINGTUNE_AUTOTUNE_STEPS_PER_TRIAL": "5",
        "RINGTUNE_AUTOTUNE_MAX_TRIALS": "10",
        "RINGTUNE_TIMELINE": "/t.json",
        "RINGTUNE_TIMELINE_MARK_CYCLES": "1",
        "RINGTUNE_STALL_CHECK_DISABLE": "1",
        "RINGTUNE_STALL_CHECK_TIME_SECONDS": "120.0",
        "RINGTUNE_STALL_SHUTDOWN_TIME_SECONDS": "240.0",
        "RINGTUNE_THREAD_AFFINITY": "0",
        "RINGTUNE_NUM_NCCL_STREAMS": "3",
        "RINGTUNE_LOG_LEVEL": "info",
    }
    [said] = capsys.readouterr().err.splitlines()
    assert "params.hierarchical_allgather" in said


def test_flags_win_over_the_config_file(tmp_path: Path, asked: list[LaunchOptions]) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("params: {cycle_time_ms: 3, cache_capacity: 7}")
    assert run("--cycle-time-ms", "9", "--config-file", str(path)).exception is None
    assert asked[0].settings == {"RINGTUNE_CYCLE_TIME": "9.0", "RINGTUNE_CACHE_CAPACITY": "7"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("params: {cycle_time: 3}", "unknown key 'params.cycle_time'; did you mean 'params.cycle_time_ms'"),
        ("params: {cycle_time_ms: fast}", "params.cycle_time_ms='fast'"),
        ("params: {cycle_time_ms: -1}", "params.cycle_time_ms=-1"),
        ("autotune: {enabled: 3}", "expected true or false"),
        ("[1, 2]", "expected sections"),
        ("a: [", "is no YAML"),
    ],
)
def test_a_config_file_that_makes_no_sense(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as raised:
        settings_from_file(path)
    assert message in str(raised.value)


def test_an_empty_config_file_sets_nothing(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("")
    assert settings_from_file(tmp_path / "config.yaml") == {}


@pytest.mark.parametrize("names", ["lo", "nonesuch,lo", " lo , eth7"])
def test_the_first_interface_that_is_there_counts(names: str) -> None:
    assert address_of(names) == "127.0.0.1"
    assert Config.from_environ({"HOROVOD_GLOO_IFACE": names}).own_address == "127.0.0.1"


def test_an_interface_that_is_not_there_lists_those_that_are() -> None:
    assert "lo" in [name for _, name in socket.if_nameindex()]
    with pytest.raises(ConfigError, match=r"RINGTUNE_INTERFACE='nonesuch': .*it has .*lo"):
        address_of("nonesuch")


def test_an_address_wins_over_an_interface() -> None:
    environ = {"RINGTUNE_INTERFACE": "nonesuch", "RINGTUNE_INTERFACE_ADDRESS": "10.0.0.1"}
    assert Config.from_environ(environ).own_address == "10.0.0.1"
