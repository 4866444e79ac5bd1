"""Training on a Spark cluster: the tasks of a barrier stage as ranks.

`run` calls a function on every rank and returns the results; `run_elastic` starts the stage again when a process dies
and lets the function go on from its last commit. pyspark is imported when one of them is called.
"""

from ringtune.spark.jobs import run, run_elastic
from ringtune.spark.runner import HorovodRunner
from ringtune.spark.task import get_available_devices

__all__ = ["HorovodRunner", "get_available_devices", "run", "run_elastic"]
