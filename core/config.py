"""Configuration: the environment, read once when a session opens.

``RINGTUNE_*`` wins over its ``HOROVOD_*`` twin, and a variable's name of today over its former one; an empty value
counts as unset. A value of ``RINGTUNE_*`` that cannot be understood is a `ConfigError` that names the variable, the
value and what was expected; nothing is guessed. Values of ``HOROVOD_*`` are read as Horovod reads them
(`ringtune.alias.horovod_variables`).
"""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ringtune.algorithms import SWITCH
from ringtune.alias.horovod_variables import FALSE, HOROVOD_IGNORED, TRUE, reading
from ringtune.bootstrap.interfaces import address_of
from ringtune.errors import ConfigError
from ringtune.knobs import BY_NAME as KNOBS_BY_NAME
from ringtune.knobs import DEFAULTS, Knobs
from ringtune.output_file import expanded
from ringtune.output_variables import DETAILS
from ringtune.variable import FORMER_NAMES, PREFIX, TWIN_PREFIX, Variable, current_name, without_password
from ringtune.variables import CASTS, VARIABLES

FEWEST_SECRET_CHARACTERS = 16
"""Of a job's secret; 32 hexadecimal digits are as many bits as anybody needs."""

_PRIVATE = frozenset({"STORE", "JOB", "SECRET", "SECRET_FILE", "TLS_KEY"})
_BY_NAME = {variable.name: variable for variable in VARIABLES}


@dataclass(frozen=True)
class Config:
    """Settings of one process; field by field the variables of `ringtune.variables.VARIABLES`.

    Attributes:
        knobs: The runtime's first setting; the fields of its variables are read by `value`.
        given: Names (without prefix) of the variables that were set, under either prefix.
        horovods: Those of them that were set under Horovod's name; their values never end a job.
        warnings: Sentences about Horovod's variables that have no effect here; printed once by rank 0.
    """

    rank: int | None = None
    size: int | None = None
    local_rank: int | None = None
    local_size: int | None = None
    hostname: str | None = None
    store: tuple[str, int] | None = None
    job: str | None = None
    secret: str | None = field(default=None, repr=False)
    secret_file: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_ca: Path | None = None
    worker: int | None = None
    restart: int = 0
    launcher: bool = False
    run_dir: Path | None = None
    sample_ns: int = 1_000_000_000
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
    alert_late_ppm: int = 0
    alert_slower_ppm: int = 0
    alert_webhook: str = ""
    timeline: Path | None = None
    timeline_mark_cycles: bool = False
    timeline_steps: tuple[tuple[int, int], ...] = ()
    timeline_detail: str = DETAILS[0]
    timeline_gzip: bool = False
    timeline_rotate_bytes: int = 0
    log_level: str = "warning"
    check: bool = False
    traceback: bool = False
    knobs: Knobs = DEFAULTS
    algorithm_table: Path | None = None
    overlap: str = "auto"
    cuda_driver: str = ""
    nccl_library: str = ""
    gpu_data_path: str = "auto"
    gpu_part_bytes: int = 8 << 20
    compression: str = CASTS[0]
    bucket_cap_mb: int | None = None
    first_bucket_mb: float | None = None
    gradient_as_bucket_view: bool | None = None
    static_graph: bool | None = None
    reshard_after_forward: bool | None = None
    prefetch: int | None = None
    num_workers: int | None = None
    transport: str = "auto"
    sockets_per_peer: int = 1
    tcp_congestion: str = "auto"
    interface: str | None = None
    interface_address: str | None = None
    start_timeout_ns: int = 120_000_000_000
    elastic_timeout_ns: int = 600_000_000_000
    elastic_state: Path | None = None
    liveness_timeout_ns: int = 60_000_000_000
    idle_timeout_ns: int = 0
    thread_affinity: tuple[int, ...] = ()
    dynamic_process_sets: bool = False
    stall_check_disable: bool = False
    stall_warning_ns: int = 60_000_000_000
    stall_shutdown_ns: int = 0
    autotune: bool = False
    autotune_log: Path | None = None
    autotune_study: str | None = None
    autotune_max_trials: int | None = None
    autotune_steps_per_trial: int | None = None
    autotune_warmup_steps: int | None = None
    autotune_budget_ppm: int | None = None
    autotune_horizon: int | None = None
    autotune_seed: int | None = None
    given: frozenset[str] = field(default=frozenset())
    horovods: frozenset[str] = field(default=frozenset())
    warnings: tuple[str, ...] = ()

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> Config:
        """Read the variables.

        Args:
            environ: Environment to read; default: the process's.

        Raises:
            ConfigError: An unknown ``RINGTUNE_*`` name, or a value that cannot be understood.
        """
        environ = os.environ if environ is None else environ
        _refuse_unknown(environ)
        values: dict[str, Any] = {}
        given, horovods, sentences = set(), set(), []
        for variable in VARIABLES:
            source, text = _lookup(variable, environ)
            if text and source.startswith(TWIN_PREFIX):
                horovods.add(variable.name)
                value, said = reading(variable, text)
                sentences += [f"{source}={text!r} {said}"] if said else []
                text = value or ""
            if text:
                values[variable.field] = parse(variable, source, text)
                given.add(variable.name)
        sentences += _ignored(environ)
        knobs = {name: row.number(values.pop(name)) for name, row in KNOBS_BY_NAME.items() if name in values}
        values["knobs"] = Knobs(**knobs)
        return cls(**values, given=frozenset(given), horovods=frozenset(horovods), warnings=tuple(sentences))

    @property
    def own_address(self) -> str | None:
        """Address that links between hosts use, None to let the route decide.

        Raises:
            ConfigError: This host has none of the interfaces that are named.
        """
        if self.interface_address is not None or self.interface is None:
            return self.interface_address
        return address_of(self.interface)

    def value(self, field: str) -> object:
        """Return what a variable of a field was parsed to, also where the field is a knob's."""
        row = KNOBS_BY_NAME.get(field)
        return getattr(self, field) if row is None else row.of_variable(getattr(self.knobs, field))

    @property
    def timeline_dynamic(self) -> bool:
        """Whether the timeline waits for `start_timeline` (Horovod's value ``DYNAMIC``)."""
        return self.timeline is not None and self.timeline.name.upper() == "DYNAMIC"

    def as_dict(self) -> dict[str, object]:
        """Return the settings that were given as JSON values by variable name, in its unit, for ``run.json``.

        What would let a reader of the file into the job or into a study's database is left out.
        """
        rows = [_BY_NAME[name] for name in sorted(self.given - _PRIVATE)]
        values = {row.name: _plain(self.value(row.field), row.factor) for row in rows}
        shown = {name: "set" if name in _SECRETS else without_password(value) for name, value in values.items()}
        return {PREFIX + name: value for name, value in shown.items()}


