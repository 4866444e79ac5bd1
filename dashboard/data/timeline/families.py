"""What the calls and kernels of a profile are for, by their names: the families that give them their colours."""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np

from ringtune.dashboard.data.timeline.index import TimelineIndex, View
from ringtune.dashboard.theme import FAMILIES
from ringtune.timeline.spans import Ints
from ringtune.timeline.vocabulary import FOREIGN_STAGES

_PATTERNS = {
    "data": "dataloader",
    "collective": r"^c10d::|nccl|gloo|^mpi:|record_param_comms|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all",
    "optimizer": r"optimizer\.|_foreach_|_fused_(?:adam|sgd)|multi_tensor_apply",
    "matrix": r"conv(?!ert)|gemm|gemv|xmma|cutlass|wgrad|dgrad|(?:add|bmm|baddb|\b|_)mm(?!a)|bmm|matmul|linear|einsum"
    r"|attention|flash_|fmha|\bdot\b|addmv",
    "layer": r"norm(?!al_)|relu|gelu|silu|softmax|sigmoid|tanh|dropout|pool|loss|embedding|threshold_b"
    r"|clamp_min",
    "copy": r"copy|clone|contiguous|memcpy|memset|aten::(?:to|cat|stack)$|catarray",
}
"""Which names are of which family; where several fit, the first has it. Keys are those of `FAMILIES`."""

_SAMPLES = 16
"""The number of spans of a block that are looked at."""
NONE = -1


@lru_cache(1 << 16)
def family_of(name: str) -> int:
    """Return the place among `FAMILIES` of a call or kernel of that name; `NONE` where it is of none."""
    for place, family in enumerate(FAMILIES):
        if re.search(_PATTERNS[family], name, re.IGNORECASE):
            return place
    return NONE


def families(index: TimelineIndex, view: View) -> Ints:
    """Return the family of every shape; `NONE` for those that no other tool recorded, or that are of none.

    A block has the family that takes most of the time of some of its spans, evenly spread over it. One line a rank
    shows phases alone.
    """
    shapes, spans = view.shapes, index.spans
    found = np.full(len(shapes), NONE, dtype=np.int64)
    foreign = np.array([lane.stage in FOREIGN_STAGES for lane in view.lanes], dtype=np.bool_)[shapes.lane]
    chosen = np.flatnonzero(foreign)
    if view.compact or not len(chosen):
        return found
    count = np.minimum(shapes.count[chosen], _SAMPLES)
    of = np.repeat(np.arange(len(chosen)), count)
    turn = np.arange(len(of)) - np.repeat(np.cumsum(count) - count, count)
    place = shapes.first[chosen][of] + turn * shapes.count[chosen][of] // count[of]
    names, number = np.unique(spans.name[place], return_inverse=True)
    family = np.array([family_of(spans.names[name]) for name in names.tolist()], dtype=np.int64)[number]
    weight = np.zeros((len(chosen), len(FAMILIES) + 1))
    np.add.at(weight, (of, family - NONE), np.maximum(spans.end_ns[place] - spans.begin_ns[place], 1))
    found[chosen] = weight.argmax(axis=1) + NONE
    return found
