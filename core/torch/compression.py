"""Compression of gradients before they travel: cast down, reduce, cast back.

The casts of `Compression.fp16` and `Compression.bf16` are part of the runtime's copies in and out: an allreduce takes
the dtype to travel as (`to_travel`), and no cast tensor is ever made. `compress` and `decompress` do the same by hand.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from ringtune.common.process_sets import ProcessSet
from ringtune.errors import InvalidArgument
from ringtune.torch.arguments import Adasum
from ringtune.torch.handles import DTYPES, Reduction

if TYPE_CHECKING:
    from ringtune.torch.feedback import Feedback, Named


class Compressor:
    """Turns a tensor into what travels and back."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype | None]:
        """Return the tensor that travels and what `decompress` needs to know."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: torch.dtype | None) -> torch.Tensor:
        """Return a tensor of the original dtype."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Sends tensors as they are."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype | None]:
        """Return the tensor itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: torch.dtype | None) -> torch.Tensor:
        """Return the tensor itself."""
        return tensor


class _CastCompressor(Compressor):
    """Casts floating tensors to a shorter dtype; others travel as they are."""

    dtype: torch.dtype

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype | None]:
        """Return the cast tensor and the original dtype."""
        return (tensor.to(cls.dtype), tensor.dtype) if tensor.dtype.is_floating_point else (tensor, tensor.dtype)

    @classmethod
    def decompress(cls, tensor: torch.Tensor, ctx: torch.dtype | None) -> torch.Tensor:
        """Return the tensor in its original dtype."""
        return tensor if ctx is None else tensor.to(ctx)


class FP16Compressor(_CastCompressor):
    """Sends floating tensors as float16."""

    dtype = torch.float16


class BF16Compressor(_CastCompressor):
    """Sends floating tensors as bfloat16, which keeps float32's range."""

    dtype = torch.bfloat16


class FeedbackCompressor(Compressor):
    """A compressor with error feedback, which keeps the unsent rest of every gradient: for `DistributedOptimizer` only.

    All ranks use equal ones; one may serve several optimizers, since it holds settings only.
    """

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype | None]:
        """Refuse: error feedback needs the state of a parameter.

        Raises:
            InvalidArgument: Always.
        """
        raise InvalidArgument(
            "this compression keeps state for every parameter and cannot compress a tensor by itself; give it to "
            "DistributedOptimizer(compression=...)"
        )

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: torch.dtype | None) -> torch.Tensor:
        """Refuse, as `compress` does."""
        raise InvalidArgument("this compression cannot decompress a tensor by itself; give it to DistributedOptimizer")

    @abstractmethod
    def attach(self, parameters: Sequence[Named], reduction: Reduction, process_set: ProcessSet) -> Feedback:
        """Return new state for the gradients of these parameters."""


@dataclass(frozen=True)
class PowerSGDCompressor(FeedbackCompressor):
    """Sends low-rank approximations; see `ringtune.torch.powersgd`.

    Args:
        rank: Rank of the approximations (torch: ``matrix_approximation_rank``), 1 to 4 as a rule.
        start_iteration: Steps that travel uncompressed at first (torch: ``start_powerSGD_iter``).
        min_compression_rate: Parameters whose factors are not smaller than they are by this travel uncompressed.
        use_error_feedback: Keep what was not sent and add it to the next gradient.
        warm_start: Begin each step with the last one's factors.
        random_seed: Of the factors at the start.

    Raises:
        InvalidArgument: A number is out of its range.
    """

    rank: int = 1
    start_iteration: int = 1000
    min_compression_rate: float = 2.0
    use_error_feedback: bool = True
    warm_start: bool = True
    random_seed: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.rank, int) or self.rank < 1:
            raise InvalidArgument(f"powersgd: rank={self.rank!r}, expected a whole number of at least 1")
        if self.start_iteration < 0 or self.random_seed < 0:
            raise InvalidArgument("powersgd: start_iteration and random_seed must not be negative")
        if not self.min_compression_rate > 0:
            raise InvalidArgument(f"powersgd: min_compression_rate={self.min_compression_rate}, expected more than 0")

    def attach(self, parameters: Sequence[Named], reduction: Reduction, process_set: ProcessSet) -> Feedback:
        from ringtune.torch.powersgd import PowerSGD

        return PowerSGD(self, parameters, reduction, process_set)


@dataclass(frozen=True)
class TopKCompressor(FeedbackCompressor):
    """Sends the elements of largest magnitude; see `ringtune.torch.topk`.

    Args:
        ratio: Share of a gradient's elements that travel, one at least. Each takes 8 bytes.
        min_elements: Smaller parameters travel uncompressed.

    Raises:
        InvalidArgument: A number is out of its range.
    """

    ratio: float = 0.01
    min_elements: int = 1024

    def __post_init__(self) -> None:
        if not 0 < self.ratio <= 1:
            raise InvalidArgument(f"topk: ratio={self.ratio}, expected more than 0 and at most 1")
        if self.min_elements < 1:
            raise InvalidArgument(f"topk: min_elements={self.min_elements}, expected at least 1")

    def attach(self, parameters: Sequence[Named], reduction: Reduction, process_set: ProcessSet) -> Feedback:
        from ringtune.torch.topk import TopK

        return TopK(self, parameters, reduction, process_set)


class Compression:
    """The compressors to choose from: the first three are classes as in Horovod, the others are called."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
    powersgd = PowerSGDCompressor
    topk = TopKCompressor


Chosen = type[Compressor] | Compressor
"""What an argument ``compression`` may be."""


def resolve_compression(compression: Chosen) -> Chosen:
    """Return the compressor to use; a class with error feedback is called without arguments.

    Raises:
        InvalidArgument: It is no compressor.
    """
    if isinstance(compression, type) and issubclass(compression, FeedbackCompressor):
        return compression()
    if not callable(getattr(compression, "compress", None)) or not callable(getattr(compression, "decompress", None)):
        raise InvalidArgument(
            f"compression={compression!r}: expected Compression.none, .fp16, .bf16, .powersgd(...), .topk(...), or a "
            "class with compress and decompress"
        )
    return compression


def wished(name: str) -> Chosen:
    """Return the compression that ``RINGTUNE_COMPRESSION`` names: ``none``, ``fp16`` or ``bf16``."""
    chosen: Chosen = getattr(Compression, name)
    return chosen


_CASTS: dict[type[Compressor], torch.dtype] = {FP16Compressor: torch.float16, BF16Compressor: torch.bfloat16}
"""Exact classes only: a subclass may compress in another way."""


class Travelling(NamedTuple):
    """A tensor in flight.

    Attributes:
        tensor: What is submitted.
        wire: Number of the dtype that the runtime lets it travel as, -1: its own.
        decompress: Makes the result of what was reduced.
    """

    tensor: torch.Tensor
    wire: int
    decompress: Callable[[torch.Tensor], torch.Tensor]


def wire_number(compression: Chosen, op: int) -> int:
    """Return the number of the dtype that the runtime casts to while it copies; -1: it casts nothing."""
    cast = _CASTS.get(compression) if isinstance(compression, type) else None
    return -1 if cast is None or op == Adasum else DTYPES[cast]


def to_travel(tensor: torch.Tensor, compression: Chosen, op: int) -> Travelling:
    """Prepare a tensor for an allreduce; compressors that the runtime does not know compress by hand."""
    wire = wire_number(compression, op)
    if wire != -1 or compression is NoneCompressor:
        return Travelling(tensor, wire, lambda result: result)
    small, context = compression.compress(tensor)
    return Travelling(small, -1, lambda result: compression.decompress(result, context))