_SECRETS = frozenset({"ALERT_WEBHOOK"})
"""Whoever knows such a URL may post there, and run folders are shared."""
_said: set[str] = set()


def not_yet_warned(sentences: Sequence[str]) -> list[str]:
    """Return the warnings that this process has not printed yet: a job may begin anew many times."""
    new = [sentence for sentence in sentences if sentence not in _said]
    _said.update(new)
    return new


def parse(variable: Variable, source: str, text: str) -> object:
    """Turn the text of a variable into its value.

    Args:
        variable: Row of the table.
        source: Name under which the text was found, for messages.
        text: The value in the environment.

    Raises:
        ConfigError: The text is no such value.
    """
    text = text.strip()
    if variable.kind == "bool":
        return _parse_bool(source, text)
    if variable.kind in ("int", "float"):
        return _parse_number(variable, source, text)
    if variable.kind == "switch":
        return "auto" if text.lower() == "auto" else SWITCH[1 if _parse_bool(source, text) else 2]
    if variable.kind == "choice":
        if text.lower() not in variable.choices:
            raise ConfigError(f"{source}={text!r}: expected one of {', '.join(variable.choices)}")
        return text.lower()
    if variable.kind == "secret":
        return _parse_secret(source, text)
    if variable.kind == "address":
        return parse_address(source, text)
    if variable.kind == "steps":
        return parse_steps(source, text)
    if variable.kind == "cores":
        return _parse_cores(source, text)
    return expanded(text) if variable.kind == "path" else text


