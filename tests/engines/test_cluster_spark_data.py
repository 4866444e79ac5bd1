"""`Store`, and each rank's share of Parquet files: no Spark is started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ringtune.errors import InvalidArgument

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed; `make test-engines` makes an environment")
pytest.importorskip("pyspark", reason="pyspark is not installed; `make test-engines` makes an environment")
from pyarrow import parquet  # noqa: E402

from ringtune.spark import data  # noqa: E402
from ringtune.spark.data import Share  # noqa: E402
from ringtune.spark.store import HDFSStore, LocalStore, Store  # noqa: E402


@pytest.fixture
def rows(tmp_path: Path) -> data.DataSet:
    """Return 23 rows in two files, of 4 rows a row group."""
    store = Store.create(str(tmp_path / "store"))
    folder = Path(store.get_localized_path(store.get_train_data_path()))
    folder.mkdir(parents=True)
    for number, (begin, end) in enumerate(((0, 10), (10, 23))):
        table = pa.table({"x": [[float(row), row + 0.5] for row in range(begin, end)], "y": list(range(begin, end))})
        parquet.write_table(table, folder / f"part-{number}.parquet", row_group_size=4)
    return data.open_folder(store, store.get_train_data_path())


@pytest.mark.parametrize("size", [1, 2, 3, 5, 23])
def test_shares_are_all_rows_once(rows: data.DataSet, size: int) -> None:
    shares = [Share(rows, ["x", "y"], rank, size) for rank in range(size)]
    found = [np.concatenate([batch["y"] for batch in share.once(3)]).tolist() for share in shares]
    assert [row for share in found for row in share] == list(range(23))
    assert max(map(len, found)) - min(map(len, found)) <= 1
    first = next(shares[0].once(3))
    assert np.array_equal(first["x"], np.stack([first["y"], first["y"] + 0.5], axis=1))


def test_batches_are_full_and_begin_anew(rows: data.DataSet) -> None:
    share = Share(rows, ["y"], 1, 2)  # rows 11 to 22
    got = [batch["y"].tolist() for batch in share.batches(5, 4)]
    assert got == [[11, 12, 13, 14, 15], [16, 17, 18, 19, 20], [21, 22, 11, 12, 13], [14, 15, 16, 17, 18]]


@pytest.mark.parametrize("keeps", [False, True])
def test_shuffled_batches_hold_each_row_once(rows: data.DataSet, keeps: bool) -> None:
    share = Share(rows, ["x", "y"], 0, 1, keeps=keeps)
    for seed in (1, 2):
        (got,) = share.batches(23, 1, np.random.default_rng(seed))
        assert sorted(got["y"].tolist()) == list(range(23)) and got["y"].tolist() != list(range(23))
        assert np.array_equal(got["x"][:, 0], got["y"])


def test_more_ranks_than_rows(rows: data.DataSet) -> None:
    with pytest.raises(InvalidArgument, match="a rank has no row"):
        list(Share(rows, ["y"], 0, 40).batches(1, 1))


@pytest.mark.parametrize(
    ("values", "said"), [([[1.0], [1.0, 2.0]], "between 1 and 2 elements"), ([1.0, None], "1 rows without a value")]
)
def test_rows_that_make_no_array(values: list[Any], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        data.as_array(pa.chunked_array([values]), "x")


def test_paths_of_a_store(tmp_path: Path) -> None:
    store = Store.create(str(tmp_path))
    assert store.get_train_data_path() == f"file:{tmp_path}/intermediate_train_data"
    assert store.get_val_data_path(3) == f"file:{tmp_path}/intermediate_val_data.3"
    assert store.get_checkpoint_path("one") == f"file:{tmp_path}/runs/one/checkpoint"
    assert store.get_logs_path("one") == f"file:{tmp_path}/runs/one/logs"
    assert Store("dbfs:/team").get_runs_path() == "file:/dbfs/team/runs"
    assert LocalStore is HDFSStore is Store
    assert not store.exists(store.get_run_path("one"))
    store.write_text(f"{store.get_run_path('one')}/a.ckpt", "word")
    assert store.read(f"{store.get_run_path('one')}/a.ckpt") == b"word"
    assert [Path(path).name for path in store.get_checkpoints("one")] == ["a.ckpt"]
    with pytest.raises(InvalidArgument, match="expected a path"):
        Store("")


def test_another_file_system() -> None:
    store = Store("memory://store")
    store.write(store.get_checkpoint_path("one"), b"content")
    assert store.exists(store.get_checkpoint_path("one")) and store.read(store.get_checkpoint_path("one")) == b"content"
    store.fs.rm(store.get_localized_path(store.prefix_path), recursive=True)


def test_a_folder_without_data(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    with pytest.raises(InvalidArgument, match="there are no Parquet files"):
        data.open_folder(store, store.get_train_data_path())


def test_under_horovods_names() -> None:
    program = (
        "import ringtune.as_horovod, horovod.spark, ringtune.spark\n"
        "from horovod.spark.common.backend import SparkBackend\n"
        "from horovod.spark.common.store import HDFSStore, LocalStore, Store\n"
        "from horovod.spark.task import get_available_devices\n"
        "from horovod.spark.torch import TorchEstimator, TorchModel\n"
        "import ringtune.spark.store\n"
        "print(horovod.spark.run is ringtune.spark.run, Store is ringtune.spark.store.Store)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "True True\n", done.stderr
