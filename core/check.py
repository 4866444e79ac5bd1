"""``ringtune check``: what is built and available on this machine, and what is missing.

Nothing here imports torch or a GPU library: versions come from package metadata and libraries are looked for by name,
so the command takes a fraction of a second and works even where an import would crash.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
from dataclasses import asdict, dataclass
from importlib import import_module, metadata, util
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ringtune.errors import UsageError
from ringtune.gpu import wheels
from ringtune.markdown import bullets
from ringtune.standard_streams import screen_width
from ringtune.variable import PREFIX, TWIN_PREFIX
from ringtune.variables import VARIABLES

_MIB = 1 << 20
_FOR_CUDA = "for CUDA "


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        name: What was looked for.
        available: Whether it is there.
        detail: Version, path or number; when it is missing, what brings it.
        warning: A sentence where its absence costs something, else empty.
    """

    name: str
    available: bool
    detail: str
    warning: str = ""


def find_all(ranks: int | None = None) -> list[Finding]:
    """Look for everything ringtune can use on this machine.

    Args:
        ranks: How many ranks are to share the cores; None for as many as `ringtune run` starts without ``-np``.
    """
    found = [_ringtune(), _native(), Finding("python", True, platform.python_version())]
    found += [_package(name, extra) for name, extra in _PACKAGES]
    found += [*_gpu_findings(), _mpi_launcher(), _ssh(), _shared_memory(), _cores(ranks)]
    return found


_PACKAGES = (
    ("torch", "torch"),
    ("torchvision", "bench"),
    ("scikit-learn", "bench"),
    ("optuna", "tuner"),
    ("dash", "dashboard"),
    ("mpi4py", "mpi"),
)


def _ringtune() -> Finding:
    try:
        return Finding("ringtune", True, metadata.version("ringtune"))
    except metadata.PackageNotFoundError:
        return Finding("ringtune", True, f"not installed, running from {Path(__file__).parent}")


def _native() -> Finding:
    try:
        info: dict[str, str] = import_module("ringtune._native").build_info()
    except ImportError as error:
        warning = (
            "no job can run without the native runtime: install ringtune again with a C++20 compiler (pip install .)"
        )
        return Finding("native runtime", False, str(error), warning)
    return Finding("native runtime", True, ", ".join(f"{key} {value}" for key, value in info.items() if value))


def _package(name: str, extra: str) -> Finding:
    version = _version(name)
    return Finding(name, bool(version), version or f"pip install 'ringtune[{extra}]'")


def _gpu_findings() -> list[Finding]:
    """Driver, GPUs and the libraries for tensors on them; warnings only where there are GPUs."""
    driver, gpus = _gpus()
    version = driver.detail.removeprefix(_FOR_CUDA) if driver.available else ""
    nccl, nvrtc, cupy = wheels.find_nccl(), wheels.find_nvrtc(), wheels.find_cupy()
    lacks = {
        "NCCL": "ranks with a GPU of their own communicate by ringtune's ring on one host, and through the host else",
        "NVRTC": "ranks that share a GPU, or have no NCCL, communicate through the host",
        "CuPy": "torch is the only library with arrays on GPUs",
    }
    found = [driver, gpus]
    for name, library in (("NCCL", nccl), ("NVRTC", nvrtc), ("CuPy", cupy)):
        warning = ""
        if gpus.available:
            warning = wheels.unfit(library, name, version) if library else f"{lacks[name]}: {wheels.extra_for(version)}"
            if name == "NCCL" and library and library.older_than(wheels.OLDEST_NCCL):
                least = ".".join(map(str, wheels.OLDEST_NCCL))
                warning = f"this NCCL is older than {least} and is not used: {wheels.extra_for(version)}"
        detail = str(library) if library else wheels.extra_for(version)
        found.append(Finding(name, library is not None, detail, warning))
    return found


