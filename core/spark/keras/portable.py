"""Keras's objects on their way through pickle: as Keras itself saves them, with the classes that they need."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras


class Portable:
    """An object of Keras that becomes the object itself when it is unpickled.

    Args:
        value: A model, with its weights; or an optimizer, a loss or a metric, as it was configured.
        custom: The classes and functions that are not Keras's own, by name.
    """

    def __init__(self, value: Any, custom: Mapping[str, Any]) -> None:
        self._value, self._custom = value, dict(custom)

    def __reduce__(self) -> tuple[Any, ...]:
        if isinstance(self._value, keras.Model):
            return _model, (_archive(self._value), self._custom)
        return _object, (keras.saving.serialize_keras_object(self._value), self._custom)


def portable(value: Any, custom: Mapping[str, Any]) -> Any:
    """Return a value in which Keras's objects are portable; lists and dictionaries are looked through."""
    if isinstance(value, list | tuple):
        return [portable(one, custom) for one in value]
    if isinstance(value, dict):
        return {name: portable(one, custom) for name, one in value.items()}
    kinds = (keras.Model, keras.optimizers.Optimizer, keras.losses.Loss, keras.metrics.Metric)
    return Portable(value, custom) if isinstance(value, kinds) else value


def _archive(model: Any) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        model.save(path)
        return path.read_bytes()


def _model(content: bytes, custom: Mapping[str, Any]) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        path.write_bytes(content)
        return keras.saving.load_model(path, custom_objects=dict(custom), compile=False, safe_mode=False)


def _object(config: Any, custom: Mapping[str, Any]) -> Any:
    return keras.saving.deserialize_keras_object(config, custom_objects=dict(custom), safe_mode=False)
