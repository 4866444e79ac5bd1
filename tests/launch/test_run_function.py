"""`ringtune.run`: what a rank raises, returns and exits with comes back to the caller, from wherever that calls."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ringtune
from ringtune.errors import InvalidArgument, RankFailed
from ringtune.launch.call import Call, CallFailure
from ringtune.launch.run_function import _options, _results
from ringtune.launch.supervisor import Failure, Outcome
from tests.conftest import needs

needs("ringtune._native")

# Read from standard input, as a notebook's cells are. Ranks of plain functions start in a tenth of a second.
SCRIPT = """
import asyncio, json, os, signal, sys, threading, time
import ringtune

found = {}
def rank():
    return int(os.environ["RINGTUNE_RANK"])
def call(what, f, *args, **options):
    try:
        found[what] = repr(ringtune.run(f, args, num_proc=2, **options))
    except BaseException as error:
        cause = error.__cause__
        found[what] = [type(error).__name__, str(error), type(cause).__name__, str(cause),
                       getattr(error, "rank", None), getattr(error, "exit_code", None), isinstance(cause, Own)]

class Own(Exception):
    def __init__(self, one, two): super().__init__(f"{one} and {two}"); self.one = one
class Awkward(Exception):
    def __init__(self, one, two): super().__init__(f"{one} and {two}")
    def __reduce__(self): raise TypeError("not me")
def fails(kind):
    if rank() == 1:
        helper(kind)
def helper(kind):
    raise kind
def consequence():
    import ringtune.numpy as hvd
    hvd.init()
    if rank() == 1:
        hvd.shutdown()
        time.sleep(0.5)  # so that the other rank is told first
        raise ValueError("own fault")
    try:
        hvd.barrier()
    except hvd.HorovodInternalError as error:
        raise TypeError("training failed") from error
def killed():
    if rank() == 1: os.kill(os.getpid(), signal.SIGKILL)

k = 5
call("results", lambda a: (rank(), a + k), 1)
call("raised", fails, ValueError("wrong data in shard 1"))
class Mine(Own):
    def __reduce__(self): return (type(self), (self.one, 2))
call("own class", lambda: fails(Mine(1, 2)))
call("cannot be rebuilt", lambda: fails(Own(1, 2)))
call("cannot be pickled", lambda: fails(Awkward(1, 2)))
call("follows", consequence)
call("interface", lambda: os.environ["RINGTUNE_INTERFACE"], network_interfaces="nope9,lo")
call("generator", lambda: (i for i in range(3)))
for code in (4, 0, "no data"):
    call(f"exit {code}", lambda: sys.exit(code) if rank() else 1)
call("_exit 3", lambda: os._exit(3) if rank() else 1)
call("_exit 0", lambda: os._exit(0) if rank() else 1)
call("killed", killed)
call("lock", print, threading.Lock())
thread = threading.Thread(target=lambda: call("thread", fails, ValueError("in a thread")))
thread.start(); thread.join()
async def main(): call("loop", fails, ValueError("in a loop"))
asyncio.run(main())
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-"], input=SCRIPT, capture_output=True, text=True, timeout=240,
        cwd=tmp_path_factory.mktemp("run"), env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


@pytest.mark.slow
def test_results_by_rank(found: dict[str, Any]) -> None:
    assert found["results"] == "[(0, 6), (1, 6)]"


@pytest.mark.parametrize(
    ("what", "text"), [("raised", "wrong data in shard 1"), ("thread", "in a thread"), ("loop", "in a loop")]
)
def test_an_exception_comes_with_rank_host_and_traceback(what: str, text: str, found: dict[str, Any]) -> None:
    kind, message, cause, said, rank, code, _ = found[what]
    assert (kind, cause, said, rank, code) == ("RankFailed", "ValueError", text, 1, 1)
    first, _, trace = message.partition("\n")
    assert first == f"ringtune.run: rank 1 on localhost raised ValueError: {text}"
    assert "On rank 1 on localhost: Traceback" in trace and "in helper" in trace and "call.py" not in trace


def test_an_exception_of_the_scripts_own_class_is_one_here_too(found: dict[str, Any]) -> None:
    assert found["own class"][2:] == ["Mine", "1 and 2", 1, 1, True]


TOO_LARGE = """
import os, ringtune
from ringtune.errors import RankFailed
try:
    ringtune.run(lambda: bytes(257 << 20) if os.environ["RINGTUNE_RANK"] == "1" else b"", num_proc=2)
except RankFailed as error:
    print(error)
"""