def _gpus() -> tuple[Finding, Finding]:
    """NVIDIA's driver as jobs open it, and the GPUs that it drives."""
    try:
        found = import_module("ringtune._native").cuda_devices(os.environ.get(f"{PREFIX}CUDA_DRIVER", ""))
    except (ImportError, RuntimeError) as error:
        listed = _listed_gpus()
        warning = "there are GPUs, but tensors on them cannot be reduced: see above" if listed else ""
        return Finding("CUDA driver", False, str(error), warning), Finding("GPUs", bool(listed), listed or "none")
    names, peers = found["devices"], found["peers"]
    counts = [f"{names.count(name)} x {name}" if names.count(name) > 1 else name for name in dict.fromkeys(names)]
    pairs = len(names) * (len(names) - 1) // 2
    access = f"; {len(peers)} of {pairs} pairs reach each other's memory" if pairs else ""
    return (
        Finding("CUDA driver", True, _FOR_CUDA + found["version"]),
        Finding("GPUs", bool(names), (", ".join(counts) or "none visible: see CUDA_VISIBLE_DEVICES") + access),
    )


def _listed_gpus() -> str:
    """GPUs as the kernel module lists them; works without any CUDA library."""
    folder = Path("/proc/driver/nvidia/gpus")
    try:
        files = sorted(folder.glob("*/information"))
        return ", ".join(_field(file.read_text(encoding="utf-8", errors="replace"), "Model") for file in files)
    except OSError:
        return ""


def _field(text: str, name: str) -> str:
    return next((line.partition(":")[2].strip() for line in text.splitlines() if line.startswith(name)), "unknown")


def _mpi_launcher() -> Finding:
    path = shutil.which("mpirun") or shutil.which("srun")
    return Finding("mpirun or srun", path is not None, path or "not needed: `ringtune run` starts jobs by itself")


def _ssh() -> Finding:
    path = shutil.which("ssh")
    return Finding("ssh", path is not None, path or "needed for ranks on other hosts only")


def _shared_memory() -> Finding:
    """The runtime shares anonymous memory (memfd), so the size of /dev/shm does not matter; free memory does."""
    free = _available_memory_bytes()
    try:
        os.close(os.memfd_create("ringtune-check", os.MFD_CLOEXEC))
    except OSError as error:
        warning = "ranks of one host will use TCP, which is slower"
        return Finding("shared memory", False, f"memfd_create: {error.strerror}", warning)
    return Finding("shared memory", True, f"memfd, {free // _MIB} MiB of memory available")


def _available_memory_bytes() -> int:
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
        return int(_field(text, "MemAvailable").split()[0]) << 10
    except (OSError, ValueError):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _cores(ranks: int | None) -> Finding:
    cores = len(os.sched_getaffinity(0))
    given = os.environ.get("OMP_NUM_THREADS", "")
    warning = crowding(ranks or cores, int(given) if given.isdigit() else 0, cores)
    if not warning and cores < 2:
        warning = "one core: two ranks on this machine take turns, so scaling figures mean nothing"
    return Finding("cores", True, f"{cores} usable of {os.cpu_count()}", warning)


