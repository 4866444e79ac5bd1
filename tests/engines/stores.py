"""What `ringtune.spark.Store` must do on every file system: the tests of each call these."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from ringtune.spark.store import Store


def check_checkpoints(store: Store, url: str, place: str) -> None:
    """A checkpoint is replaced in one piece, and a run's other files are found; no part of a file is left.

    Args:
        store: To be tried.
        url: Its folder.
        place: The same, as its file system calls it.
    """
    path, folder = store.get_checkpoint_path("one"), f"{place}/runs/one"
    assert path == f"{url}/runs/one/checkpoint" and not store.exists(path)
    for content in (b"first", b"second"):
        store.write(path, content)
        assert store.read(path) == content
    assert store.fs.ls(folder, detail=False) == [f"{folder}/checkpoint"]
    store.write_text(f"{store.get_run_path('one')}/epoch-1.ckpt", "word")
    assert store.get_checkpoints("one") == [f"{folder}/epoch-1.ckpt"]
    assert store.fs.ls(folder, detail=False) == [f"{folder}/checkpoint", f"{folder}/epoch-1.ckpt"]


def check_data_of_others(store: Store, url: str, opened: Callable[[str], AbstractContextManager[Any]]) -> None:
    """Data that has been written since the store looked is found, as Spark writes it by a client of its own.

    Args:
        store: To be tried.
        url: Its folder.
        opened: Opens a file of that folder for writing, without the store.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = store.get_train_data_path(3)
    assert path == f"{url}/intermediate_train_data.3" and not store.is_parquet_dataset(path)
    for part in range(2):
        with opened(f"intermediate_train_data.3/part-{part}.parquet") as file:
            pq.write_table(pa.table({"x": [part, 10 + part]}), file)
        assert len(store.parquet_files(path)) == part + 1
    assert sorted(store.get_parquet_dataset(path).to_table()["x"].to_pylist()) == [0, 1, 10, 11]
