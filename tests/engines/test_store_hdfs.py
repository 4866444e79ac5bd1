"""`ringtune.spark.Store` on HDFS: by its REST interface, and what is said where Hadoop's library is missing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from ringtune.errors import InvalidArgument
from tests.engines.webhdfs import served

pytest.importorskip("requests", reason="requests is not installed; `make test-engines` makes an environment")
pytest.importorskip("pyarrow", reason="pyarrow is not installed; `make test-engines` makes an environment")

from ringtune.spark.store import Store
from tests.engines.stores import check_checkpoints, check_data_of_others


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Return the URL of a folder of an HDFS."""
    with served(tmp_path) as port:
        yield f"webhdfs://127.0.0.1:{port}/team"


def test_a_checkpoint_replaces_the_last_one(address: str, tmp_path: Path) -> None:
    check_checkpoints(Store(address), address, "/team")
    names = sorted(file.name for file in (tmp_path / "team/runs/one").iterdir())
    assert names == ["checkpoint", "epoch-1.ckpt"], "no part of a file is left"


def test_data_that_others_have_written_since(address: str, tmp_path: Path) -> None:
    def opened(name: str) -> IO[bytes]:
        file = tmp_path / "team" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        return file.open("wb")

    check_data_of_others(Store(address), address, opened)


def test_without_hadoop_one_sentence_says_what_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # pyarrow itself lists each place where it has looked.
    for name in ("ARROW_LIBHDFS_DIR", "HADOOP_HOME", "JAVA_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    store = Store("hdfs://cluster/team")
    with pytest.raises(InvalidArgument, match=r"Store: hdfs://cluster/team cannot be reached from .*") as caught:
        store.exists(store.get_runs_path())
    said = str(caught.value)
    assert "Unable to load lib" in said and "JAVA_HOME and HADOOP_HOME" in said and "on all executors" in said
    assert "\n" not in said and len(said) < 400
