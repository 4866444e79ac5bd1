"""Which gradient tensors a step of training produces: of a model, GPT-2, a recorded profile, or ``COUNTxSIZE``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ringtune.benchmarks.harness.sizes import parse_bytes
from ringtune.errors import UsageError

_UNIFORM = re.compile(r"(\d+)x(\d.*)")
_HEADER_LINES = 3
GPT2 = "gpt2"


@dataclass(frozen=True)
class GradientProfile:
    """The gradient tensors of one step, in the order in which the backward pass produces them."""

    name: str
    sizes_bytes: tuple[int, ...]

    @property
    def total_bytes(self) -> int:
        """Bytes of all tensors together."""
        return sum(self.sizes_bytes)


def load_profile(text: str) -> GradientProfile:
    """Returns the profile that `text` names.

    Args:
        text: a file (see `parse_profile`), ``2000x4KiB`` for equal tensors, ``gpt2``, or a torchvision model.

    Raises:
        UsageError: none of these, or the file is not a profile.
    """
    path = Path(text)
    if path.is_file():
        return GradientProfile(path.stem, parse_profile(path.read_text(encoding="utf-8"), str(path)))
    uniform = _UNIFORM.fullmatch(text)
    if uniform:
        return _uniform(text, int(uniform[1]), parse_bytes(uniform[2]))
    if "/" in text or path.suffix:
        raise UsageError(f"no gradient profile at {text}")
    return GradientProfile(text, gpt2_sizes() if text == GPT2 else model_sizes(text))


def parse_profile(text: str, source: str) -> tuple[int, ...]:
    """Returns the sizes (bytes) in a recorded profile.

    Args:
        text: three header lines (comment, batches, tensors), then ``microseconds,bytes`` a line; or, without a
            header, one size in bytes a line.
        source: where the text is from, for messages.

    Raises:
        UsageError: a line is neither, a size is not positive, or the header's count differs from the lines.
    """
    lines = text.splitlines()
    has_header = bool(lines) and not _is_number(lines[0].split(",")[-1])
    first = _HEADER_LINES if has_header else 0
    sizes = tuple(_size_of_line(line, f"{source}:{first + i}") for i, line in enumerate(lines[first:], 1) if line)
    if not sizes:
        raise UsageError(f"{source}: no tensors in this gradient profile")
    if has_header and lines[2].strip() != str(len(sizes)):
        raise UsageError(f"{source}: the header names {lines[2].strip()} tensors, {len(sizes)} follow")
    return sizes


def model_sizes(name: str) -> tuple[int, ...]:
    """Returns the float32 gradient sizes of torchvision model `name`, last layer first.

    Raises:
        UsageError: torchvision is not installed or has no such model.
    """
    import torch

    from ringtune.benchmarks.training.vision import build_model

    # On the meta device: shapes only, no memory and no initialisation.
    with torch.device("meta"):
        parameters = list(build_model(name).parameters())
    return tuple(parameter.numel() * 4 for parameter in reversed(parameters) if parameter.requires_grad)


def gpt2_sizes() -> tuple[int, ...]:
    """Returns the float32 gradient sizes of GPT-2 small (124,439,808 parameters), last layer first.

    The output layer shares the token embedding's weight, so its gradient is complete only at the very end.

    Source: A. Radford et al., Language Models are Unsupervised Multitask Learners (2019), table 2, smallest model.
    """
    vocabulary, positions, width, layers = 50257, 1024, 768, 12
    norm = [width, width]
    attention = [width * 3 * width, 3 * width, width * width, width]
    perceptron = [width * 4 * width, 4 * width, 4 * width * width, width]
    block = [*norm, *attention, *norm, *perceptron]
    parameters = [vocabulary * width, positions * width, *block * layers, *norm]
    return tuple(4 * count for count in reversed(parameters))


def _uniform(name: str, count: int, size_bytes: int) -> GradientProfile:
    if count < 1:
        raise UsageError(f"{name!r} has no tensors; write for example 2000x4KiB")
    return GradientProfile(name, (size_bytes,) * count)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _size_of_line(line: str, where: str) -> int:
    word = line.split(",")[-1].strip()
    if not word.isdigit() or int(word) < 1:
        raise UsageError(f"{where}: expected 'microseconds,bytes' or a size in bytes, got {line!r}")
    return int(word)
