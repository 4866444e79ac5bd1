"""`Ranks`: engines of ipyparallel as the ranks of a job that stays open between calls and cells."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ringtune import runfolder, session
from ringtune.bootstrap import interfaces
from ringtune.engines import ranks
from ringtune.engines.ranks import Meeting
from ringtune.errors import InvalidArgument, RingtuneError

_START_TIMEOUT_S = 120
_RECORDS = "RINGTUNE_TIMELINE"


class Ranks:
    """Engines as ranks, from the moment this is made until `close`.

    What runs on them (``%%px``, ``ranks.call``) opens the session by ``hvd.init()`` or ``dist.init_process_group``; it
    stays open, so that the next cell goes on in it.

    Args:
        engines: Number of engines to start on this machine, or a client of ipyparallel's with all its engines.
        env: Further variables of the ranks. ringtune's of this process go along.
        timeline: Whether to record one.

    Attributes:
        client: The client.

    Raises:
        InvalidArgument: The number is wrong, or the client has no engines.
        RingtuneError: ipyparallel is not installed, or an engine has an open session.
    """

    def __init__(self, engines: Any, env: Mapping[str, str] | None = None, *, timeline: bool = True) -> None:
        self._cluster: Any = None
        self._engines: list[int] = []
        self._before: dict[int, dict[str, str]] = {}
        if isinstance(engines, int):
            self._cluster, self.client = _start(engines)
        elif hasattr(engines, "ids") and hasattr(engines, "__getitem__"):
            self.client = engines
        else:
            raise InvalidArgument(f"Ranks: expected a number of engines or an ipyparallel.Client, got {engines!r}")
        if not self.client.ids:
            raise InvalidArgument("Ranks: the client has no engines: start some (ipcluster start -n 2)")
        run = runfolder.planned_folder("notebook")
        records = {"RINGTUNE_RUN_DIR": str(run), _RECORDS: str(run / "trace.json")} if timeline else {}
        try:
            self._job = ranks.new_job("ipyparallel", {**records, **(env or {})})
            self._join()
        except BaseException:
            self._stop_cluster()
            raise

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self._engines)

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Call a function on every rank and return the results by rank.

        Args:
            function: The function; it may be defined in the notebook.
            args: Positional arguments.
            kwargs: Keyword arguments.

        Raises:
            Exception: Those of the ranks, as ipyparallel raises them.
        """
        view = self.client[self._engines]
        view.use_cloudpickle()
        return list(view.apply_sync(function, *args, **kwargs))

    def run_folder(self) -> Path | None:
        """Return the run folder of the present session; None while none is open, or nothing is written."""
        found = self._on_first(_run_folder)
        return Path(found) if found is not None else None

    def report(self, output: Path) -> str:
        """Write what was recorded so far as one HTML file; recording goes on.

        Args:
            output: The file.

        Returns:
            The HTML.

        Raises:
            RingtuneError: Nothing was recorded, or the command `ringtune report` cannot write it.
        """
        run = self.run_folder()
        if run is None:
            raise RingtuneError("there is no timeline: call hvd.init() on the ranks first (%%px), then train")
        recorded = self.client[self._engines].apply_sync(_pause)
        try:
            command = [sys.executable, "-m", "ringtune.cli", "report", str(run), "--output", str(output)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        finally:
            if any(recorded):
                self.client[self._engines].apply_sync(_go_on)
        if done.returncode != 0:
            raise RingtuneError(
                done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "no report was written"
            )
        return output.read_text(encoding="utf-8")

    def close(self) -> None:
        """Let the ranks leave their job; engines that were started here end. Idempotent."""
        if self._engines:
            for engine, before in self._before.items():
                if engine in self.client.ids:
                    self.client[engine].apply_async(ranks.leave, before).wait(_START_TIMEOUT_S)
            self._engines = []
        self._stop_cluster()

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _join(self) -> None:
        ids = list(self.client.ids)
        places = dict(zip(ids, self.client[ids].apply_sync(_place), strict=True))
        machines = list(dict.fromkeys(host for host, _ in places.values()))
        self._engines = sorted(ids, key=lambda engine: (machines.index(places[engine][0]), engine))
        hosts = [places[engine][0] for engine in self._engines]
        addresses = [places[engine][1] for engine in self._engines]
        meeting: Meeting = self._on_first(ranks.serve, self._job, addresses)
        self._before = {
            engine: self.client[engine].apply_sync(
                ranks.join, self._job, ranks.variables(self._job, rank, hosts, meeting)
            )
            for rank, engine in enumerate(self._engines)
        }

    def _on_first(self, function: Callable[..., Any], *args: Any) -> Any:
        return self.client[self._engines[0]].apply_sync(function, *args)

    def _stop_cluster(self) -> None:
        if self._cluster is not None:
            self._cluster.log.setLevel(logging.ERROR)  # that engines end is no news from here on
            self.client.close()
            self._cluster.stop_cluster_sync()
            self._cluster = None


def _start(count: int) -> tuple[Any, Any]:
    if count < 1:
        raise InvalidArgument(f"Ranks: {count} engines: expected at least 1")
    try:
        import ipyparallel
    except ImportError as error:
        raise RingtuneError(
            f"several ranks under a notebook need ipyparallel ({error}): pip install ipyparallel"
        ) from None
    log = logging.getLogger("ringtune.ipyparallel")
    log.setLevel(logging.WARNING)
    cluster = ipyparallel.Cluster(n=count, log=log)
    return cluster, cluster.start_and_connect_sync()


def _place() -> tuple[str, str]:
    host = socket.gethostname()
    return host, interfaces.outward_address(host) or host


def _run_folder() -> str | None:
    now = session.state.current
    return None if now is None or now.run_folder is None else str(now.run_folder)


def _pause() -> bool:
    now = session.state.current
    if now is None or not now.recording:
        return False
    now.stop_timeline()
    return True


def _go_on() -> None:
    now = session.state.current
    if now is not None:
        now.start_timeline(os.environ.get(_RECORDS))
