"""The state of a torch job: models, optimizers and samplers by handlers, everything else as plain attributes."""

from __future__ import annotations

import copy
from typing import Any

import torch

from ringtune.common.elastic import ObjectState, require_names
from ringtune.torch.basics import rank
from ringtune.torch.elastic.sampler import ElasticSampler
from ringtune.torch.functions import broadcast_object, broadcast_optimizer_state, broadcast_parameters

__all__ = [
    "ModelStateHandler",
    "OptimizerStateHandler",
    "SamplerStateHandler",
    "StateHandler",
    "TorchState",
    "get_handler_registry",
    "set_handler_registry",
]


class StateHandler:
    """Keeps one value: saved at a commit, restored after a failure, synchronised from rank 0.

    Args:
        value: What is kept.
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def set_value(self, value: Any) -> None:
        """Keep another value from now on."""
        self.value = value
        self.save()

    def save(self) -> None:
        """Copy the present state."""
        raise NotImplementedError

    def restore(self) -> None:
        """Return to the copy."""
        raise NotImplementedError

    def sync(self) -> None:
        """Take over rank 0's state."""
        raise NotImplementedError

    def saved(self) -> Any:
        """Return the copy, for a process that is started later; see `ringtune.common.elastic.State.saved`."""
        return self._saved

    def take_saved(self, saved: Any) -> None:
        """Return to a copy of an earlier process."""
        self._saved = saved
        self.restore()

    _saved: Any = None


class ModelStateHandler(StateHandler):
    """A `torch.nn.Module`."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__(model)
        self._saved: Any = copy.deepcopy(model.state_dict())

    def save(self) -> None:
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        self.value.load_state_dict(self._saved)

    def sync(self) -> None:
        broadcast_parameters(self.value.state_dict(), root_rank=0)
        self.save()


class OptimizerStateHandler(StateHandler):
    """A `torch.optim.Optimizer`, wrapped by `DistributedOptimizer` or not."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(optimizer)
        self._saved: Any = copy.deepcopy(optimizer.state_dict())

    def save(self) -> None:
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        # load_state_dict adopts the tensors that it is given, and the copy must stay as it was saved.
        self.value.load_state_dict(copy.deepcopy(self._saved))

    def sync(self) -> None:
        broadcast_optimizer_state(self.value, root_rank=0)
        self.save()


class SamplerStateHandler(StateHandler):
    """An `ElasticSampler`."""

    def __init__(self, sampler: ElasticSampler) -> None:
        super().__init__(sampler)
        self._saved: Any = copy.deepcopy(sampler.state_dict())

    def save(self) -> None:
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        self.value.load_state_dict(self._saved)

    def sync(self) -> None:
        self.value.load_state_dict(broadcast_object(self.value.state_dict()))
        self.save()


_registry: list[tuple[type, type[StateHandler]]] = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (ElasticSampler, SamplerStateHandler),
]


def get_handler_registry() -> list[tuple[type, type[StateHandler]]]:
    """Return which handler keeps values of which class; the first match counts."""
    return _registry


def set_handler_registry(registry: list[tuple[type, type[StateHandler]]]) -> None:
    """Replace the registry."""
    global _registry
    _registry = registry


class TorchState(ObjectState):
    """State of a torch job.

    Args:
        model: Model, if there is one.
        optimizer: Optimizer, if there is one.
        **kwargs: Further attributes. Models, optimizers and `ElasticSampler` are kept by handlers, others are copied.
    """

    def __init__(
        self, model: torch.nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None, **kwargs: Any
    ) -> None:
        values = {**kwargs, **{k: v for k, v in (("model", model), ("optimizer", optimizer)) if v is not None}}
        handlers = {name: found for name, value in values.items() if (found := _handler_for(value)) is not None}
        # __setattr__ reads this attribute, so it is set first.
        object.__setattr__(self, "_handlers", handlers)
        for name, handler in handlers.items():
            object.__setattr__(self, name, handler.value)
        plain = {name: value for name, value in values.items() if name not in handlers}
        super().__init__(bcast_object=broadcast_object, get_rank=rank, **plain)

    def save(self) -> None:
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        for handler in self._handlers.values():
            handler.sync()
        super().sync()

    def saved(self) -> Any:
        return {**super().saved(), **{name: handler.saved() for name, handler in self._handlers.items()}}

    def take_saved(self, saved: Any) -> None:
        require_names(saved, [*self._handlers, *self._saved_state])
        for name, handler in self._handlers.items():
            handler.take_saved(saved[name])
        super().take_saved({name: saved[name] for name in self._saved_state})

    def reset(self) -> None:
        """Let samplers partition their rest over the new ranks, also when no sync follows."""
        for handler in self._handlers.values():
            if isinstance(handler.value, ElasticSampler):
                handler.value.reset()

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name in self._handlers:
            self._handlers[name].set_value(value)

    _handlers: dict[str, StateHandler]


def _handler_for(value: Any) -> StateHandler | None:
    return next((handler(value) for kind, handler in _registry if isinstance(value, kind)), None)
