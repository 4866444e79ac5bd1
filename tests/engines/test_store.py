"""`ringtune.spark.Store` on S3: a server of moto's on this machine, reached by s3fs."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from ringtune.errors import InvalidArgument
from tests.ports import free_port

pytest.importorskip("s3fs", reason="s3fs is not installed; `make test-engines` makes an environment")
pytest.importorskip("moto", reason="moto is not installed; `make test-engines` makes an environment")

from ringtune.spark.store import Store
from tests.engines.stores import check_checkpoints, check_data_of_others

_START_S = 60.0


@pytest.fixture(scope="module")
def options() -> Iterator[dict[str, Any]]:
    """Return what s3fs needs to reach the server, which has a bucket ``team``."""
    import s3fs

    port = free_port()
    address = f"http://127.0.0.1:{port}"
    program = "from moto.server import main; import sys; main(sys.argv[1:])"
    server = subprocess.Popen(
        [sys.executable, "-c", program, "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        _await(server, address)
        found = {
            "key": "test",
            "secret": "test",
            "client_kwargs": {"endpoint_url": address, "region_name": "eu-west-1"},
        }
        s3fs.S3FileSystem(**found).mkdir("team")
        yield found
    finally:
        server.kill()
        server.wait()


def _await(server: subprocess.Popen[bytes], address: str) -> None:
    deadline = time.monotonic() + _START_S
    while True:
        try:
            urllib.request.urlopen(address, timeout=5).close()
            return
        except urllib.error.URLError:
            assert server.poll() is None and time.monotonic() < deadline, "moto's server has not come up"
            time.sleep(0.1)


def test_checkpoints_and_logs(options: dict[str, Any]) -> None:
    store = Store("s3://team/digits/", storage_options=options)
    check_checkpoints(store, "s3://team/digits", "team/digits")


def test_data_that_others_have_written_since(options: dict[str, Any]) -> None:
    import s3fs

    store = Store("s3://team/others", storage_options=options)
    other = s3fs.S3FileSystem(**options, skip_instance_cache=True)
    check_data_of_others(store, "s3://team/others", lambda name: other.open(f"team/others/{name}", "wb"))


def test_a_file_system_without_its_driver_says_what_to_install() -> None:
    for path, missing in (("abfs://team/digits", "adlfs"), ("nonsense://team", "Protocol not known: nonsense")):
        store = Store(path)
        with pytest.raises(
            InvalidArgument, match=f"Store: {path} cannot be reached from .*{missing}.*on all executors"
        ):
            store.exists(store.get_runs_path())
