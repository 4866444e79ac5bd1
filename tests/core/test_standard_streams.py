"""Printing where the terminal, the device or the reader is not what one hopes for."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from ringtune import check
from ringtune.standard_streams import stand_in
from ringtune.variables import VARIABLES

PRINTS = """
import sys, click, os, socket
from rich.console import Console
from rich.table import Table
from ringtune import cli
@click.command()
def odd():
    table = Table("µ"); table.add_row("3 × 4 → é 日 ü"); Console().print(table)
    click.echo("1 µs … ≤ 2"); print("µ"); sys.stderr.write("ü\\n"); print("name \\udcff")
cli.cli.add_command(odd)
cli.LazyGroup.get_command = lambda self, ctx, name: odd
cli.COMMANDS["odd"] = None
sys.exit(cli.main(["odd"]))
"""
ASCII = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}


@given(st.text())
def test_a_stand_in_is_ascii(text: str) -> None:
    assert stand_in(text).isascii()


def test_stand_ins_can_be_read() -> None:
    assert stand_in("12 µs × ü → ≤ … 日") == "12 us x u -> <= ... ?"


@pytest.mark.parametrize("environ", [{"PYTHONIOENCODING": "ascii"}, ASCII, {"PYTHONIOENCODING": "latin-1"}, {}])
def test_every_encoding_prints_by_every_way(environ: dict[str, str], tmp_path: Path) -> None:
    script = tmp_path / "odd.py"  # not -c: the command line itself would be read in that encoding
    script.write_text(PRINTS, encoding="utf-8")
    found = subprocess.run(
        [sys.executable, str(script)], env={**os.environ, **environ}, capture_output=True, timeout=60, check=False
    )
    assert found.returncode == 0, found.stderr
    assert b"name \xff" in found.stdout  # bytes of a file name pass
    text = found.stdout.replace(b"\xff", b"")
    if environ.get("PYTHONIOENCODING") == "latin-1":
        assert "1 µs ... <= 2" in text.decode("latin-1")
    elif environ:
        assert b"1 us ... <= 2" in text
        assert text.isascii()
        assert found.stderr == b"u\n"


def test_streams_that_fail_end_in_words() -> None:
    program = f"{sys.executable} -m ringtune.cli check --variables"
    for redirect, code, said in [
        (">&-", 0, ""),
        ("<&- >&- 2>&-", 0, ""),
        (">/dev/full", 1, "ringtune: the output cannot be written: No space left on device\n"),
        (">/dev/full 2>/dev/full", 1, ""),
    ]:
        found = subprocess.run(
            ["bash", "-c", f"{program} {redirect}"], capture_output=True, text=True, timeout=60, check=False
        )
        assert (found.returncode, found.stderr) == (code, said), redirect


def test_a_reader_that_has_gone_ends_it_quietly() -> None:
    read, write = os.pipe()
    os.close(read)
    found = subprocess.run(
        [sys.executable, "-m", "ringtune.cli", "check", "--variables"],
        stdout=write, stderr=subprocess.PIPE, timeout=60, check=False,
    )  # fmt: skip
    os.close(write)
    assert (found.returncode, found.stderr) == (141, b"")


@pytest.mark.parametrize("width", [80, 120, 139, 140, 160])
def test_no_variable_is_cut(width: int) -> None:
    sink = io.StringIO()
    check._print_variables(Console(file=sink, width=width))
    said = sink.getvalue()
    assert "\u2026" not in said and max(map(len, said.splitlines())) <= width
    assert all(f"RINGTUNE_{variable.name}" in said for variable in VARIABLES)
