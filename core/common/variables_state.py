"""The elastic state of frameworks that train variables, whatever makes and broadcasts them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ringtune.common.elastic import ObjectState
from ringtune.common.keras.variables import array_of
from ringtune.common.rank_info import rank
from ringtune.errors import InvalidArgument


class VariablesState(ObjectState):
    """Variables, which are kept as arrays, beside plain attributes.

    Args:
        bcast_object: Broadcasts an object from rank 0 and returns it.
        **kwargs: Attributes and their first values.
    """

    def __init__(self, bcast_object: Callable[[Any], Any], **kwargs: Any) -> None:
        self._saved_values: list[Any] = []
        super().__init__(bcast_object=bcast_object, get_rank=rank, **kwargs)
        self._save_variables()

    def variables_to_keep(self) -> list[Any]:
        """Return the variables, in the same order on all ranks."""
        raise NotImplementedError

    def broadcast_values(self) -> None:
        """Overwrite the variables with rank 0's."""
        raise NotImplementedError

    def save(self) -> None:
        self._save_variables()
        super().save()

    def restore(self) -> None:
        # Variables that have come since the commit keep their values: they are the optimizer's, and are made anew.
        for variable, value in zip(self.variables_to_keep(), self._saved_values, strict=False):
            variable.assign(value)
        super().restore()

    def saved(self) -> Any:
        return super().saved(), self._saved_values

    def take_saved(self, saved: Any) -> None:
        attributes, values = saved
        shapes, own = [one.shape for one in values], [tuple(one.shape) for one in self.variables_to_keep()]
        if shapes != own:
            raise InvalidArgument(
                f"the state kept in RINGTUNE_ELASTIC_STATE has variables of the shapes {shapes}, this training {own}: "
                "empty the folder, or name another one"
            )
        self._saved_values = values
        super().take_saved(attributes)

    def sync(self) -> None:
        self.broadcast_values()
        self._save_variables()
        super().sync()

    def _save_variables(self) -> None:
        self._saved_values = [array_of(one) for one in self.variables_to_keep()]
