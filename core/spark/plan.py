"""What an estimator's training does on every rank, and the arrays that a model of any framework is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ringtune.errors import InvalidArgument
from ringtune.spark.data import Columns, DataSet, Share


@dataclass(frozen=True)
class Plan:
    """What every rank does.

    Attributes:
        packed: The model with what its framework needs to train it, pickled together so that they stay one.
        features: Columns of the model's inputs.
        labels: Columns of its labels.
        weight: Column of the rows' weights; empty without.
        input_shapes: Shapes of the inputs; None: as they are.
        label_shapes: Shapes of the labels; None: as they are.
        loss_weights: Weights of the labels' losses; None: what the framework does without.
        batch_size: Rows of a batch of each rank.
        val_batch_size: The same for validation.
        epochs: Number of passes.
        steps: Batches of an epoch on each rank; None: as many full ones as are there on every rank.
        val_steps: Batches of a validation; None: all rows.
        passes: Backward passes of a step.
        compression: One of the front end's ``Compression``; None without.
        shuffle: Whether to shuffle.
        seed: Of the shuffling.
        keeps: Whether to keep the rows in memory.
        use_gpu: Whether to train on a GPU where there is one.
        verbose: Whether rank 0 prints every epoch.
        checkpoint: Where rank 0 writes each epoch; empty: nowhere.
    """

    packed: bytes = field(repr=False)
    features: Sequence[str]
    labels: Sequence[str]
    weight: str
    input_shapes: Sequence[Sequence[int]] | None
    label_shapes: Sequence[Sequence[int]] | None
    loss_weights: Sequence[float] | None
    batch_size: int
    val_batch_size: int
    epochs: int
    steps: int | None
    val_steps: int | None
    passes: int
    compression: Any
    shuffle: bool
    seed: int
    keeps: bool
    use_gpu: bool
    verbose: int
    checkpoint: str

    def share(self, data: DataSet, rank: int, size: int) -> Share:
        """Return a rank's rows."""
        columns = [*self.features, *self.labels, *([self.weight] if self.weight else [])]
        return Share(data, columns, rank, size, keeps=self.keeps)

    def batches_of(self, data: DataSet, size: int) -> int:
        """Return the batches of an epoch, the same on all ranks: a multiple of the backward passes of a step."""
        batches = self.steps or data.rows // (self.batch_size * size)
        return max(1, batches // self.passes) * self.passes

    def held_batches_of(self, data: DataSet, size: int) -> int:
        """Return the batches of a validation, the same on all ranks: all rows, but for one of some ranks.

        Raises:
            InvalidArgument: A rank has no row.
        """
        if data.rows < size:
            raise InvalidArgument(f"there are {data.rows} rows to validate with on {size} ranks: use more rows")
        return self.val_steps or -(-(data.rows // size) // self.val_batch_size)

    def random(self, epoch: int, rank: int) -> np.random.Generator | None:
        """Return what shuffles a rank's rows in an epoch; None where they stay in order."""
        return np.random.default_rng((self.seed, epoch, rank)) if self.shuffle else None

    def batch(self, columns: Columns) -> Batch:
        """Return the arrays of a batch.

        Raises:
            InvalidArgument: A column does not make up its shape.
        """
        return Batch(
            inputs=arrays(columns, self.features, self.input_shapes),
            labels=arrays(columns, self.labels, self.label_shapes),
            weights=as_numbers(columns[self.weight]) if self.weight else None,
        )


@dataclass(frozen=True)
class Batch:
    """The arrays of a batch.

    Attributes:
        inputs: One a column of features.
        labels: One a column of labels.
        weights: Weights of the rows; None without.
    """

    inputs: list[Any]
    labels: list[Any]
    weights: Any

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.inputs[0])


def arrays(columns: Columns, names: Sequence[str], shapes: Sequence[Sequence[int]] | None) -> list[Any]:
    """Return columns as numbers in the shapes that a model wants.

    Args:
        columns: Arrays by name.
        names: Which of them.
        shapes: Shapes with -1 for the rows; None: as they are.

    Raises:
        InvalidArgument: A column does not make up its shape.
    """
    found = [as_numbers(columns[name]) for name in names]
    if shapes is None:
        return found
    return [_shaped(one, shape, name) for one, shape, name in zip(found, shapes, names, strict=True)]


def as_numbers(column: Any) -> Any:
    """Return a column in the dtype that models have: whole numbers for classes, single precision for the rest."""
    whole = np.issubdtype(column.dtype, np.integer) or column.dtype == bool
    return np.ascontiguousarray(column, dtype=np.int64 if whole else np.float32)


def _shaped(column: Any, shape: Sequence[int], name: str) -> Any:
    try:
        return column.reshape(tuple(shape))
    except ValueError:
        each = column[0].size if len(column) else 0
        raise InvalidArgument(
            f"column {name!r} has {each} numbers a row, which do not make up the shape {tuple(shape)}"
        ) from None
