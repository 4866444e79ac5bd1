"""`HorovodRunner`: the call that scripts from Databricks make (``sparkdl.HorovodRunner(np=2).run(main, **kwargs)``)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from ringtune.errors import InvalidArgument
from ringtune.spark import jobs


class HorovodRunner:
    """Runs a function on ranks and returns what it returned on rank 0.

    Args:
        np: Number of ranks: from 1 on tasks of the Spark cluster, below 0 so many processes on the driver's machine.
        driver_log_verbosity: ``all`` shows what the ranks printed, ``log_callback_only`` does not.

    Raises:
        InvalidArgument: A value is none of these.
    """

    def __init__(self, *, np: int, driver_log_verbosity: str = "log_callback_only") -> None:
        if not isinstance(np, int) or isinstance(np, bool) or np == 0:
            raise InvalidArgument(f"HorovodRunner: np={np!r}: expected ranks on the cluster (2) or the driver (-2)")
        if driver_log_verbosity not in ("all", "log_callback_only"):
            raise InvalidArgument(
                f"HorovodRunner: driver_log_verbosity={driver_log_verbosity!r}: expected all or log_callback_only"
            )
        self.num_processor = np
        self._shows = driver_log_verbosity == "all"

    def run(self, main: Callable[..., Any], **kwargs: Any) -> Any:
        """Call ``main(**kwargs)`` on every rank and return rank 0's result.

        Raises:
            RankFailed: A rank raised an exception, which is the cause of this one, or its process died.
        """
        if self.num_processor < 0:
            from ringtune.launch.run_function import run

            return run(main, kwargs=kwargs, num_proc=-self.num_processor)[0]
        out, err = (sys.stdout, sys.stderr) if self._shows else (None, None)
        return jobs.run(main, kwargs=kwargs, num_proc=self.num_processor, stdout=out, stderr=err)[0]
