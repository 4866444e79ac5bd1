"""Batch normalisation over the batches of all ranks.

Notation: channel c, rank r, count n_r, mean m_r, variance v_r of the rank's batch; N, m, v of all batches together.

    N = sum n_r,   m = sum n_r m_r / N,   v = sum n_r (v_r + (m_r - m)^2) / N

Source: Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979. It
needs one collective and does not cancel as the difference of E[x^2] and E[x]^2 does. Backward needs one too:

    dx = (dy - mean(dy) - (x - m) mean(dy (x - m)) / (v + eps)) * weight / sqrt(v + eps)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from ringtune import session
from ringtune.common.process_sets import ProcessSet, global_process_set
from ringtune.torch.arguments import Sum
from ringtune.torch.asynchronous import allgather_async, allreduce_
from ringtune.torch.handles import at_once

__all__ = ["SyncBatchNorm", "convert_sync_batchnorm"]


@dataclass
class _Numbers:
    """Numbers the modules of a session in the order of their first use, which is the same on all ranks.

    Not in the order they were built: a rank that joined an elastic job later has built fewer.
    """

    session: session.Session | None = None
    given: int = 0

    def name_of(self, module: SyncBatchNorm) -> str:
        if self.session is not session.state.current:
            self.session, self.given = session.state.current, 0
        if module._named_in is not self.session:
            module._named_in, module._name = self.session, f"sync_batch_norm.{self.given}"
            self.given += 1
        return module._name


_numbers = _Numbers()


class SyncBatchNorm(_BatchNorm):
    """`torch.nn.BatchNorm*d` over the batches of all ranks, on the CPU too.

    Args:
        num_features: Number of channels C of an input (N, C, ...).
        eps: Added to the variance.
        momentum: Weight of a new batch in the running statistics; None = cumulative average.
        affine: Whether there are a weight and a bias.
        track_running_stats: Whether running statistics are kept, which evaluation then uses.
        process_set: The ranks whose batches count.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        self.process_set = process_set
        self._named_in: session.Session | None = None
        self._name = ""

    def __getstate__(self) -> dict[str, Any]:
        """Leave the session out of copies and pickles."""
        return {**self.__dict__, "_named_in": None}

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalise (N, C, ...) over all dimensions but C; same shape and dtype out.

        Raises:
            ValueError: The input has fewer than 2 dimensions, or one value per channel in all batches together.
        """
        self._check_input_dim(input)
        over_batch = self.training or self.running_mean is None
        ranks = self.process_set.size() if session.state.current is not None else 1
        if not over_batch or (ranks or 1) == 1:
            return self._plain(input, over_batch)
        normalised, mean, variance, total = _Normalise.apply(  # type: ignore[no-untyped-call]
            input, self.weight, self.bias, self.eps, _numbers.name_of(self), self.process_set
        )
        if self.training and self.track_running_stats:
            self._track(mean, variance, int(total))
        result: torch.Tensor = normalised
        return result

    def _plain(self, input: torch.Tensor, over_batch: bool) -> torch.Tensor:
        factor = self._count_batch() if self.training and self.track_running_stats else 0.0
        keeps = not self.training or self.track_running_stats
        return torch.nn.functional.batch_norm(
            input,
            self.running_mean if keeps else None,
            self.running_var if keeps else None,
            self.weight,
            self.bias,
            over_batch,
            factor,
            self.eps,
        )

    def _count_batch(self) -> float:
        """Count a batch and return its weight in the running statistics."""
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        return 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum

    @torch.no_grad()
    def _track(self, mean: torch.Tensor, variance: torch.Tensor, total: int) -> None:
        weight = self._count_batch()
        assert self.running_mean is not None and self.running_var is not None
        unbiased = variance * (total / (total - 1))
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), weight)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), weight)

    @classmethod
    def convert_sync_batchnorm(
        cls, module: torch.nn.Module, process_set: ProcessSet = global_process_set
    ) -> torch.nn.Module:
        """Return the module with every `torch.nn.BatchNorm*d` in it replaced; parameters and buffers stay the same."""
        converted: torch.nn.Module = module
        if isinstance(module, _BatchNorm) and not isinstance(module, cls):
            new = cls(
                module.num_features,
                module.eps,
                module.momentum,
                module.affine,
                module.track_running_stats,
                process_set,
            )
            new.weight, new.bias = module.weight, module.bias
            new.running_mean, new.running_var = module.running_mean, module.running_var
            new.num_batches_tracked = module.num_batches_tracked
            new.training = module.training
            converted = new
        for name, child in module.named_children():
            converted.add_module(name, cls.convert_sync_batchnorm(child, process_set))
        return converted


convert_sync_batchnorm = SyncBatchNorm.convert_sync_batchnorm


class _Normalise(torch.autograd.Function):
    """Forward and backward over all ranks; statistics are computed in float32 at least."""

    @staticmethod
    def forward(
        ctx: Any,
        input: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        eps: float,
        name: str,
        process_set: ProcessSet,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        x = _wide(input)
        counts, means, variances = _gather_statistics(x, name, process_set)
        total = counts.sum()
        if int(total) <= 1:
            raise ValueError(f"Expected more than 1 value per channel when training, got input size {input.shape}")
        share = (counts / total).unsqueeze(1)
        mean = (share * means).sum(0)
        variance = (share * (variances + (means - mean) ** 2)).sum(0)
        scale = torch.rsqrt(variance + eps)
        normalised = (x - _over(mean, x)) * _over(scale if weight is None else scale * _wide(weight), x)
        if bias is not None:
            normalised = normalised + _over(_wide(bias), x)
        ctx.save_for_backward(input, weight, mean, scale, total)
        ctx.name, ctx.process_set, ctx.has_bias = name, process_set, bias is not None
        ctx.mark_non_differentiable(mean, variance, total)
        return normalised.to(input.dtype), mean, variance, total

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        input, weight, mean, scale, total = ctx.saved_tensors
        dy, x = _wide(grads[0]), _wide(input)
        centred = x - _over(mean, x)
        dims = [dim for dim in range(x.dim()) if dim != 1]
        sums = torch.stack([dy.sum(dims), (dy * centred).sum(dims)])
        grad_weight = None if weight is None else (sums[1] * scale).to(weight.dtype)
        grad_bias = sums[0].to(input.dtype if weight is None else weight.dtype) if ctx.has_bias else None
        # Also where this input needs no gradient: the other ranks wait for this one.
        everyone = allreduce_(sums.clone(), name=f"{ctx.name}.sums", op=Sum, process_set=ctx.process_set) / total
        grad_input = None
        if ctx.needs_input_grad[0]:
            slope = scale if weight is None else scale * _wide(weight)
            inner = dy - _over(everyone[0], x) - centred * _over(everyone[1] * scale * scale, x)
            grad_input = (inner * _over(slope, x)).to(input.dtype)
        return grad_input, grad_weight, grad_bias, None, None, None


def _gather_statistics(
    x: torch.Tensor, name: str, process_set: ProcessSet
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return counts (ranks,), means and variances (ranks, C) of all ranks; an empty batch counts 0."""
    channels = x.shape[1]
    values = x.numel() // max(1, channels)
    own = torch.zeros(1, 2 * channels + 1, dtype=torch.float64, device=x.device)
    own[0, 0] = values
    if values:
        dims = [dim for dim in range(x.dim()) if dim != 1]
        variance, mean = torch.var_mean(x, dims, correction=0)
        own[0, 1 : channels + 1] = mean
        own[0, channels + 1 :] = variance
    everyone: torch.Tensor = at_once(allgather_async, own, f"{name}.statistics", process_set)
    everyone = everyone.to(x.dtype)
    return everyone[:, 0], everyone[:, 1 : channels + 1], everyone[:, channels + 1 :]


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


def _over(channels: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return (C,) in a shape that broadcasts over (N, C, ...)."""
    return channels.view(1, -1, *([1] * (like.dim() - 2)))
