"""Averaging gradients over the ranks: what an optimizer and a trainer do alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ringtune.common.argument_checks import check_factor, check_index, check_process_set, refuse
from ringtune.common.compression import check_compression
from ringtune.common.process_sets import ProcessSet
from ringtune.errors import InvalidArgument
from ringtune.mxnet.collectives import allreduce_, grouped_allreduce_


@dataclass(frozen=True)
class Averaging:
    """How gradients are averaged.

    Attributes:
        owner: What has been given the arguments, for messages.
        predivide: Gradients are divided by it before the sum and by size/predivide after it.
        groups: How many groups of consecutive gradients are reduced together; 0: each alone.
        process_set: The ranks that take part.
        compression: How they travel.
    """

    owner: str
    predivide: float
    groups: int
    process_set: ProcessSet
    compression: Any

    def __post_init__(self) -> None:
        check_factor(self.predivide, f"{self.owner}: gradient_predivide_factor")
        if not float(self.predivide) > 0:
            raise InvalidArgument(f"{self.owner}: gradient_predivide_factor={self.predivide}: expected more than 0")
        check_index(self.groups, f"{self.owner}: num_groups")
        if self.groups < 0:
            raise InvalidArgument(f"{self.owner}: num_groups={self.groups}: expected 0 or more")
        check_process_set(self.process_set, f"{self.owner}: process_set")
        check_compression(self.compression, f"{self.owner}: compression")

    def reduce(self, gradients: Sequence[Any], names: Sequence[str]) -> None:
        """Replace gradients by their averages, unless this rank is in none of the set; returns at once."""
        if not self.process_set.included():
            return
        how: dict[str, Any] = {
            "prescale_factor": 1 / float(self.predivide),
            "postscale_factor": float(self.predivide),
            "process_set": self.process_set,
            "compression": self.compression,
        }
        if self.groups == 0:
            for index, (gradient, name) in enumerate(zip(gradients, names, strict=True)):
                allreduce_(gradient, name=name, priority=-index, **how)
            return
        length = -(-len(gradients) // self.groups)
        for index, begin in enumerate(range(0, len(gradients), max(length, 1))):
            some = slice(begin, begin + length)
            grouped_allreduce_(gradients[some], name=names[begin], priority=-index, **how)


def check_prefix(value: Any, what: str) -> None:
    """Refuse what is no beginning of a name."""
    if value is not None and not isinstance(value, str):
        refuse(what, value, "a string, or None")
