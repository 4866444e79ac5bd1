"""File descriptors of the launcher: how many a job needs, and the limit of its process.

For each rank the launcher holds three pipes, the rank agent's process, log files and the ends of the rank's connections
to the store; a rank holds fewer. So a limit that suffices for the launcher suffices for its ranks.
"""

from __future__ import annotations

import os
import resource
from contextlib import suppress

from ringtune.errors import UsageError
from ringtune.launch.options import LaunchOptions

_STORE = 2
_LOOP = 3
"""The launcher's own: its selector, and what wakes that."""
_RANK = 4
"""Three pipes and the process of a rank's rank agent."""
_STARTING = 8
"""A rank agent while it is started, with both ends of all pipes."""
_CONNECTIONS = 2
"""Connections of a rank to the store: its session's and its runtime's. A job of one rank has none."""
_RANK_OWN = 16
_PER_PEER = 2
"""What a rank holds, and what rank 0 holds for each of its peers."""

_given: int | None = None
"""The soft limit that this process had before it was raised; None: it has not been."""


def require(ranks: int, options: LaunchOptions) -> None:
    """Check that this process may open what a job needs; raises the soft limit to the hard one where necessary.

    Args:
        ranks: Ranks that the job begins with.
        options: The job's.

    Raises:
        UsageError: The hard limit is too low.
    """
    global _given
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = needed(ranks, options)
    if soft == resource.RLIM_INFINITY or soft >= count:
        return
    if hard != resource.RLIM_INFINITY and hard < count:
        raise UsageError(
            f"a job of {ranks} rank{'s' if ranks > 1 else ''} needs {count} descriptors in the launcher, and the limit "
            f"of open files (RLIMIT_NOFILE) is {hard}; raise it: ulimit -n {max(1024, 2 * count)}"
        )
    _given = soft if _given is None else _given
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def needed(ranks: int, options: LaunchOptions) -> int:
    """Return how many descriptors this process holds at most until the ranks have met.

    Those that are open now are counted in; the store is not open yet.
    """
    logs = ranks * ((options.keep_logs and options.run_dir is not None) + 2 * (options.output_folder is not None))
    at_start = (ranks - 1) * _RANK + _STARTING
    at_work = _LOOP + ranks * (_RANK + (_CONNECTIONS if ranks > 1 else 0))
    return len(os.listdir("/proc/self/fd")) - 1 + _STORE + logs + max(at_start, at_work)


def hand_down(pid: int, ranks: int) -> None:
    """Give a child that has started nothing yet the soft limit that this process was started with.

    It keeps the raised one where the original one is too low for a rank of the job.

    Args:
        pid: Of the child.
        ranks: Ranks on this host.
    """
    if _given is not None and _given >= _RANK_OWN + _PER_PEER * ranks:
        with suppress(ProcessLookupError):  # the child has ended, which the launcher's loop notices
            hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)[1]
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (_given, hard))
