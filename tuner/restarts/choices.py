"""What restarts may change: variables of the environment with the values worth a run, and where they mean anything."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ringtune.autoload import ARGUMENTS, BACKEND
from ringtune.errors import UsageError
from ringtune.variable import PREFIX, current_name
from ringtune.variables import VARIABLES

Setting = tuple[tuple[str, str], ...]
"""Variables with their values, by name; empty: the command as it is."""

AS_IT_IS: Setting = ()


@dataclass(frozen=True)
class Place:
    """Where the job runs and what the user allows, as far as it decides what is tried.

    Attributes:
        hosts: Number of hosts; ranks of one host with transport TCP count as one host each.
        local: Ranks of a host.
        nccl: Whether NCCL may carry tensors: this job's, or those that its scripts reduce by themselves (DDP).
        lossy: Whether gradients may travel in fewer bits.
        backend: Of torch.distributed, as it names it; ``ringtune`` also for a job without it.
        made: What the job's first model and data loader are made with, as the variables that set it; where one is
            missing, there is none of its kind.
        threads: Compute threads of a rank.
    """

    hosts: int = 1
    local: int = 1
    nccl: bool = False
    lossy: bool = False
    backend: str = BACKEND
    made: Mapping[str, str] = field(default_factory=dict)
    threads: int = 1

    @property
    def carried(self) -> bool:
        """Whether ringtune carries the job's tensors."""
        return BACKEND in self.backend


@dataclass(frozen=True)
class Choice:
    """A variable that is tried value by value.

    Attributes:
        variable: Its full name.
        values: What it may be beside what it is by default, most promising first.
        fits: Whether it means anything in a place.
    """

    variable: str
    values: tuple[str, ...]
    fits: Callable[[Place], bool] = lambda place: True


def _network(place: Place) -> bool:
    return place.hosts > 1


def _nccl(place: Place) -> bool:
    return place.nccl


def _ring(place: Place) -> bool:
    return place.local > 1 and not _network(place)


_TABLES = Path(__file__).parent / "tables"
TABLES = tuple(str(_TABLES / f"{name}.json") for name in ("later", "earlier"))
"""The built-in algorithm table with its switch points between hosts at four times the bytes, and at a quarter."""

CHOICES = (
    Choice("NCCL_ALGO", ("Tree", "Ring"), _nccl),
    Choice("NCCL_PROTO", ("Simple", "LL"), _nccl),  # never LL128: where it is not the default it may corrupt data
    Choice("NCCL_MIN_NCHANNELS", ("8", "16"), _nccl),
    # Two that never fit the same place: ringtune's own ring is of several GPUs, or ranks that share one, of one host.
    Choice("RINGTUNE_GPU_DATA_PATH", ("ring", "staged"), lambda place: _nccl(place) and _ring(place)),
    Choice("RINGTUNE_GPU_DATA_PATH", ("staged",), lambda place: _nccl(place) and not _ring(place)),
    Choice("RINGTUNE_GPU_PART_BYTES", ("4194304", "33554432"), _nccl),
    Choice("NCCL_BUFFSIZE", ("8388608", "2097152"), _nccl),
    Choice("NCCL_NSOCKS_PERTHREAD", ("4",), lambda place: _nccl(place) and _network(place)),
    Choice("NCCL_SOCKET_NTHREADS", ("4",), lambda place: _nccl(place) and _network(place)),
    Choice("RINGTUNE_SOCKETS_PER_PEER", ("4", "2", "8"), _network),
    Choice("RINGTUNE_ALGORITHM_TABLE", TABLES, _network),
    Choice("RINGTUNE_COMPRESSION", ("bf16", "fp16"), lambda place: _network(place) and place.lossy),
    Choice("RINGTUNE_BUCKET_CAP_MB", ("10", "50", "100", "5")),
    Choice("RINGTUNE_DDP_FIRST_BUCKET_MB", ("0.25", "4")),
    Choice("RINGTUNE_DDP_BUCKET_VIEW", ("1",)),
    Choice("RINGTUNE_FSDP_RESHARD", ("0",)),
    Choice("RINGTUNE_FSDP_PREFETCH", ("1", "2")),
    Choice("RINGTUNE_LOADER_WORKERS", ("2", "4", "0")),
    Choice("RINGTUNE_HIERARCHICAL_ALLREDUCE", ("0",), lambda place: _network(place) and place.local > 1),
    Choice("RINGTUNE_OVERLAP", ("always", "never"), lambda place: place.local > 1),
)
"""Choices that are tried unasked, in this order."""


