"""What the launcher says of the exception that ended a rank, also of one before ``init()``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ringtune.launch.streams import last_error
from tests.launch.conftest import HANG_S, Jobs

CASES = {
    "plain": ("raise ValueError('bad batch')", "ValueError: bad batch"),
    "without a message": ("raise KeyboardError", "NameError: name 'KeyboardError' is not defined"),
    "no text": ("assert 1 == 2", "AssertionError"),
    "import": ("import no_such_module_9", "ModuleNotFoundError: No module named 'no_such_module_9'"),
    "not called an error": ("class Odd(Exception): pass\nraise Odd('one')", "Odd: one"),
    "caused": (
        "try: int('a')\nexcept ValueError as error: raise KeyError('second') from error",
        "KeyError: 'second'",
    ),
    "several lines": ("raise RuntimeError('first\\nError: second\\nthird')", "RuntimeError: first"),
    "long trace": (
        "def deeper(n):\n  if n: return other(n - 1)\n  raise OSError('deep')\n"
        "def other(n): return deeper(n)\n"
        "deeper(60)",
        "OSError: deep",
    ),
    "syntax": ("x = = 1", "SyntaxError: invalid syntax"),
    "in a destructor afterwards": (
        "class A:\n  def __del__(self): raise TypeError('in vain')\nkept = A()\nraise ValueError('bad batch')",
        "ValueError: bad batch",
    ),
    "in a thread before": (
        "import threading\ndef f(): raise TypeError('thread')\nt = threading.Thread(target=f)\nt.start()\nt.join()\n"
        "raise ValueError('bad batch')",
        "ValueError: bad batch",
    ),
    "in a thread alone": (
        "import sys, threading\ndef f(): raise TypeError('thread')\nt = threading.Thread(target=f)\n"
        "t.start()\nt.join()\nsys.exit(1)",
        "",
    ),
    "words": ("import sys; sys.exit('no data at /data')", ""),
    "silence": ("import os; os._exit(1)", ""),
}


@pytest.mark.parametrize("name", list(CASES))
def test_the_exception_that_ended_a_program_is_found_in_what_it_wrote(name: str, tmp_path: Path) -> None:
    text, expected = CASES[name]
    script = tmp_path / "script.py"
    script.write_text(text)
    ended = subprocess.run([sys.executable, "-S", script], capture_output=True, text=True, timeout=HANG_S, check=False)
    assert ended.returncode == 1
    lines = [line for line in ended.stderr[-4096:].splitlines() if line.strip()][-20:]
    assert last_error(lines) == expected, ended.stderr


def test_a_long_message_is_cut() -> None:
    found = last_error(["Traceback (most recent call last):", "  File", "ValueError: " + "word " * 200])
    assert found.startswith("ValueError: word word") and found.endswith(" ...") and len(found) <= 400


def test_a_rank_that_raises_before_init_is_named_with_its_exception(jobs: Jobs) -> None:
    script = jobs.script("import time\nif rank == 1: raise ValueError('no shard for me')\ntime.sleep(600)")
    result = jobs.run("-np", "2", "--run-dir", "run", sys.executable, script)
    assert result.returncode == 1
    words = [line for line in result.stderr.splitlines() if line.startswith("ringtune: rank 1 on localhost exited")]
    assert len(words) == 1 and words[0].endswith(" after the start: ValueError: no shard for me, ending the others"), (
        result.stderr
    )
    failed = json.loads((jobs.folder / "run" / "run.json").read_text())["failure"]
    assert (failed["rank"], failed["error"]) == (1, "ValueError: no shard for me")


def test_the_ranks_in_init_are_told_the_exception_too(jobs: Jobs) -> None:
    text = "if rank == 1: import no_such_module_9\nimport ringtune.numpy as hvd\nhvd.init()"
    result = jobs.run_script(2, text)
    told = [line for line in result.stderr.splitlines() if line.startswith("[0] ") and "initialization failed" in line]
    assert told and "rank 1 on localhost exited with code 1" in told[-1], result.stderr
    assert told[-1].endswith("after the start: ModuleNotFoundError: No module named 'no_such_module_9'"), told


def test_a_code_that_is_no_exceptions_says_none(jobs: Jobs) -> None:
    text = "try: int('a')\nexcept ValueError: import traceback; traceback.print_exc()\nsys.exit(7 * rank)"
    result = jobs.run_script(2, text)
    assert "rank 1 on localhost exited with code 7, " in result.stderr
    assert "after the start: " not in result.stderr, result.stderr
