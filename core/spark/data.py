"""Data of an estimator: a DataFrame as Parquet files, and each rank's share of their rows.

What the driver knows of the files comes from their footers, so no pass over the data is made. A rank reads its rows in
pieces and holds no more than a buffer of them, unless it is asked to keep all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ringtune.errors import InvalidArgument
from ringtune.spark.store import Store

Columns = dict[str, Any]
"""Arrays (rows, ...) by the name of their column."""

_BUFFER_ROWS = 1 << 16


@dataclass(frozen=True)
class Group:
    """A row group of a Parquet file.

    Attributes:
        file: The file, without protocol.
        number: Its number in the file.
        rows: Its rows.
    """

    file: str
    number: int
    rows: int


@dataclass(frozen=True)
class DataSet:
    """Parquet files.

    Attributes:
        store: Whose file system they lie in.
        groups: Their row groups, in order.
    """

    store: Store
    groups: tuple[Group, ...] = field(repr=False)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return sum(group.rows for group in self.groups)


def prepare(df: Any, path: str, store: Store, columns: Sequence[str], partitions: int) -> DataSet:
    """Return a DataFrame's columns as Parquet files: those that it is read from, else written into the store.

    Args:
        df: The DataFrame.
        path: Where it is written.
        store: The store.
        columns: Names of the columns.
        partitions: Number of files.
    """
    from pyspark.ml.functions import vector_to_array
    from pyspark.sql.functions import col

    vectors = vector_columns(df)
    files = [] if vectors & set(columns) else _files_of(df)
    if files:
        place = [store.get_localized_path(file) for file in files]
        return open_files(store, place)
    chosen = df.select(*(vector_to_array(col(name)).alias(name) if name in vectors else col(name) for name in columns))
    chosen.repartition(partitions).write.mode("overwrite").parquet(path)
    return open_folder(store, path)


def vector_columns(df: Any) -> set[str]:
    """Return the names of the columns that hold vectors of Spark ML."""
    from pyspark.ml.linalg import VectorUDT

    return {one.name for one in df.schema.fields if isinstance(one.dataType, VectorUDT)}


def open_folder(store: Store, path: str) -> DataSet:
    """Return what lies in a folder.

    Raises:
        InvalidArgument: There is no Parquet file.
    """
    files = store.parquet_files(path)
    if not files:
        raise InvalidArgument(f"{path}: there are no Parquet files: fit(df) writes them, or write the data there")
    return open_files(store, files)


def open_files(store: Store, files: Sequence[str]) -> DataSet:
    """Return files as a data set; their footers are read."""
    from pyarrow import parquet

    groups: list[Group] = []
    for file in files:
        with store.fs.open(file, "rb") as opened:
            about = parquet.ParquetFile(opened).metadata
            groups += [Group(file, number, about.row_group(number).num_rows) for number in range(about.num_row_groups)]
    return DataSet(store, tuple(groups))


def _files_of(df: Any) -> list[str]:
    """Return the Parquet files that a DataFrame is, unchanged; empty where it is computed or of another format."""
    plan = df._jdf.queryExecution().analyzed()
    if plan.getClass().getSimpleName() != "LogicalRelation":
        return []
    files = [str(file) for file in df.inputFiles()]
    return files if all(file.endswith(".parquet") for file in files) else []


class Share:
    """The rows of one rank: a range of the rows of all, so that ranks differ by one row at most.

    Args:
        data: The data.
        columns: Names of the columns.
        rank: The rank.
        size: Number of ranks.
        keeps: Whether to keep the rows in memory.
    """

    def __init__(self, data: DataSet, columns: Sequence[str], rank: int, size: int, *, keeps: bool = False) -> None:
        self._data, self._columns, self._keeps = data, list(columns), keeps
        self._kept: list[Columns] | None = None
        self._pieces = list(_pieces(data.groups, data.rows * rank // size, data.rows * (rank + 1) // size))

    def batches(self, size: int, count: int, random: np.random.Generator | None = None) -> Iterator[Columns]:
        """Yield so many batches of so many rows, beginning anew where the share ends.

        Args:
            size: Rows of a batch.
            count: Number of batches.
            random: Shuffles; None keeps the order of the rows.
        """
        left: Columns = {}
        while count:
            before = count
            for block in self._blocks(random):
                left = _joined([left, block]) if left else block
                rows = len(next(iter(left.values())))
                cut = min(rows // size, count)
                for number in range(cut):
                    yield {name: one[number * size : (number + 1) * size] for name, one in left.items()}
                count -= cut
                left = {name: one[cut * size :] for name, one in left.items()}
                if not count:
                    return
            if count == before and not left:
                raise InvalidArgument("a rank has no row of the data: use fewer ranks, or more rows")

    def once(self, size: int) -> Iterator[Columns]:
        """Yield all rows once in order; the last batch may have fewer rows."""
        for block in self._blocks(None):
            rows = len(next(iter(block.values())))
            for begin in range(0, rows, size):
                yield {name: one[begin : begin + size] for name, one in block.items()}

    def _blocks(self, random: np.random.Generator | None) -> Iterator[Columns]:
        """Yield the share in blocks; rows are shuffled within a block, and blocks are made of pieces in any order."""
        if self._keeps and self._kept is None:
            self._kept = [self._read(piece) for piece in self._pieces]
        order = np.arange(len(self._pieces)) if random is None else random.permutation(len(self._pieces))
        held: list[Columns] = []
        rows = 0
        for place, number in enumerate(order):
            held.append(self._kept[number] if self._kept is not None else self._read(self._pieces[number]))
            rows += len(next(iter(held[-1].values())))
            if rows >= _BUFFER_ROWS or place == len(order) - 1:
                block = _joined(held)
                mixed = None if random is None else random.permutation(rows)
                yield block if mixed is None else {name: one[mixed] for name, one in block.items()}
                held, rows = [], 0

    def _read(self, piece: tuple[Group, int, int]) -> Columns:
        from pyarrow import parquet

        group, begin, end = piece
        with self._data.store.fs.open(group.file, "rb") as opened:
            table = parquet.ParquetFile(opened).read_row_group(group.number, columns=self._columns)
        return {name: as_array(table.column(name).slice(begin, end - begin), name) for name in self._columns}


def as_array(column: Any, name: str) -> Any:
    """Return a column of Arrow's as an array: (rows,) of numbers, (rows, n) of lists.

    Raises:
        InvalidArgument: Its rows differ in size, or values are missing.
    """
    import pyarrow as pa

    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if whole.null_count:
        raise InvalidArgument(f"column {name!r} has {whole.null_count} rows without a value: fill or drop them")
    if not pa.types.is_list(whole.type) and not pa.types.is_large_list(whole.type):
        return whole.to_numpy(zero_copy_only=False)
    lengths = np.unique(np.diff(whole.offsets.to_numpy()))
    if len(lengths) > 1:
        raise InvalidArgument(
            f"column {name!r}: its rows have between {lengths[0]} and {lengths[-1]} elements: all need the same number"
        )
    return whole.flatten().to_numpy(zero_copy_only=False).reshape(len(whole), -1)


def _pieces(groups: Sequence[Group], begin: int, end: int) -> Iterator[tuple[Group, int, int]]:
    """Yield the parts of row groups that make up a range of rows."""
    first = 0
    for group in groups:
        low, high = max(begin, first), min(end, first + group.rows)
        if low < high:
            yield group, low - first, high - first
        first += group.rows


def _joined(blocks: Sequence[Mapping[str, Any]]) -> Columns:
    if len(blocks) == 1:
        return dict(blocks[0])
    return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}
