"""Two processes that were given the number of the same rank."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from ringtune import native

SECRET = "0123456789abcdef"


def test_the_second_process_of_a_rank_is_refused_and_names_both() -> None:
    server = native.load().StoreServer("127.0.0.1", 0, SECRET)
    own = {
        "RINGTUNE_RANK": "1",
        "RINGTUNE_SIZE": "3",
        "RINGTUNE_STORE": f"127.0.0.1:{server.port}",
        "RINGTUNE_SECRET": SECRET,
        "RINGTUNE_LAUNCHER": "1",
        "RINGTUNE_START_TIMEOUT": "200",
    }
    command = [sys.executable, "-c", "import ringtune.numpy as hvd; hvd.init()"]
    both = [subprocess.Popen(command, env={**os.environ, **own}, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        deadline = time.monotonic() + 120
        while all(one.poll() is None for one in both) and time.monotonic() < deadline:
            time.sleep(0.05)
        (refused,) = [one for one in both if one.poll() is not None]
        (served,) = [one for one in both if one is not refused]
        said = refused.communicate(timeout=60)[1]
        assert "two processes claim to be rank 1 of this job: " in said
        assert (
            f"process {served.pid} at 127.0.0.1 came first, and process {refused.pid} at 127.0.0.1 is refused" in said
        )
        assert served.poll() is None, "it goes on waiting for the others"
    finally:
        for one in both:
            one.kill()
            one.communicate()
        server.close()
