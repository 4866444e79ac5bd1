"""The limit of open files: raised where that is allowed, else named with the need."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from resource import RLIMIT_NOFILE, setrlimit

import pytest

from ringtune import native
from ringtune.bootstrap import open_files
from tests.conftest import needs
from tests.ports import free_port

needs("ringtune._native")

MEET = """
import resource
import numpy as np
import ringtune.numpy as hvd
hvd.init()
for step in range(3):
    assert hvd.allreduce(np.ones(1000), op=hvd.Sum, name="a")[0] == 2
print("met", resource.getrlimit(resource.RLIMIT_NOFILE)[0])
hvd.shutdown()
"""


def two_ranks(soft: int, hard: int) -> list[tuple[int, str, str]]:
    """Start two ranks by hand under a limit of open files; return code and output of each."""
    store = f"127.0.0.1:{free_port()}"
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", MEET],
            env={
                "RINGTUNE_RANK": str(rank), "RINGTUNE_SIZE": "2", "RINGTUNE_STORE": store, "RINGTUNE_HOSTNAME": "here",
                "RINGTUNE_START_TIMEOUT": "20", "RINGTUNE_TRANSPORT": "tcp", "PATH": "/usr/bin:/bin",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=partial(setrlimit, RLIMIT_NOFILE, (soft, hard)),
        )
        for rank in range(2)
    ]  # fmt: skip
    said = [rank.communicate(timeout=100) for rank in ranks]
    return [(rank.returncode, out, err) for rank, (out, err) in zip(ranks, said, strict=True)]


def test_a_soft_limit_is_raised_as_far_as_the_ranks_need() -> None:
    for code, out, err in two_ranks(10, 500):
        word, limit = out.split()
        assert code == 0 and word == "met" and 20 <= int(limit) < 60, err


@pytest.mark.parametrize("limit", [10, 16, 20])
def test_a_hard_limit_is_named_with_the_need(limit: int) -> None:
    found = two_ranks(limit, limit)
    said = f"and the limit of open files (RLIMIT_NOFILE) is {limit}; raise it: ulimit -n 1024"
    [last] = [err.splitlines()[-1] for _, _, err in found if "rank 0 of 2 needs about" in err]
    assert all(code == 1 for code, _, _ in found) and last.endswith(said), found


def test_errors_of_other_causes_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_files, "_said", "rank 0 of 2 needs about 32 descriptors")
    error = str(native.translate(native.error_class()("cannot create a socket: Too many open files")))
    assert error == "cannot create a socket: Too many open files: rank 0 of 2 needs about 32 descriptors"
    assert str(native.translate(native.error_class()("cannot create a socket: Permission denied"))).endswith("denied")
    assert open_files.explained(error) == error
