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
    assert store.get_checkpoint_path("one") == "s3://team/digits/runs/one/checkpoint"
    assert not store.exists(store.get_checkpoint_path("one"))
    for content in (b"first", b"second"):
        store.write(store.get_checkpoint_path("one"), content)
        assert store.read(store.get_checkpoint_path("one")) == content
    store.write_text(f"{store.get_run_path('one')}/epoch-1.ckpt", "word")
    assert store.get_checkpoints("one") == ["team/digits/runs/one/epoch-1.ckpt"]
    assert store.fs.ls("team/digits/runs/one", detail=False) == [
        "team/digits/runs/one/checkpoint", "team/digits/runs/one/epoch-1.ckpt",
    ], "no part of a file is left"  # fmt: skip


def test_data_that_others_have_written_since(options: dict[str, Any]) -> None:
    """As Spark does, by a client of its own."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    import s3fs

    store = Store("s3://team/others", storage_options=options)
    path = store.get_train_data_path(3)
    assert path == "s3://team/others/intermediate_train_data.3" and not store.is_parquet_dataset(path)
    other = s3fs.S3FileSystem(**options, skip_instance_cache=True)
    for part in range(2):
        with other.open(f"team/others/intermediate_train_data.3/part-{part}.parquet", "wb") as file:
            pq.write_table(pa.table({"x": [part, 10 + part]}), file)
        assert len(store.parquet_files(path)) == part + 1
    assert sorted(store.get_parquet_dataset(path).to_table()["x"].to_pylist()) == [0, 1, 10, 11]


def test_a_file_system_without_its_driver_says_what_to_install() -> None:
    for path, missing in (("abfs://team/digits", "adlfs"), ("nonsense://team", "Protocol not known: nonsense")):
        store = Store(path)
        with pytest.raises(
            InvalidArgument, match=f"Store: {path} cannot be reached from .*{missing}.*on all executors"
        ):
            store.exists(store.get_runs_path())
