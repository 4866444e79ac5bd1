"""``--config-file``: settings in YAML under ``horovodrun``'s keys.

| section | keys |
|---|---|
| ``params`` | ``fusion_threshold_mb``, ``cycle_time_ms``, ``cache_capacity``, ``hierarchical_allreduce`` |
| ``autotune`` | ``enabled``, ``log_file``, ``steps_per_sample``, ``bayes_opt_max_samples`` |
| ``timeline`` | ``filename``, ``mark_cycles`` |
| ``stall_check`` | ``enabled``, ``warning_time_seconds``, ``shutdown_time_seconds`` |
| ``library_options`` | ``thread_affinity``, ``num_nccl_streams`` |
| ``logging`` | ``level`` |

Keys of ``horovodrun`` that have nothing to set here are answered by one sentence each; any other is an error.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from ringtune.errors import UsageError
from ringtune.launch.horovod_flags import IGNORED
from ringtune.launch.settings import SETTINGS, settings_from

_SETTINGS = {
    "params.fusion_threshold_mb": "RINGTUNE_FUSION_THRESHOLD",
    "params.cycle_time_ms": "RINGTUNE_CYCLE_TIME",
    "params.cache_capacity": "RINGTUNE_CACHE_CAPACITY",
    "params.hierarchical_allreduce": "RINGTUNE_HIERARCHICAL_ALLREDUCE",
    "autotune.enabled": "RINGTUNE_AUTOTUNE",
    "autotune.log_file": "RINGTUNE_AUTOTUNE_LOG",
    "autotune.steps_per_sample": "RINGTUNE_AUTOTUNE_STEPS_PER_TRIAL",
    "autotune.bayes_opt_max_samples": "RINGTUNE_AUTOTUNE_MAX_TRIALS",
    "timeline.filename": "RINGTUNE_TIMELINE",
    "timeline.mark_cycles": "RINGTUNE_TIMELINE_MARK_CYCLES",
    "stall_check.enabled": "RINGTUNE_STALL_CHECK_DISABLE",
    "stall_check.warning_time_seconds": "RINGTUNE_STALL_CHECK_TIME_SECONDS",
    "stall_check.shutdown_time_seconds": "RINGTUNE_STALL_SHUTDOWN_TIME_SECONDS",
    "library_options.thread_affinity": "RINGTUNE_THREAD_AFFINITY",
    "library_options.num_nccl_streams": "RINGTUNE_NUM_NCCL_STREAMS",
    "logging.level": "RINGTUNE_LOG_LEVEL",
}
# Key -> the flag that says why.
_IGNORED = {
    "params.hierarchical_allgather": "hierarchical_allgather",
    "params.torus_allreduce": "torus_allreduce",
    "autotune.warmup_samples": "autotune_warmup_samples",
    "autotune.gaussian_process_noise": "autotune_gaussian_process_noise",
    "library_options.mpi_threads_disable": "mpi_threads_disable",
    "library_options.gloo_timeout_seconds": "gloo_timeout_seconds",
    "logging.with_timestamp": "log_with_timestamp",
    "logging.hide_timestamp": "log_hide_timestamp",
    "controller": "gloo",
}
_INVERTED = frozenset({"stall_check.enabled"})


def settings_from_file(path: Path) -> dict[str, str]:
    """Return the variables that a file asks for.

    Raises:
        UsageError: The file cannot be read, is no such YAML, or holds an unknown key or a bad value.
    """
    reasons = {flag.parameter: flag.reason for flag in IGNORED}
    found: dict[str, str] = {}
    for key, value in _entries(path):
        if key in _SETTINGS:
            found |= _setting(path, key, value)
        elif key in _IGNORED:
            click.echo(f"ringtune run: {key} in {path} has no effect: {reasons[_IGNORED[key]]}", err=True)
        else:
            near = difflib.get_close_matches(key, [*_SETTINGS, *_IGNORED], n=1)
            raise UsageError(f"{path}: unknown key {key!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    return found


def _entries(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield ``section.key`` and value of all entries that have a value."""
    import yaml

    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"--config-file {path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"--config-file {path} is no YAML: {' '.join(str(error).split())}") from None
    if not isinstance(document, Mapping | None):
        raise UsageError(f"--config-file {path}: expected sections with keys, got {document!r}")
    for section, content in (document or {}).items():
        if not isinstance(content, Mapping):
            yield str(section), content
            continue
        yield from ((f"{section}.{key}", value) for key, value in content.items() if value is not None)


def _setting(path: Path, key: str, value: Any) -> dict[str, str]:
    """Return the variable that a key sets; none where the value keeps the default."""
    setting = next(one for one in SETTINGS if one.variable == _SETTINGS[key])
    if setting.type is None:
        if not isinstance(value, bool):
            raise UsageError(f"{path}: {key}={value!r}: expected true or false")
        return settings_from({setting.parameter: value != (key in _INVERTED)})
    try:
        converted = click.types.convert_type(setting.type).convert(value, None, None)
    except click.BadParameter as error:
        raise UsageError(f"{path}: {key}={value!r}: {error.message}") from None
    return settings_from({setting.parameter: converted})