def _parse_secret(source: str, text: str) -> str:
    if len(text) < FEWEST_SECRET_CHARACTERS:  # the text itself is not to be shown
        raise ConfigError(f"{source}: expected at least {FEWEST_SECRET_CHARACTERS} characters, it has {len(text)}")
    return text


def parse_address(source: str, text: str) -> tuple[str, int]:
    """Split ``host:port`` (an IPv6 host in brackets).

    Raises:
        ConfigError: The text is no address with a port from 1 to 65535.
    """
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(f"{source}={text!r}: expected host:port with a port from 1 to 65535")
    return host, int(port)


def parse_steps(source: str, text: str) -> tuple[tuple[int, int], ...]:
    """Return the windows of steps in ``100:120,500:520``, in order.

    Raises:
        ConfigError: One is no ``FIRST:END`` with 0 <= FIRST < END.
    """
    windows = []
    for word in text.split(","):
        first, _, end = word.strip().partition(":")
        if not (first.isascii() and first.isdigit() and end.isascii() and end.isdigit() and int(first) < int(end)):
            raise ConfigError(f"{source}={text!r}: expected FIRST:END with FIRST < END, for example 100:120,500:520")
        windows.append((int(first), int(end)))
    return tuple(sorted(windows))


def _lookup(variable: Variable, environ: Mapping[str, str]) -> tuple[str, str]:
    """Return name and text of what is set, empty when nothing is."""
    names = [PREFIX + variable.name]
    names += [PREFIX + former for former, name in FORMER_NAMES.items() if name == variable.name]
    if variable.twin is not None:
        names.append(TWIN_PREFIX + variable.twin)
    for name in names:
        if environ.get(name, "").strip():
            return name, environ[name]
    return "", ""


def _parse_bool(source: str, text: str) -> bool:
    word = text.lower()
    if word in TRUE:
        return True
    if word in FALSE:
        return False
    raise ConfigError(f"{source}={text!r}: expected 1 or 0 (also true/false, yes/no, on/off)")


def _parse_number(variable: Variable, source: str, text: str) -> int:
    """Parse an integer, or a decimal number that the factor turns into an integer."""
    unit = f" ({variable.unit})" if variable.unit else ""
    what = "a whole number" if variable.kind == "int" else "a number"
    bound = "" if variable.low is None else f" >= {variable.low:.15g}"
    if variable.high is not None:
        bound = f" from {variable.low or 0:.15g} to {variable.high:.15g}"
    try:
        number = int(text) if variable.kind == "int" else float(text)
        if not math.isfinite(number) or abs(number) * variable.factor >= 2**63:
            raise ValueError(text)
    except ValueError:
        raise ConfigError(f"{source}={text!r}: expected {what}{bound}{unit}") from None
    if number < (-math.inf if variable.low is None else variable.low) or number > (variable.high or math.inf):
        raise ConfigError(f"{source}={text!r}: expected {what}{bound}{unit}")
    return round(number * variable.factor)


def _parse_cores(source: str, text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise ConfigError(f"{source}={text!r}: expected core numbers separated by commas, for example 0,1")
    return tuple(int(part) for part in parts)


def _refuse_unknown(environ: Mapping[str, str]) -> None:
    known = [PREFIX + variable.name for variable in VARIABLES]
    for name in sorted(environ):
        if name.startswith(PREFIX) and current_name(name) not in known:
            longer = [one for one in known if one.startswith(name)]
            near = longer or difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else "the README lists the known ones"
            raise ConfigError(f"{name}={environ[name]!r}: there is no such variable; {hint}")


def _ignored(environ: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(
        f"{TWIN_PREFIX}{name}={environ[TWIN_PREFIX + name]} has no effect: {reason}"
        for name, reason in HOROVOD_IGNORED.items()
        if environ.get(TWIN_PREFIX + name, "").strip()
    )


def _plain(value: object, factor: int) -> object:
    """Return a value that JSON can hold, in its variable's unit; an address becomes ``host:port``."""
    if factor != 1 and isinstance(value, int):
        return value / factor if value % factor else value // factor
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple):
        if value and isinstance(value[0], tuple):
            return ",".join(f"{first}:{end}" for first, end in value)
        if len(value) == 2 and isinstance(value[0], str):
            return f"{value[0]}:{value[1]}"
        return list(value)
    return value
