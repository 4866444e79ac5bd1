"""What ranks do in the tests of batch normalisation: the same as one process on all batches."""

from __future__ import annotations

import copy

import torch

import ringtune.torch as hvd


def _batches(shape: list[int], counts: list[int], dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(count, *shape, generator=generator, dtype=torch.float64).to(dtype) * 3 + 5 for count in counts]


def against_one_process(shape: list[int], counts: list[int], dtype: str, momentum: float | None, affine: bool) -> float:
    """Train two steps and evaluate; return the largest difference from torch's BatchNorm on all batches together."""
    kind = getattr(torch, dtype)
    channels = shape[0]
    plain = {1: torch.nn.BatchNorm1d, 2: torch.nn.BatchNorm1d, 3: torch.nn.BatchNorm2d, 4: torch.nn.BatchNorm3d}
    whole = plain[len(shape)](channels, momentum=momentum, affine=affine).to(kind)
    if affine:
        with torch.no_grad():
            whole.weight.uniform_(0.5, 2, generator=torch.Generator().manual_seed(1))
            whole.bias.uniform_(-1, 1, generator=torch.Generator().manual_seed(2))
    mine = hvd.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(whole))
    assert isinstance(mine, hvd.SyncBatchNorm)
    rank, size = hvd.rank(), hvd.size()
    worst = 0.0
    for _ in range(2):
        parts = _batches(shape, counts[:size], kind)
        x = torch.cat(parts).requires_grad_()
        y = whole(x)
        (y * torch.linspace(-1, 2, y.numel(), dtype=kind).view_as(y)).sum().backward()
        begin = sum(counts[:rank])
        part = parts[rank].clone().requires_grad_()
        z = mine(part)
        factors = torch.linspace(-1, 2, y.numel(), dtype=kind).view_as(y)[begin : begin + counts[rank]]
        (z * factors).sum().backward()
        worst = max(
            worst, _gap(z, y[begin : begin + counts[rank]]), _gap(part.grad, x.grad[begin : begin + counts[rank]])
        )
        if affine:
            for name in ("weight", "bias"):
                own = getattr(mine, name).grad.clone()
                everyone = hvd.allreduce(own, op=hvd.Sum)
                worst = max(worst, _gap(everyone, getattr(whole, name).grad))
                getattr(mine, name).grad = getattr(whole, name).grad = None
    worst = max(worst, _gap(mine.running_mean, whole.running_mean), _gap(mine.running_var, whole.running_var))
    assert mine.num_batches_tracked == whole.num_batches_tracked
    mine.eval()
    whole.eval()
    probe = _batches(shape, [3], kind)[0]
    return max(worst, _gap(mine(probe), whole(probe)))


def _gap(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a.detach().double() - b.detach().double()).abs().max()) if a.numel() else 0.0


def converted_model_keeps_its_parameters() -> bool:
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 1), torch.nn.BatchNorm2d(4), torch.nn.Sequential(torch.nn.BatchNorm2d(4))
    )
    before = {name: value.data_ptr() for name, value in model.state_dict().items()}
    converted = hvd.SyncBatchNorm.convert_sync_batchnorm(model)
    assert converted is model
    assert [type(m).__name__ for m in model.modules()].count("SyncBatchNorm") == 2
    return {name: value.data_ptr() for name, value in model.state_dict().items()} == before


def one_value_in_all() -> str:
    norm = hvd.SyncBatchNorm(2)
    batch = torch.ones(1 if hvd.rank() == 0 else 0, 2)
    try:
        norm(batch)
    except ValueError as error:
        return str(error)
    return "no error"
