"""What another user of the machine tries against a job, and what it gets: nothing.

As root the stranger is a process of the user `nobody`; else one of this user that does not know the job's secret.
"""

from __future__ import annotations

import contextlib
import encodings.idna  # noqa: F401 - the stranger may not be able to read where Python lies
import os
import re
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ringtune import native
from ringtune.elastic import keys
from tests.launch.conftest import HANG_S, Jobs
from tests.ports import free_port

NOBODY = 65534
TIMEOUT_NS = 20_000_000_000
OF_THE_STRANGER = "the stranger's own secret"

RANK = """
import sys
import numpy as np
import ringtune.numpy as hvd
hvd.init()
print("sum", hvd.allreduce(np.ones(1), op=hvd.Sum))
hvd.shutdown()
"""


def as_stranger(do: Callable[[], Any]) -> str:
    """Run a function in a process of another user; return what it returned, or the error that it raised, as text."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            said = str(do())
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(write, said.encode()[:4000])
        os._exit(0)
    os.close(write)
    with open(read, "rb") as answer:
        said = answer.read().decode()
    os.waitpid(child, 0)
    return said


def rank(number: int, port: int) -> subprocess.Popen[str]:
    environ = {"RINGTUNE_RANK": str(number), "RINGTUNE_SIZE": "2", "RINGTUNE_STORE": f"127.0.0.1:{port}"}
    return subprocess.Popen(
        [sys.executable, "-c", RANK],
        env={**os.environ, **environ},
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("number", [0, 1])
def test_who_finds_a_stranger_at_the_store_s_address_refuses(number: int) -> None:
    """The exploit: a foreign process is there before rank 0, becomes it, and its `broadcast_object` is unpickled."""
    foreign = native.load().StoreServer("127.0.0.1", free_port(), OF_THE_STRANGER)
    begin = time.monotonic()
    with rank(number, foreign.port) as victim:
        stdout, stderr = victim.communicate(timeout=HANG_S)
    foreign.close()
    assert victim.returncode == 1
    assert "does not know the secret of this job" in stderr
    assert f"127.0.0.1:{foreign.port}" in stderr
    assert "RINGTUNE_SECRET" in stderr
    assert not stdout
    assert time.monotonic() - begin < 60, "it does not wait for its start timeout"


def test_ranks_without_a_launcher_meet_by_the_key_of_their_user() -> None:
    port = free_port()
    with rank(0, port) as first, rank(1, port) as second:
        for one in (first, second):
            stdout, stderr = one.communicate(timeout=HANG_S)
            assert (one.returncode, stdout) == (0, "sum [2.]\n"), stderr


def raw_frames(port: int) -> str:
    """Speaks to the store as an older ringtune did, and with a proof made up."""
    answers = []
    for opening in (b"RTS1", b"RTS2" + bytes(64)):
        with socket.create_connection(("127.0.0.1", port), timeout=20) as link:
            link.sendall(opening + b"\x0e\0\0\0\x01\x01\0\0\0\x01\0\0\0k\0\0\0\0")
            answer = b""
            with contextlib.suppress(ConnectionResetError):  # it was closed before all had been read
                while piece := link.recv(4096):
                    answer += piece
        answers.append(len(answer))
    return str(answers)


@pytest.mark.slow
def test_a_stranger_can_do_nothing_to_an_elastic_job(jobs: Jobs) -> None:
    """The exploit: `run.json` told job and store, and a foreigner wrote "leave" there or became a rank."""
    script = jobs.folder / "train.py"
    script.write_text(
        "import os, sys, time\n"
        "import numpy as np\n"
        "import ringtune.numpy as hvd\n"
        "hvd.init()\n"
        "print('here', os.environ['RINGTUNE_STORE'], os.environ['RINGTUNE_JOB'], os.getpid(), flush=True)\n"
        "while not os.path.exists('go'): time.sleep(0.05)\n"
        "print('sum', hvd.allreduce(np.ones(1), op=hvd.Sum), flush=True)\n"
        "hvd.shutdown()\n"
    )
    before = os.umask(0)
    try:
        process = jobs.start("-np", "2", "--min-np", "2", "--run-dir", "runs/it", sys.executable, str(script))
    finally:
        os.umask(before)
    assert process.stdout is not None and process.stderr is not None
    said: list[str] = []
    found = None
    while found is None:
        line = process.stdout.readline().decode()
        assert line, process.stderr.read().decode()
        said.append(line)
        found = re.search(r"here 127.0.0.1:(\d+) (\S+) (\d+)", line)
    port, job, pid = int(found[1]), found[2], int(found[3])
    reader = threading.Thread(target=lambda: said.extend(line.decode() for line in process.stdout))
    reader.start()

    def write(secret: str) -> None:
        store = native.load().StoreClient("127.0.0.1", port, secret, TIMEOUT_NS)
        for worker in (0, 1):
            store.set(keys.assignment(job, worker, 2), b'{"leave": "the stranger says so"}')

    assert "does not know the secret" in as_stranger(lambda: write(OF_THE_STRANGER))
    lengths = as_stranger(lambda: raw_frames(port))
    assert lengths == "[0, 0]", "no answer at all"
    if os.getuid() == 0:
        for path in (jobs.folder / "runs" / "it" / "run.json", Path(f"/proc/{pid}/environ")):
            assert "PermissionError" in as_stranger(path.read_bytes), path
    run = jobs.folder / "runs" / "it"
    (jobs.folder / "go").touch()
    assert process.wait(HANG_S) == 0
    reader.join()
    assert sum("sum [2.]" in line for line in said) == 2, said
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (run, *run.rglob("*"))}
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}
    assert {mode for path, mode in modes.items() if path.is_file()} == {0o600}, modes
    text = b"".join(path.read_bytes() for path in run.rglob("*") if path.is_file() and path.suffix != ".log")
    assert str(port).encode() not in text and job.encode() not in text
