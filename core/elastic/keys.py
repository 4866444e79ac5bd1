"""Keys of the rendezvous store by which the launcher of an elastic job and its workers communicate.

A *worker* is one process, a *generation* one set of ranks. Each worker counts how often it has joined (1, 2, ...).

===========================  =========  ==========================================================================
key                          writer     value
===========================  =========  ==========================================================================
``ready/<worker>/<count>``   worker     JSON: it waits for its rank in the next generation; how far it is in the
                                        timeline (`Continuation.came`), or ``[]``
``news``                     worker     counter, one up for every ``ready``
``place/<worker>/<count>``   launcher   JSON: ``{"generation", "rank", "size", "environ", "timeline"}`` (`JobTimeline`),
                                        or ``{"leave": reason}``
``notice``                   launcher   JSON: ``{"number", "result"}``, the latest change of hosts; there from the start
``gone/<worker>``            store      ``1``: the worker's connection ended: its process did, or its host is cut off
===========================  =========  ==========================================================================
"""

from __future__ import annotations


def ready(job: str, worker: int, count: int) -> str:
    """Key by which a worker says that it waits for its rank."""
    return f"{job}/elastic/ready/{worker}/{count}"


def assignment(job: str, worker: int, count: int) -> str:
    """Key under which a worker finds its rank."""
    return f"{job}/elastic/place/{worker}/{count}"


def gone(job: str, worker: int) -> str:
    """Key that is set when the worker's connection to the store has ended, whatever ended it."""
    return f"{job}/elastic/gone/{worker}"


def news(job: str) -> str:
    """Counter of all `ready` keys."""
    return f"{job}/elastic/news"


def notice(job: str) -> str:
    """Key of the latest change of hosts."""
    return f"{job}/elastic/notice"
