"""The training that a `TorchEstimator` runs on every rank."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import numpy as np
import torch

from ringtune.errors import InvalidArgument
from ringtune.spark.data import Columns, DataSet
from ringtune.spark.plan import Batch as Arrays
from ringtune.spark.plan import Plan


class Batch:
    """Tensors of a batch.

    Args:
        found: Its arrays.
        device: Where they go.
    """

    def __init__(self, found: Arrays, device: torch.device) -> None:
        self.inputs = [torch.from_numpy(one).to(device) for one in found.inputs]
        self.labels = [torch.from_numpy(one).to(device) for one in found.labels]
        self.weights = torch.from_numpy(found.weights).to(device) if found.weights is not None else None
        self.rows = found.rows


def outputs_of(found: Any) -> list[torch.Tensor]:
    """Return a model's outputs, one a label."""
    return list(found) if isinstance(found, tuple | list) else [found]


class _Sums:
    """Sums of an epoch on this rank, which all ranks add up once, in one operation."""

    def __init__(self, metrics: Sequence[Sequence[Callable[..., Any]]]) -> None:
        self._metrics = metrics
        self._names = [[getattr(one, "__name__", type(one).__name__) for one in group] for group in metrics]
        self._sums = np.zeros(2 + sum(map(len, self._names)))

    def add(self, loss: torch.Tensor, outputs: Sequence[torch.Tensor], batch: Batch) -> None:
        found = [float(loss.detach())]
        for group, output, label in zip(self._metrics, outputs, batch.labels, strict=False):
            found += [float(metric(output.detach(), label)) for metric in group]
        self._sums += np.array([1.0, *found]) * batch.rows

    def total(self, name: str) -> dict[str, Any]:
        import ringtune.torch as hvd

        total = hvd.allreduce(torch.from_numpy(self._sums), op=hvd.Sum, name=name).numpy()
        means = iter((total[1:] / max(total[0], 1.0)).tolist())
        return {"loss": next(means), "all_metrics": [{one: next(means) for one in group} for group in self._names]}


def train(plan: Plan, data: DataSet, validation: DataSet | None) -> dict[str, Any]:
    """Train on this rank's share.

    Args:
        plan: The plan.
        data: Rows to train on.
        validation: Rows to validate with.

    Returns:
        On rank 0 the model, the history and the optimizer's state, else nothing.
    """
    import ringtune.torch as hvd

    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    model, optimizer, losses, metrics, transformation = cloudpickle.loads(plan.packed)
    on_gpu = plan.use_gpu and torch.cuda.is_available()
    device = torch.device("cuda", hvd.local_rank() % torch.cuda.device_count()) if on_gpu else torch.device("cpu")
    model.to(device)
    first, history = _resumed(plan, data, model, optimizer)
    _scale(optimizer, size)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    wrapped = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        backward_passes_per_step=plan.passes,
        compression=plan.compression if plan.compression is not None else hvd.Compression.none,
    )
    share, batches = plan.share(data, rank, size), plan.batches_of(data, size)
    held = plan.share(validation, rank, size) if validation is not None else None
    loss_weights = plan.loss_weights or [1 / len(plan.labels)] * len(plan.labels)

    def loss_of(batch: Batch) -> tuple[torch.Tensor, list[torch.Tensor]]:
        outputs = outputs_of(model(*batch.inputs))
        if len(outputs) != len(batch.labels):
            raise InvalidArgument(f"the model has {len(outputs)} outputs for {len(batch.labels)} label columns")
        each = []
        for loss, output, label in zip(losses, outputs, batch.labels, strict=True):
            if batch.weights is None:
                each.append(loss(output, label))
            else:
                rows = loss(output, label, reduction="none")
                each.append((rows.reshape(batch.rows, -1).mean(1) * batch.weights).mean())
        total = sum((one * weight for one, weight in zip(each, loss_weights, strict=True)), torch.zeros(()))
        return total, outputs

    def ready(columns: Columns) -> Batch:
        return Batch(plan.batch(transformation(columns) if transformation is not None else columns), device)

    for epoch in range(first, plan.epochs):
        began = time.monotonic()
        model.train()
        sums = _Sums(metrics)
        for number, part in enumerate(share.batches(plan.batch_size, batches, plan.random(epoch, rank))):
            if number % plan.passes == 0:
                wrapped.zero_grad()
            batch = ready(part)
            loss, outputs = loss_of(batch)
            loss.backward()
            sums.add(loss, outputs, batch)
            if number % plan.passes == plan.passes - 1:
                wrapped.step()
        entry = {"epoch": epoch, "train": sums.total("train")}
        if held is not None:
            model.eval()
            sums = _Sums(metrics)
            with torch.no_grad():
                for number, part in enumerate(held.once(plan.val_batch_size)):
                    if plan.val_steps is not None and number >= plan.val_steps:
                        break
                    batch = ready(part)
                    sums.add(*loss_of(batch), batch)
            entry["validation"] = sums.total("validation")
        history.append(entry)
        if rank == 0:
            _report(plan, entry, time.monotonic() - began)
            if plan.checkpoint:
                _scale(optimizer, 1 / size)
                data.store.write(plan.checkpoint, _state(model, optimizer, history))
                _scale(optimizer, size)
    _scale(optimizer, 1 / size)
    found = {} if rank else {"state": _state(model, optimizer, history), "history": history}
    hvd.shutdown()
    return found


def _resumed(plan: Plan, data: DataSet, model: Any, optimizer: Any) -> tuple[int, list[Any]]:
    """Load a checkpoint of this run, if there is one; return the first epoch and the history before it."""
    if not plan.checkpoint or not data.store.exists(plan.checkpoint):
        return 0, []
    history = load_state(data.store.read(plan.checkpoint), model, optimizer)
    return len(history), history


def _state(model: Any, optimizer: Any, history: Any) -> bytes:
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "history": history}, file)
    return file.getvalue()


def load_state(content: bytes, model: Any, optimizer: Any = None) -> list[Any]:
    """Load what a training has left into a model and its optimizer.

    Args:
        content: A checkpoint.
        model: The model.
        optimizer: Its optimizer.

    Returns:
        The history.
    """
    found = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    model.load_state_dict(found["model"])
    if optimizer is not None:
        optimizer.load_state_dict(found["optimizer"])
    history: list[Any] = found["history"]
    return history


def _scale(optimizer: Any, factor: float) -> None:
    """Multiply the learning rate, where the optimizer has one."""
    for group in optimizer.param_groups:
        if "lr" in group:
            group["lr"] = group["lr"] * factor


def _report(plan: Plan, entry: dict[str, Any], seconds: float) -> None:
    if plan.verbose:
        parts = [f"{name} loss {entry[name]['loss']:.5g}" for name in ("train", "validation") if name in entry]
        print(f"epoch {entry['epoch']}: {', '.join(parts)}, {seconds:.1f} s", flush=True)
