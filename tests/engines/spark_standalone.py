"""A standalone cluster of Spark on this machine: a master and workers, each a process of its own as on real hosts."""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import pyspark

_READY_WITHIN_S = 90.0


class Standalone:
    """A master and workers, on loopback alone, until `close`.

    Args:
        folder: For their files.
        workers: Number of workers, of one core each.

    Attributes:
        master: The master's address.
    """

    def __init__(self, folder: Path, workers: int) -> None:
        self._folder, self._processes = folder, list[subprocess.Popen[Any]]()
        common = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        try:
            log = self._start("master", ["org.apache.spark.deploy.master.Master", *common])
            self.master = _found(log, r"Starting Spark master at (spark://\S+)", 1)
            own = ["--cores", "1", "--memory", "700m", "--work-dir", str(folder / "work")]
            for number in range(workers):
                self._start(f"worker-{number}", ["org.apache.spark.deploy.worker.Worker", *common, *own, self.master])
            _found(log, r"Registering worker", workers)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End all of them; executors end with their workers."""
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            process.wait(30)

    def _start(self, name: str, arguments: list[str]) -> Path:
        log = self._folder / f"{name}.log"
        home = Path(pyspark.__file__).parent
        own = {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m",
               # The service for submitting programs would take a port of its own choice.
               "SPARK_DAEMON_JAVA_OPTS": "-Dspark.master.rest.enabled=false"}  # fmt: skip
        with open(log, "wb") as file:
            self._processes.append(
                subprocess.Popen(
                    [str(home / "bin" / "spark-class"), *arguments],
                    env={**os.environ, **own},
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                )
            )
        return log


def _found(log: Path, pattern: str, times: int) -> str:
    """Wait until a line stands so often in a log; return what its first group, or all of it, holds."""
    deadline = time.monotonic() + _READY_WITHIN_S
    while len(found := re.findall(pattern, text := log.read_text(encoding="utf-8", errors="replace"))) < times:
        assert time.monotonic() < deadline, f"{pattern!r} is not in {log} {times} times:\n{text[-2000:]}"
        time.sleep(0.1)
    return str(found[0])
