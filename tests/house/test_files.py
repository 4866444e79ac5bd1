"""What every file of the repository keeps to: the fixed top level, sizes, nothing of the machine it was written on."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOP_LEVEL = {
    "pyproject.toml", "core", "tuner", "timeline", "dashboard", "native", "tests", "benchmarks", "README.md",
    "Makefile", "LICENSE", "CHANGELOG.md", "constraints.txt",
}  # fmt: skip
MAX_LINES = 400
MAX_BYTES = 2 << 20
TEXT = {".py", ".pyi", ".cc", ".h", ".md", ".toml", ".txt", ".css", ".js", ".sh", ".yml", ""}
# Folders of the machines this is written on, and addresses of package registries: pip's own configuration names those.
MACHINE = re.compile(
    r"(?<![\w.])/(?:work|opt|root|home|Users)/(?!me\b|user\b)\w+|\bpyenv\b|https?://[^\s)\"'`>]*(?:pypi|/simple)|\bfile://|"
    r"--(?:extra-)?index-url|--find-links"
)


def repository_files() -> list[Path]:
    """Files under version control, and new ones that are not ignored."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode()
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git repository")
    return [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]


FILES = repository_files()


def text_files() -> list[Path]:
    return [path for path in FILES if path.suffix in TEXT and path.name != "LICENSE"]


def test_top_level_is_fixed() -> None:
    found = {path.relative_to(ROOT).parts[0] for path in FILES}
    assert not {name for name in found - TOP_LEVEL if not name.startswith(".")}


def test_files_stay_small() -> None:
    long = {
        str(path.relative_to(ROOT)): count
        for path in text_files()
        if path.suffix in (".py", ".cc", ".h") and (count := path.read_text(encoding="utf-8").count("\n")) > MAX_LINES
    }
    assert not long, f"more than {MAX_LINES} lines: {long}"
    heavy = {str(path.relative_to(ROOT)): path.stat().st_size for path in FILES if path.stat().st_size > MAX_BYTES}
    assert not heavy


def test_nothing_of_a_machine() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: {match[0]}"
        for path in text_files()
        if path != Path(__file__)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if (match := MACHINE.search(line))
    ]
    assert not wrong, "\n".join(wrong)


def test_every_room_has_its_readme() -> None:
    rooms = ("core", "timeline", "tuner", "dashboard", "native", "benchmarks")
    assert [room for room in rooms if not (ROOT / room / "README.md").is_file()] == []


def test_benchmarks_lie_in_their_packages() -> None:
    """On top of `benchmarks/` is what belongs to all: a new benchmark goes into a package, its workers beside it."""
    top = {path.name for path in FILES if path.parent == ROOT / "benchmarks" and path.suffix == ".py"}
    assert top == {"__init__.py", "cli.py", "demo.py", "walk.py"}


def test_what_is_about_gpus_lies_in_its_folder() -> None:
    """On top of `native/runtime` is what every operation takes part in; a data path of GPUs goes into `gpu/`."""
    top = {path.name for path in FILES if path.parent == ROOT / "native" / "runtime"}
    assert not {name for name in top if name.startswith(("device_", "nccl_", "peer_ring", "host_staged", "kernel_"))}


def test_core_keeps_what_starts_a_session_in_a_folder() -> None:
    """On top of `core/` is what users and the rooms above import; how a job starts is `core/bootstrap/`."""
    top = {path.stem for path in FILES if path.parent == ROOT / "core" and path.suffix == ".py"}
    assert top == {
        "__init__", "algorithms", "as_horovod", "autoload", "check", "cli", "command_table", "config", "errors",
        "extensions", "foreign", "knobs", "layout", "live_timeline", "markdown", "native", "operations", "output_file",
        "output_variables", "recording", "runfolder", "runtime", "session", "standard_streams", "stats",
        "step_marks", "tickets", "variable", "variables",
    }  # fmt: skip


def test_what_runs_in_ranks_lies_apart_from_what_starts_them() -> None:
    """A function that a rank runs goes into `tests/jobs/cases/`."""
    top = {path.name for path in FILES if path.parent == ROOT / "tests" / "jobs"}
    others = {name for name in top if not name.startswith("test_")}
    assert others == {"conftest.py", "fixtures.py", "launching.py", "mpi_starters.py"}
    assert not {path.name for path in FILES if path.parent.name == "cases" and path.name.endswith("_cases.py")}
