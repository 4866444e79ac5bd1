"""The guides tell the truth: every command block of theirs runs, in a scratch folder, with the scripts they show.

Most pages run in `make test-long`. Blocks of one page run in order. A page starts with the files of the quick start
and its own. Marks behind the fence: ``no-run`` (needs several hosts, SLURM or minutes; the house's tests still parse
its command lines), ``mpi`` (needs ``mpirun``), ``until-ctrl-c`` (a server: it must print an address and end at
Ctrl-C), ``fails`` (shows an error).
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import pages
from tests.conftest import needs

needs("torch")

HANG_S = 150.0  # of one block; a bound on hangs, not a measure
MARKS = {"no-run", "mpi", "until-ctrl-c", "fails"}
OFTEN = ("quickstart",)
"""Guides that run in each CI, which parses the commands of all (tests/house)."""


def write_files(page: pages.Page, folder: Path) -> None:
    for block in page.blocks():
        if block.title:
            (folder / block.title).write_text(block.text, encoding="utf-8")


def environment(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RINGTUNE_", "HOROVOD_"))}
    return {
        **kept,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
        "XDG_CACHE_HOME": str(folder / "cache"),
        # Open MPI refuses root and more ranks than cores unless it is told.
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
    }


def run_block(block: pages.Block, folder: Path) -> tuple[int, str]:
    """Run a block as one script; a server is interrupted once it has said where it is."""
    process = subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", block.text], cwd=folder, env=environment(folder), text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    said = ""
    try:
        if "until-ctrl-c" in block.marks:
            assert process.stdout is not None
            for line in process.stdout:
                said += line
                if re.search(r"http://127\.0\.0\.1:\d+", line):
                    os.killpg(process.pid, signal.SIGINT)
                    break
        rest, _ = process.communicate(timeout=HANG_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return process.returncode, said + rest


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in OFTEN else pytest.mark.long) for name in pages.GUIDES]
)
def test_commands_of_a_guide_run(name: str, tmp_path: Path, require_tool: Callable[[str], str]) -> None:
    page = pages.read(pages.GUIDE / f"{name}.md")
    for one in (pages.read(pages.GUIDE / "quickstart.md"), page):
        write_files(one, tmp_path)
    for block in page.blocks():
        if block.language != "sh" or "no-run" in block.marks:
            continue
        if "mpi" in block.marks:
            require_tool("mpi")
        code, said = run_block(block, tmp_path)
        expected = (0, 130) if "until-ctrl-c" in block.marks else (1, 2) if "fails" in block.marks else (0,)
        assert code in expected, f"{page}: exit code {code} of\n{block.text}\n{said}"
        if "until-ctrl-c" in block.marks:
            assert "http://127.0.0.1:" in said, said


def test_every_guide_runs_here_and_its_marks_are_known() -> None:
    assert {path.stem for path in pages.GUIDE.glob("*.md")} == {*pages.GUIDES, *pages.FRAMEWORK_GUIDES, "README"}
    for name in pages.GUIDES:
        for block in pages.read(pages.GUIDE / f"{name}.md").blocks():
            if block.language == "sh":
                assert block.marks <= MARKS, f"{name}: {block.info}"