def crowding(ranks: int, threads: int, cores: int) -> str:
    """Return a warning when the threads of all ranks outnumber the cores, and what to set; else an empty string.

    Args:
        ranks: Ranks on this machine.
        threads: Compute threads of each, that is ``OMP_NUM_THREADS``; 0 if it is not set.
        cores: Cores that they may use.
    """
    # `ringtune run` gives each rank its share of the cores where OMP_NUM_THREADS is not set.
    each = threads or max(1, cores // ranks)
    if ranks * each <= cores:
        return ""
    running = f"{ranks} ranks x {each} {'thread' if each == 1 else 'threads'} on {cores} cores wait for one another"
    if ranks > cores:
        advice = f"start at most {cores} ranks (-np {cores})"
        return f"{running}: {advice}" + (" and set OMP_NUM_THREADS=1" if each > 1 else "")
    return f"{running}: set OMP_NUM_THREADS={cores // ranks}, or unset it and `ringtune run` does"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        # A distribution's packages sometimes lie on the path without metadata.
        return "unknown version" if package.isidentifier() and util.find_spec(package) else ""


def variable_rows() -> list[tuple[str, str, str, str, str]]:
    """Return the table of variables as text: name, Horovod's name, default, unit, meaning."""
    return [
        (
            PREFIX + variable.name,
            TWIN_PREFIX + variable.twin if variable.twin else "",
            _default_text(variable.default, variable.factor),
            variable.unit or (" or ".join(variable.choices) if variable.choices else ""),
            variable.meaning,
        )
        for variable in VARIABLES
    ]


def variables_markdown() -> str:
    """Return the list of variables as it stands in ``core/README.md``, in lines of at most 120 characters."""
    return bullets(_variable_item(*row) for row in variable_rows())


def _variable_item(name: str, twin: str, default: str, unit: str, meaning: str) -> str:
    facts = [f"also `{twin}`" if twin else "", f"default {default}" if default else "", unit]
    said = "; ".join(fact for fact in facts if fact)
    return f"`{name}`{f' ({said})' if said else ''}: {meaning}"


def _default_text(default: object, factor: int) -> str:
    if default is None or default == ():
        return ""
    if isinstance(default, bool):
        return str(int(default))
    return f"{default / factor:g}" if isinstance(default, int) and factor != 1 else str(default)


def _print_table(console: Console, findings: list[Finding]) -> None:
    table = Table(title="ringtune", title_justify="left", show_header=False)
    for column, wrap in (("name", False), ("state", False), ("detail", True)):
        table.add_column(column, no_wrap=not wrap)
    for finding in findings:
        state = "[green]yes[/]" if finding.available else "[dim]no[/]"
        detail = escape(finding.detail)
        table.add_row(finding.name, state, detail if finding.available else f"[dim]{detail}[/]")
    console.print(table)
    for finding in findings:
        if finding.warning:
            console.print(f"[yellow]{finding.name}:[/] {escape(finding.warning)}", highlight=False)


_WIDE = 140
"""Columns from which on a table of the variables cuts no name."""


def _print_variables(console: Console) -> None:
    if console.width < _WIDE:
        for row in variable_rows():
            console.print(_variable_item(*row).replace("`", ""), highlight=False, markup=False)
        return
    table = Table()
    for column in ("variable", "Horovod's", "default", "unit", "meaning"):
        table.add_column(column, no_wrap=column in ("variable", "Horovod's"), overflow="fold")
    for row in variable_rows():
        table.add_row(*row)
    console.print(table)


@click.command()
@click.option(
    "-np",
    "--num-proc",
    "ranks",
    type=click.IntRange(min=1),
    help="Ranks to plan for; default: as many as there are cores.",
)
@click.option("--network", is_flag=True, help="Start the ranks and measure the links of a job instead.")
@click.option(
    "-H", "--hosts", metavar="HOST:SLOTS,...", help="With --network: where the ranks run, as in 'ringtune run'."
)
@click.option(
    "--trace",
    type=click.Path(path_type=Path, exists=True),
    help="With --network: a run folder or trace of the job, to say what to expect of it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
@click.option("--variables", is_flag=True, help="List the environment variables instead.")
@click.option("--markdown", is_flag=True, help="List the environment variables as a Markdown list.")
def check(ranks: int | None, as_json: bool, variables: bool, markdown: bool, **network: Any) -> None:
    """Show what is built and available on this machine, or what its network lets a training expect."""
    if network.pop("network"):
        from ringtune.cli import check_network

        check_network(ranks=ranks, as_json=as_json, **network)
        return
    if any(network.values()):
        raise UsageError("--hosts and --trace are for --network")
    if markdown:
        click.echo(variables_markdown())
        return
    if as_json:
        names = ("name", "horovod", "default", "unit", "meaning")
        rows = [dict(zip(names, row, strict=True)) for row in variable_rows()]
        click.echo(json.dumps(rows if variables else [asdict(finding) for finding in find_all(ranks)], indent=2))
        return
    console = Console(width=screen_width(160 if variables else 120))
    if variables:
        _print_variables(console)
    else:
        _print_table(console, find_all(ranks))