def may_carry(build: Mapping[str, str], gpus: bool) -> bool:
    """Return whether NCCL may carry tensors of a job.

    Args:
        build: What the native runtime says of itself.
        gpus: Whether this host has a GPU of NVIDIA's.
    """
    return gpus or bool(build.get("nccl", ""))


def choices_for(place: Place, given: Collection[str], own: Sequence[Choice] = ()) -> list[Choice]:
    """Return the choices to try: those that the user named, then those that have an effect in this place.

    Args:
        place: Where the job runs.
        given: Names of variables that the user has set: they are left alone.
        own: What the user wants tried.
    """
    left_alone = {*given, *(choice.variable for choice in own)}
    usual = [
        _without(one, place.made.get(one.variable))
        for one in (*CHOICES, *_of_backends(place))
        if one.fits(place) and one.variable not in left_alone and _has_effect(one.variable, place)
    ]
    return [*own, *(one for one in usual if one.values)]


def _has_effect(variable: str, place: Place) -> bool:
    """Whether the job has what a variable is about: such a part of torch's, or ringtune's runtime."""
    if variable in ARGUMENTS:
        return variable in place.made
    return place.carried or not variable.startswith(PREFIX)


def _of_backends(place: Place) -> list[Choice]:
    """Return the choices of a job of torch's on the CPU: compute threads, and Gloo's devices.

    One compute thread, and half of those that a rank has, where that is fewer. Twice the same device: Gloo then has
    twice the threads and connections.
    """
    if place.nccl or not place.made:
        return []
    numbers = dict.fromkeys(number for number in (1, place.threads // 2) if 0 < number < place.threads)
    devices = Choice("GLOO_SOCKET_IFNAME", ("lo,lo",), lambda place: "gloo" in place.backend and not _network(place))
    return [Choice("OMP_NUM_THREADS", tuple(map(str, numbers))), devices]


def _without(choice: Choice, value: str | None) -> Choice:
    """Return a choice without the value that the job has already."""
    return replace(choice, values=tuple(one for one in choice.values if one != value))


def parse_choice(text: str) -> Choice:
    """Return the choice in ``NAME=VALUE,VALUE,...``.

    Raises:
        UsageError: It is none, or its name is no variable's.
    """
    name, _, values = text.partition("=")
    name = current_name(name.strip())
    words = tuple(dict.fromkeys(word.strip() for word in values.split(",") if word.strip()))
    if not name.isidentifier() or not words:
        raise UsageError(f"--try {text}: expected NAME=VALUE,VALUE,... for example OMP_NUM_THREADS=1,2")
    # Names of variables are in capitals, and ringtune's are all known; a script may read others by itself.
    if name != name.upper() or (name.startswith(PREFIX) and name not in _OWN):
        near = nearest(name)
        meant = f"did you mean {near}?" if near else "a variable that the script reads has its name in capitals"
        raise UsageError(f"--try {text}: there is no variable {name}; {meant}")
    return Choice(name, words)


_OWN = frozenset(PREFIX + variable.name for variable in VARIABLES)


def nearest(name: str) -> str:
    """Return the variable that is most likely meant, first of those that are tried by themselves; empty for none."""
    word = name.upper().removeprefix(PREFIX)
    names = list(dict.fromkeys([*(choice.variable for choice in CHOICES), *sorted(_OWN)]))
    short = {one.removeprefix(PREFIX): one for one in names}
    holding = sorted((key for key in short if word in key), key=lambda key: not key.startswith(word))
    return next((short[key] for key in holding or difflib.get_close_matches(word, short, n=1)), "")


def changed(setting: Setting, variable: str, value: str) -> Setting:
    """Return a setting with one variable changed."""
    return tuple(sorted({**dict(setting), variable: value}.items()))


def neighbours(setting: Setting, choices: Sequence[Choice]) -> list[Setting]:
    """Return the settings that differ from one in a single variable, in the order of the choices."""
    here = dict(setting)
    return [
        changed(setting, choice.variable, value)
        for choice in choices
        for value in choice.values
        if here.get(choice.variable) != value
    ]
