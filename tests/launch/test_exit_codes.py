"""How a rank ends its script: the others and the launcher tell its code, in whatever way it gives one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import needs

LEAVING = """
import atexit, sys, threading
from sys import exit as held
from ringtune.bootstrap import departure
departure.watch_exits()
departure.watch_exits()
atexit.register(lambda: print(*departure.departure(at_exit=True), departure.exit_code()))
class Own(SystemExit):
    pass
def fail():
    raise ValueError("bad batch")
def leave(code):
    try:
        sys.exit(code)
    finally:
        print(end="")
"""
END = "has come to the end of its script False None"
THREAD_FAILED = (
    "has come to the end of its script after its thread 'loader' ended with ValueError: bad batch False None"
)


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        ("sys.exit(7)", 7, "exited with code 7 True 7"),
        ("leave(3)", 3, "exited with code 3 True 3"),
        ("sys.exit(-1)", 255, "exited with code 255 True 255"),
        ("sys.exit('no\\n data')", 1, "exited with code 1: no data True 1"),
        ("import argparse; argparse.ArgumentParser().parse_args(['-x'])", 2, "exited with code 2 True 2"),
        ("raise SystemExit(7)", 7, "exited with code 7 True 7"),
        ("raise SystemExit('no data')", 1, "exited with code 1: no data True 1"),
        ("raise Own(7)", 7, "exited with code 7 True 7"),
        ("held(7)", 7, "exited with code 7 True 7"),
        ("quit(7)", 7, "exited with code 7 True 7"),
        ("sys.exit(True)", 1, "exited with code 1 True 1"),
        ("sys.exit()", 0, END),
        ("raise SystemExit", 0, END),
        ("sys.exit(0)", 0, END),
        ("pass", 0, END),
        ("try: leave(7)\nexcept SystemExit as error: assert error.code == 7", 0, END),
        ("try: sys.exit(7)\nexcept SystemExit: sys.exit(4)", 4, "exited with code 4 True 4"),
        ("try: held(7)\nexcept SystemExit as error: kept = error", 0, END),
        ("try: leave(7)\nexcept SystemExit: held()", 0, END),
        ("import _thread, time; _thread.start_new_thread(sys.exit, (7,)); time.sleep(0.2)", 0, END),
        ("one = threading.Thread(target=fail, name='loader'); one.start(); one.join()", 0, THREAD_FAILED),
        ("one = threading.Thread(target=held, args=(7,)); one.start(); one.join()", 0, END),
    ],
)
def test_how_a_script_ends_is_known_while_it_leaves(body: str, code: int, said: str) -> None:
    command = [sys.executable, "-c", LEAVING + body]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code
    assert done.stdout.splitlines()[-1:] == [said], done.stderr


JOB = """
import torch
import ringtune.torch as hvd
hvd.init()
hvd.allreduce(torch.ones(3), name="first")
if hvd.rank() == 1:
    raise SystemExit(7)
try:
    hvd.allreduce(torch.ones(3), name="second")
except hvd.HorovodInternalError as error:
    print("told:", error)
    raise
"""


def test_others_and_the_launcher_tell_the_code_of_a_rank() -> None:
    needs("torch")
    command = [sys.executable, "-m", "ringtune.cli", "run", "-np", "2", "--no-run-dir", sys.executable, "-c", JOB]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 7, done.stdout + done.stderr
    (told,) = [line for line in done.stdout.splitlines() if "told:" in line]
    assert "rank 1 on host " in told and "exited with code 7" in told
    (said,) = [line for line in done.stderr.splitlines() if "the job failed" in line]
    assert "rank 1 on " in said and "exited with code 7" in said
