"""Opening a session: settings, placement, rendezvous, runtime, run folder."""

from __future__ import annotations

import atexit
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from ringtune import native, runfolder, session
from ringtune.algorithms import load_table
from ringtune.bootstrap import departure, interfaces, mpi_carrier, open_files, rank_process
from ringtune.bootstrap.deadline import Deadline
from ringtune.bootstrap.meeting_watch import MeetingWatch
from ringtune.bootstrap.placement import Placement, detect
from ringtune.bootstrap.rendezvous import Rendezvous
from ringtune.config import Config
from ringtune.elastic import membership
from ringtune.errors import ConfigError, InvalidArgument
from ringtune.gpu import nccl, ring
from ringtune.output_variables import LOG_LEVELS
from ringtune.session import JobContext, Session
from ringtune.variables import GPU_DATA_PATHS, OVERLAPS, TRANSPORTS

T = TypeVar("T")

_LOOK_EVERY_S = 1.0

_rendezvous = Rendezvous()


def open_session(config: Config | None = None) -> Session:
    """Open a session and make it the current one; see `Session.open`."""
    if session.state.current is not None:
        raise InvalidArgument("a session is open in this process already: close it (shutdown()) before opening another")
    environ: Mapping[str, str] = os.environ
    if config is None:
        environ = rank_process.own_environment(environ)
        config = Config.from_environ(environ)
    placement = _find_placement(config, environ)
    open_files.make_room(placement.rank, placement.size, config.sockets_per_peer)
    address = _rendezvous.find(placement, config, environ) if placement.size > 1 else ("", 0)
    job = _rendezvous.job_key(placement, address)
    config = replace(config, secret=_rendezvous.secret or None)
    options = runtime_options(config, placement, address, job)
    end_links = _carry_links(config, placement, options)

    watch = MeetingWatch(job)

    def meet() -> Session:
        client = native.load().StoreClient
        began_ns = time.monotonic_ns()
        with native.translated():
            store = None
            if placement.size > 1:
                store = client(*address, options.secret, config.start_timeout_ns, "rank", placement.rank, job)
                watch.begin(store, placement)
            # Rank 0 says it before the ranks meet, the others ask after that: who does not come is told by the meeting.
            run_folder = _own_folder(config, placement, store, job)
            # One time limit for all of the start.
            options.connect_timeout_ns = max(1, config.start_timeout_ns - (time.monotonic_ns() - began_ns))
            runtime = native.load().Runtime(options)
            if store is not None:
                watch.end(store)
            if run_folder is None:
                assert store is not None  # there is a rank 0 beside this one
                run_folder = Path(store.get(_folder_key(job), config.start_timeout_ns).decode())
            return Session(config, placement, runtime, JobContext(job, store, run_folder, end_links))

    try:
        opened = interruptible(meet, watch.look) if placement.size > 1 else meet()
    except BaseException:
        end_links()
        raise
    finally:
        _rendezvous.met()
    session.state.current = opened
    rank_process.publish(placement, address, job, _rendezvous.secret)
    try:
        opened.begin()
    except BaseException:
        opened.close()
        raise
    departure.watch_exits()
    atexit.unregister(session.end_of_process)
    atexit.register(session.end_of_process)
    return opened


def _find_placement(config: Config, environ: Mapping[str, str]) -> Placement:
    """Return this process's placement; a worker of an elastic job asks its launcher for it, and may wait."""
    if config.worker is None:
        return detect(config, environ)
    member = membership.join(config)
    found = interruptible(lambda: member.next_assignment(config.elastic_timeout_ns))
    # As in a job with fixed ranks, so that torch.distributed can meet in each generation anew.
    os.environ.update(found.environ)
    return Placement(
        rank=found.rank,
        size=found.size,
        local_rank=None,
        local_size=None,
        host=config.hostname or socket.gethostname(),
        store=config.store,
        launcher="ringtune",
        job=config.job or "",
        generation=found.generation,
        timeline=found.timeline,
    )


def _carry_links(config: Config, placement: Placement, options: Any) -> Callable[[], None]:
    """Let MPI carry the bytes of links if the settings say so; return what ends that."""
    if config.transport != "mpi" or placement.size == 1:
        return lambda: None
    deadline = Deadline.after_ns(config.start_timeout_ns)
    carrier = interruptible(lambda: mpi_carrier.start(placement, deadline))
    options.set_carrier(carrier.take)
    return carrier.close


