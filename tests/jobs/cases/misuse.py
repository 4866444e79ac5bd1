"""What makes no sense as an argument of the collectives, and what does: for the tests of all front ends."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

import ringtune.torch as hvd

SURROGATE = "loss_\udc80"
_NO_TENSOR = (None, 1, 2.5, "tensor", [1.0, 2.0], {"a": 1}, object())

WRONG: dict[str, tuple[Any, ...]] = {
    "tensor": (*_NO_TENSOR, np.ones(2), torch.ones(2, dtype=torch.complex32), torch.ones(2, device="meta")),
    "array": (*_NO_TENSOR, np.ones(2, dtype=np.longdouble), np.array(["a"]), np.array([object()])),
    "tensors": (None, 3, "ab", torch.ones(2), {"a": torch.ones(1)}, [1.0], [torch.ones(2), None]),
    "arrays": (None, 3, "ab", np.ones(2), [1.0], [np.ones(2), None]),
    "name": (5, 2.5, b"bytes", ["a"], SURROGATE, torch.ones(1)),
    "op": (1.0, "Sum", 99, -1, True, [1], torch.ones(2)),
    "average": (1.5, "yes", [True], torch.ones(2)),
    "prescale_factor": ("2", None, [2.0], 1j, torch.ones(2), object()),
    "postscale_factor": ("2", None, [2.0], 1j, torch.ones(2), object()),
    "root_rank": (0.0, "0", None, [0], torch.ones(2)),
    "process_set": (None, -1, 0, "all", [0, 1]),
    "splits": (3, "11", [1.0, 1.0], [1, -1], [2**70, 0], [None, 1], torch.tensor([1.0, 1.0])),
    "compression": (None, 5, "fp16", object()),
    "out": (5, "out", [1.0]),
    "optimizer": (None, 5, "sgd"),
}
"""By the names that arguments have."""


def calls(front: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the collectives of a front end by name."""
    kinds = "allreduce", "allgather", "broadcast", "alltoall", "reducescatter", "barrier"
    for name in front.__all__:
        function = getattr(front, name)
        if callable(function) and not inspect.isclass(function) and any(kind in name for kind in kinds):
            yield name, function


def right(front: Any, function: Callable[..., Any]) -> dict[str, Any]:
    """Return arguments that make sense to a function."""
    one = torch.ones(2, 2) if front is hvd else np.ones((2, 2))
    if function.__name__ == "sparse_allreduce_async":
        one = torch.ones(2, 2).to_sparse()
    parameters = inspect.signature(function).parameters
    model = torch.nn.Linear(2, 2)
    values: dict[str, Any] = {
        "tensor": one, "array": one, "tensors": [one, one], "arrays": [one, one], "root_rank": 0, "obj": {"a": 1},
        "params": model.state_dict(), "optimizer": torch.optim.SGD(model.parameters(), 0.1), "op": hvd.Sum,
        "name": "a name",
    }  # fmt: skip
    return {name: values[name] for name, parameter in parameters.items() if parameter.default is parameter.empty}