@pytest.mark.long
def test_a_result_beyond_the_stores_limit_is_told_in_words(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-"], input=TOO_LARGE, capture_output=True, text=True, timeout=240, cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "rank 1 on localhost returned a bytes that cannot be sent: the value of store key" in done.stdout, done
    assert "the limit is 268500992 with its key" in done.stdout


@pytest.mark.parametrize(("what", "kind"), [("cannot be rebuilt", "Own"), ("cannot be pickled", "Awkward")])
def test_an_exception_that_cannot_be_sent_is_told_in_words(what: str, kind: str, found: dict[str, Any]) -> None:
    name, message, cause, *_ = found[what]
    assert (name, cause) == ("RankFailed", "NoneType")
    assert f"rank 1 on localhost raised {kind}: 1 and 2" in message and "in helper" in message


def test_the_ranks_are_given_the_network_interfaces(found: dict[str, Any]) -> None:
    assert found["interface"] == "['nope9,lo', 'nope9,lo']"


def test_the_cause_is_told_and_not_what_follows_from_it(found: dict[str, Any]) -> None:
    assert found["follows"][2:5] == ["ValueError", "own fault", 1]


@pytest.mark.parametrize(
    ("what", "words", "code"),
    [
        ("generator", "returned a generator that cannot be sent: cannot pickle 'generator' object; return plain", 1),
        ("exit 4", "rank 1 on localhost called sys.exit(4)", 4),
        ("exit 0", "rank 1 on localhost called sys.exit(0)", 0),
        ("exit no data", "rank 1 on localhost called sys.exit('no data')", 1),
        ("_exit 3", "rank 1 on localhost exited with code 3", 3),
        ("_exit 0", "ranks [1] ended without a result", 0),
        ("killed", "rank 1 on localhost was killed by SIGKILL", 137),
    ],
)
def test_a_rank_without_a_result_is_named(what: str, words: str, code: int, found: dict[str, Any]) -> None:
    kind, message, *_, exit_code, _ = found[what]
    assert kind == "RankFailed" and words in message and exit_code == code
    assert "Traceback" not in message


def test_arguments_that_cannot_be_sent_are_refused(found: dict[str, Any]) -> None:
    assert found["lock"][:2] == [
        "InvalidArgument",
        "run(): the function or its arguments cannot be pickled: cannot pickle '_thread.lock' object",
    ]


def call_that_ended(results: dict[int, bytes], failures: list[CallFailure], outcome: Outcome) -> Call:
    return Call(b"", results, failures, outcome, size=2)


def test_ctrl_c_is_ctrl_c() -> None:
    outcome = Outcome(130, Failure(0, "a", 130, 1.0), 2)
    with pytest.raises(KeyboardInterrupt):
        _results(call_that_ended({}, [CallFailure(0, "a", "raised KeyboardInterrupt")], outcome), None)


def test_an_elastic_job_needs_its_least_number_whatever_failed_meanwhile() -> None:
    call = call_that_ended({0: pickle.dumps("x")}, [CallFailure(1, "a", "raised ValueError")], Outcome(0, None, 0))
    assert _results(call, 1) == ["x"]
    with pytest.raises(RankFailed, match="rank 1 on a raised ValueError"):
        _results(call, None)


def test_a_result_that_does_not_come_back_is_told() -> None:
    call = call_that_ended({0: b"no pickle", 1: b"no pickle"}, [], Outcome(0, None, 0))
    with pytest.raises(RuntimeError, match="the result of rank 0 cannot be unpickled here"):
        _results(call, None)


def test_the_error_can_be_pickled_itself() -> None:
    error = RankFailed("text")
    error.rank, error.traceback = 3, "trace"
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.rank, again.traceback) == ("text", 3, "trace")


def test_what_excludes_each_other_is_refused_first() -> None:
    with pytest.raises(InvalidArgument, match="not both"):
        ringtune.run(print, hosts="a:1", hostfile=str(Path("b")))


@pytest.mark.parametrize("given", [{"network_interface": "ib0,eth1"}, {"network_interfaces": ["ib0", "eth1"]}])
def test_the_network_is_that_of_the_flag(given: dict[str, Any]) -> None:
    assert _options({"num_proc": 1, **given}).settings == {"RINGTUNE_INTERFACE": "ib0,eth1"}
