"""What ranks do in the tests of `Session.submit`."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from ringtune import operations, session
from ringtune.errors import RingtuneError
from ringtune.operations import HOST, Operation

FLOAT32, SUM = 7, 1


def described(kind: str, name: str, source: np.ndarray[Any, Any], target: np.ndarray[Any, Any]) -> Operation:
    """Return an operation of that kind on arrays of float32, every field of it given."""
    known = {
        "name": name, "input": source.ctypes.data, "output": target.ctypes.data, "shape": source.shape,
        "dtype": FLOAT32, "op": SUM, "prescale": 1.0, "postscale": 1.0, "group": "", "group_size": 0,
        "process_set": 0, "wire": -1, "device": HOST, "timeout_ns": 0, "root": 0, "splits": (), "sparse": False,
        "ranks": [0, 1], "number": 1,
    }  # fmt: skip
    made = getattr(operations, kind)
    operation: Operation = made(**{field.name: known[field.name] for field in fields(made)})
    return operation


def refused(faults: list[tuple[str, str, Any]]) -> list[str]:
    """Give each kind of operation each wrong field; return what is said. All of it is said before anything starts."""
    now, said = session.require(), []
    source = np.ones(4, np.float32)
    before = now.open_operations
    for kind, name, value in faults:
        operation = described(kind, "wrong", source, source.copy())
        setattr(operation, name, value)
        try:
            now.release(now.submit(operation))
            said.append("")
        except RingtuneError as error:
            said.append(str(error))
    assert now.open_operations == before
    return said
