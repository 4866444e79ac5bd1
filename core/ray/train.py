"""``RingtuneConfig``: ringtune as the backend of Ray Train's `DataParallelTrainer`, for any front end."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
import ray.train
from ray.train.backend import Backend, BackendConfig

from ringtune import session
from ringtune.bootstrap import address_file
from ringtune.engines import ranks
from ringtune.engines.ranks import EngineJob

_RUN = "ringtune"
"""Name of the run folder in the storage path of the experiment."""


@dataclass
class RingtuneConfig(BackendConfig):  # type: ignore[misc]
    """Makes the workers of a training ranks of a job, in which the training function calls ``hvd.init()``.

    A worker that dies ends the attempt, named on the others; ``FailureConfig(max_failures=...)`` starts the next one,
    in which a function wrapped by ``hvd.elastic.run`` goes on from its last commit.

    Attributes:
        env: Further variables of the ranks.
        timeline: Whether to record a timeline, which goes into the folder ``ringtune`` of the experiment's storage.
    """

    env: Mapping[str, str] = field(default_factory=dict)
    timeline: bool = False

    @property
    def backend_cls(self) -> type[Backend]:
        """What starts the workers."""
        return _RingtuneBackend

    @property
    def train_func_context(self) -> Any:
        """What surrounds the training function."""
        return _training

    def to_dict(self) -> dict[str, Any]:
        """Return what Ray Train shows of this."""
        return {"timeline": self.timeline}


class _RingtuneBackend(Backend):  # type: ignore[misc]
    share_cuda_visible_devices = True

    def on_start(self, worker_group: Any, backend_config: RingtuneConfig) -> None:
        """Make the workers ranks; Ray Train calls this before each attempt."""
        job = ranks.new_job("ray-train", backend_config.env)
        placed = worker_group.execute(_place)
        places = dict(placed)  # by rank
        workers = {rank: number for number, (rank, _) in enumerate(placed)}
        hosts = [places[rank][0] for rank in range(len(places))]
        addresses = [places[rank][1] for rank in range(len(places))]
        meeting = worker_group.execute_single(workers[0], ranks.serve, job, addresses)
        ray.get(
            [
                worker_group.execute_single_async(
                    number, _join, job, ranks.variables(job, rank, hosts, meeting), backend_config.timeline
                )
                for rank, number in workers.items()
            ]
        )


def _place() -> tuple[int, tuple[str, str]]:
    return ray.train.get_context().get_world_rank(), (socket.gethostname(), ray.util.get_node_ip_address())


def _join(job: EngineJob, own: Mapping[str, str], timeline: bool) -> None:
    context = ray.train.get_context()
    storage = context.get_storage()
    experiment = f"{storage.storage_fs_path}/{context.get_experiment_name()}"
    # Attempts of one experiment share it; a later one finds what this one has committed.
    kept = address_file.private_folder() / f"state-train-{zlib.crc32(experiment.encode()):08x}"
    kept.mkdir(mode=0o700, exist_ok=True)
    more = {ranks.KEPT: str(kept)}
    if timeline:
        run = address_file.private_folder() / f"run-{job.name}"
        more |= {"RINGTUNE_RUN_DIR": str(run), "RINGTUNE_TIMELINE": str(run / "trace.json")}
    ranks.join(job, {**more, **own})


@contextmanager
def _training() -> Iterator[None]:
    """Leave the job when the training function ends, and put the run folder into the storage path."""
    try:
        yield
    except BaseException:
        session.shutdown()
        raise
    session.shutdown()
    _store_run()


def _store_run() -> None:
    from pyarrow import fs

    folder = Path(os.environ.get("RINGTUNE_RUN_DIR", ""))
    context = ray.train.get_context()
    if context.get_world_rank() != 0 or "RINGTUNE_RUN_DIR" not in os.environ or not folder.is_dir():
        return
    storage = context.get_storage()
    target = f"{storage.storage_fs_path}/{context.get_experiment_name()}/{_RUN}"
    try:
        storage.storage_filesystem.create_dir(target)
        fs.copy_files(str(folder), target, destination_filesystem=storage.storage_filesystem)
    except OSError as error:
        print(f"ringtune warning: the run folder {folder} is not in {target}: {error}", file=sys.stderr, flush=True)
        return
    if folder.parent == address_file.private_folder():
        shutil.rmtree(folder)