def interruptible(call: Callable[[], T], look: Callable[[], None] = lambda: None) -> T:
    """Return the result of the call; Ctrl-C interrupts the wait although the call blocks outside Python.

    An interrupted call is left to its thread, which ends with the process or at the call's own deadline.

    Args:
        call: What blocks.
        look: Called every second meanwhile; what it raises ends the wait too.
    """
    done: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(call())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="ringtune-open", daemon=True)
    thread.start()
    look_at = time.monotonic() + _LOOK_EVERY_S
    while thread.is_alive():
        thread.join(0.1)
        if thread.is_alive() and time.monotonic() >= look_at:
            look()
            look_at = time.monotonic() + _LOOK_EVERY_S
    if failed:
        raise failed[0]
    return done[0]


def runtime_options(config: Config, placement: Placement, address: tuple[str, int], job: str) -> Any:
    """Translate settings and placement into the native runtime's options.

    Raises:
        ConfigError: ``RINGTUNE_THREAD_AFFINITY`` names fewer cores than there are ranks on this host.
    """
    options = native.load().RuntimeOptions()
    options.rank, options.size, options.host = placement.rank, placement.size, placement.host
    options.store_host, options.store_port = address
    options.secret = config.secret or ""
    options.job = job
    if (at := placement.timeline) is not None:
        options.set_generation(placement.generation, placement.job, at.ranks, at.first_step, at.first_batch, *at.clock)
    options.bind_address = config.own_address or interfaces.outward_address(address[0]) or ""
    options.transport = TRANSPORTS.index(config.transport)
    options.sockets_per_peer, options.tcp_congestion = config.sockets_per_peer, config.tcp_congestion
    options.connect_timeout_ns, options.idle_timeout_ns = config.start_timeout_ns, config.idle_timeout_ns
    options.silence_ns = config.liveness_timeout_ns
    options.knobs = config.knobs.as_dict()
    options.overlap = OVERLAPS.index(config.overlap)
    if config.algorithm_table is not None:
        options.algorithm_rules = load_table(config.algorithm_table)
    options.stall_warning_ns = 0 if config.stall_check_disable else config.stall_warning_ns
    options.stall_shutdown_ns = 0 if config.stall_check_disable else config.stall_shutdown_ns
    options.thread_affinity = _core_of(config, placement)
    options.cuda_driver = config.cuda_driver
    options.gpu_data_path, options.gpu_part_bytes = GPU_DATA_PATHS.index(config.gpu_data_path), config.gpu_part_bytes
    options.nccl_libraries = nccl.libraries(config)
    if (kernels := ring.kernels(config)) is not None:
        options.set_gpu_kernels(kernels)
    options.log_level = LOG_LEVELS.index(config.log_level)
    return options


def _core_of(config: Config, placement: Placement) -> int:
    if not config.thread_affinity:
        return -1
    local_rank = placement.rank if placement.local_rank is None else placement.local_rank
    cores = len(config.thread_affinity)
    if "THREAD_AFFINITY" in config.horovods and cores < (placement.local_size or local_rank + 1):
        if placement.rank == 0 or placement.local_size is None:
            session.warn(
                f"HOROVOD_THREAD_AFFINITY has no effect: it names {cores} cores, not one for each rank of a host"
            )
        return -1
    if local_rank >= cores:
        raise ConfigError(
            f"RINGTUNE_THREAD_AFFINITY names {cores} cores, but this is local rank {local_rank}: "
            "name one core for each rank of the host"
        )
    return config.thread_affinity[local_rank]


def _own_folder(config: Config, placement: Placement, store: Any, job: str) -> Path | None:
    """Return the run folder's path if this rank knows it; rank 0 chooses it and tells the others through the store."""
    if config.run_dir is not None:
        return config.run_dir.absolute()
    if placement.rank != 0:
        return None
    folder = runfolder.planned_folder(runfolder.script_name())
    if store is not None:
        store.set(_folder_key(job), str(folder).encode())
    return folder


def _folder_key(job: str) -> str:
    return f"{job}/run_folder"
