"""`ringtune.spark.Store` on HDFS: by its REST interface, and what is said where Hadoop's library is missing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ringtune.errors import InvalidArgument
from tests.engines.webhdfs import served

pytest.importorskip("requests", reason="requests is not installed; `make test-engines` makes an environment")
pytest.importorskip("pyarrow", reason="pyarrow is not installed; `make test-engines` makes an environment")

from ringtune.spark.store import Store


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Return the URL of a folder of an HDFS."""
    with served(tmp_path) as port:
        yield f"webhdfs://127.0.0.1:{port}/team"


def test_a_checkpoint_replaces_the_last_one(address: str, tmp_path: Path) -> None:
    store = Store(address)
    path = store.get_checkpoint_path("one")
    assert path == f"{address}/runs/one/checkpoint" and not store.exists(path)
    for content in (b"first", b"second"):
        store.write(path, content)
        assert store.read(path) == content
    store.write_text(f"{store.get_run_path('one')}/epoch-1.ckpt", "word")
    assert store.get_checkpoints("one") == ["/team/runs/one/epoch-1.ckpt"]
    names = sorted(file.name for file in (tmp_path / "team/runs/one").iterdir())
    assert names == ["checkpoint", "epoch-1.ckpt"], "no part of a file is left"


def test_data_that_others_have_written_since(address: str, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    store = Store(address)
    path = store.get_train_data_path(3)
    assert not store.is_parquet_dataset(path)
    folder = tmp_path / "team/intermediate_train_data.3"
    folder.mkdir(parents=True)
    for part in range(2):
        pq.write_table(pa.table({"x": [part, 10 + part]}), folder / f"part-{part}.parquet")
        assert len(store.parquet_files(path)) == part + 1
    assert sorted(store.get_parquet_dataset(path).to_table()["x"].to_pylist()) == [0, 1, 10, 11]


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
