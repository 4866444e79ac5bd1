"""A method of torch's that stands behind one of ours for a while."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Replaced:
    """A method replaced by what a function makes of it, until it is removed.

    Args:
        owner: The class.
        name: The method.
        make: Returns the new method; gets the original.
    """

    def __init__(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        self._owner, self._name, self._original = owner, name, getattr(owner, name)
        setattr(owner, name, make(self._original))

    def remove(self) -> None:
        """Put the original back."""
        setattr(self._owner, self._name, self._original)
