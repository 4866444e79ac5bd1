"""Saving estimators and models of any framework, alone and in a ``Pipeline`` of Spark ML.

Their parameters hold functions and models, which are pickled with cloudpickle: load only what you trust.
"""

from __future__ import annotations

import base64
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter, MLReadable, MLReader, MLWritable, MLWriter

_KEY = "ringtune"


class Persistent(MLReadable, MLWritable):  # type: ignore[misc]
    """Gives a class with parameters ``write()``, ``save(path)``, ``read()`` and ``load(path)``."""

    def kept(self, value: Any) -> Any:
        """Return what is pickled of a parameter, which becomes the parameter when it is unpickled."""
        return value

    def write(self) -> MLWriter:
        """Return what saves this object."""
        return _Writer(self)

    @classmethod
    def read(cls) -> Any:
        """Return what loads an object of this class."""
        return _Reader()


class _Writer(MLWriter):  # type: ignore[misc]
    def __init__(self, instance: Any) -> None:
        super().__init__()
        self._instance = instance

    def saveImpl(self, path: str) -> None:  # noqa: N802 - Spark's name
        """Write the metadata, as Spark's own stages do, with the parameters among them."""
        instance = self._instance
        found = {param.name: instance.kept(value) for param, value in instance._paramMap.items()}
        text = base64.b64encode(cloudpickle.dumps(found)).decode("ascii")
        bare = type(instance)()
        bare._resetUid(instance.uid)
        bare._paramMap, bare._defaultParamMap = {}, {}
        DefaultParamsWriter.saveMetadata(bare, path, self.sc, extraMetadata={_KEY: text})


class _Reader(MLReader):  # type: ignore[misc]
    def load(self, path: str) -> Any:
        """Return the object that was saved at a path."""
        metadata = DefaultParamsReader.loadMetadata(path, self.sc)
        module, _, name = metadata["class"].rpartition(".")
        kind = getattr(__import__(module, fromlist=[name]), name)
        found = cloudpickle.loads(base64.b64decode(metadata[_KEY]))
        instance = kind()
        instance._resetUid(metadata["uid"])
        instance._set(**found)
        return instance
