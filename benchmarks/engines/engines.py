"""The engines that the benchmark starts jobs in, each on this machine alone."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from ringtune.benchmarks.engines import job
from ringtune.errors import UsageError

Start = Callable[[str, str, int, int], None]
"""Runs a job: kind, folder, steps and width, as `job.train` takes them."""


@contextmanager
def spark(ranks: int) -> Iterator[Mapping[str, Start]]:
    """Opens a SparkContext with so many task slots; yields ways to start a job by name."""
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.ml.torch.distributor import TorchDistributor
    from pyspark.sql import SparkSession

    import ringtune.spark

    with tempfile.TemporaryDirectory() as folder:
        session = (
            SparkSession.builder.master(f"local[{ranks}]")
            .config("spark.ui.enabled", "false")
            .config("spark.local.dir", folder)
            .config("spark.sql.warehouse.dir", f"{folder}/warehouse")
            .getOrCreate()
        )
        session.sparkContext.setLogLevel("OFF")

        def own(*arguments: Any) -> None:
            ringtune.spark.run(job.train, args=arguments, num_proc=ranks)

        def distributor(*arguments: Any) -> None:
            TorchDistributor(num_processes=ranks, local_mode=False, use_gpu=False).run(job.train, *arguments)

        yield {"ringtune.spark.run": own, "TorchDistributor": distributor}
        session.stop()


@contextmanager
def ray(ranks: int) -> Iterator[Mapping[str, Start]]:
    """Starts a Ray node with so many cores; yields ways to start a job by name."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # The names of its sockets may have 107 characters.
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        os.environ["RAY_TMPDIR"] = folder
        import ray as engine
        from ray.train import RunConfig, ScalingConfig
        from ray.train.torch import TorchConfig, TorchTrainer

        from ringtune.ray import RayExecutor

        engine.init(num_cpus=ranks, include_dashboard=False, log_to_driver=False, logging_level="ERROR")

        def own(*arguments: Any) -> None:
            executor = RayExecutor(RayExecutor.create_settings(timeout_s=300), num_workers=ranks)
            try:
                executor.start()
                executor.run(job.train, args=arguments)
            finally:
                executor.shutdown()

        def trainer(*arguments: Any) -> None:
            TorchTrainer(
                lambda: job.train(*arguments),
                torch_config=TorchConfig(backend="gloo"),
                scaling_config=ScalingConfig(num_workers=ranks),
                run_config=RunConfig(storage_path=str(Path(folder) / "results")),
            ).fit()

        yield {"RayExecutor": own, "TorchTrainer": trainer}
        engine.shutdown()


ENGINES: Mapping[str, Callable[[int], AbstractContextManager[Mapping[str, Start]]]] = {
    "spark": spark,
    "ray": ray,
}
OWN = {"spark": "ringtune.spark.run", "ray": "RayExecutor"}
"""Which of an engine's ways is ringtune's."""
_MODULES = {"spark": ("pyspark", "torch"), "ray": ("ray", "torch")}


def find(names: list[str]) -> tuple[list[str], dict[str, str]]:
    """Returns which engines this Python has, and of the others why not.

    Raises:
        UsageError: no such engine.
    """
    present, absent = [], {}
    for name in names:
        if name not in ENGINES:
            raise UsageError(f"unknown engine {name!r}; known: {', '.join(ENGINES)}")
        missing = [module for module in _MODULES[name] if importlib.util.find_spec(module) is None]
        if missing:
            absent[name] = f"this Python has no {missing[0]}; that of `make test-engines ENGINES=cluster` has"
        elif name == "spark" and shutil.which("java") is None:
            absent[name] = "Spark needs Java"
        else:
            present.append(name)
    return present, absent
