"""Open files of a rank: how many it needs, and what is said when its limit (``ulimit -n``) is lower."""

from __future__ import annotations

import errno
import os
import resource

from ringtune.errors import ConfigError

_EXHAUSTED = os.strerror(errno.EMFILE)
_FILES = 6
"""Logs of steps, samples and stacks, the timeline, and what Python opens for a moment."""
_said = ""


def make_room(rank: int, size: int, sockets_per_peer: int = 1) -> None:
    """See to it that this process may open what a rank needs; raises the soft limit as far as the hard one allows.

    Args:
        rank: Its rank; rank 0 holds connections to all others, and perhaps serves their store.
        size: Ranks of the job.
        sockets_per_peer: Connections of a link between hosts.

    Raises:
        ConfigError: The hard limit is lower than what any rank of such a job opens.
    """
    global _said
    if size == 1:
        return
    opened = len(os.listdir("/proc/self/fd")) - 1
    extra = sockets_per_peer - 1
    most = 9 + 6 * size + 2 * extra * size if rank == 0 else 12 + size + extra * (size + 2)
    most += opened + _FILES
    least = opened + 9 + size
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < most and (hard == resource.RLIM_INFINITY or hard > soft):
        soft = most if hard == resource.RLIM_INFINITY else min(hard, most)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    _said = (
        f"rank {rank} of {size} needs about {most} descriptors, {opened} of which were open before, and the limit of "
        f"open files (RLIMIT_NOFILE) is {soft}; raise it: ulimit -n {max(1024, 2 * most)}"
    )
    if soft != resource.RLIM_INFINITY and soft < least:
        raise ConfigError(_said)


def explained(text: str) -> str:
    """Return the text of an error with the limit and the need in it, if the limit of open files caused it."""
    return f"{text}: {_said}" if _said and _EXHAUSTED in text and _said not in text else text
