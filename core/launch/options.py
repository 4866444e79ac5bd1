"""What a job is started with."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ringtune.launch.allocation import Allocation
    from ringtune.launch.call import Call

OnSay = Callable[[str], None]
"""Called with each message of the launcher."""
OnLine = Callable[[int, str, str], None]
"""Called with (rank, ``"stdout"`` or ``"stderr"``, line without its end) for each line a rank prints."""


@dataclass(frozen=True)
class ElasticOptions:
    """How the ranks of a job may change.

    Attributes:
        min_np: Least ranks with which the job goes on; None = `LaunchOptions.num_proc`.
        max_np: Most ranks; None = as many as there are slots.
        script: Prints the hosts there are now, ``host:slots`` by line; None = the hosts are given and stay.
        default_slots: Slots of a host whose line gives none.
        reset_limit: How often the ranks may change; None = any number of times.
        timeout_s: How long to wait for enough ranks.
        cooldown_s: Shortest and longest time before a host where ranks failed gets new ones; None = never again.
    """

    min_np: int | None = None
    max_np: int | None = None
    script: Path | None = None
    default_slots: int = 1
    reset_limit: int | None = None
    timeout_s: float = 600.0
    cooldown_s: tuple[float, float] | None = None


@dataclass(frozen=True)
class LaunchOptions:
    """A job: what to run, where, and what to do with its output.

    Attributes:
        command: Program and arguments; every rank runs the same.
        num_proc: Number of ranks, from 1; None = all slots of `hosts` or `hostfile`.
        hosts: ``host:slots,host2:slots``; None = this machine.
        hostfile: File of lines ``host slots=N``, instead of `hosts`.
        run_dir: Folder that receives what the job writes; None = no run folder.
        run_dir_optional: Whether the job goes on without that folder when it cannot be written.
        name: Name of the run in ``run.json``; empty = the command's script.
        labels: Tags of the run in ``run.json``: text by name, empty for a bare word.
        environ: Environment of the ranks before ringtune's own variables are added.
        settings: ``RINGTUNE_*`` variables (or others) that override `environ`.
        prefix_output: Whether printed lines begin with ``[rank]``.
        timestamp_output: Whether printed lines begin with the time of day.
        echo: Whether the ranks' output is printed at all (`on_line` and the log files see it anyway).
        on_line: Sees every line that a rank prints.
        on_say: Receives the launcher's messages instead of standard error.
        output_folder: Folder for ``rank.<n>/stdout`` and ``stderr``, as horovodrun's ``--output-filename``.
        keep_logs: Whether the run folder keeps each rank's output under ``logs/``.
        ssh_port: Port for ssh; None = ssh's own choice.
        ssh_identity_file: Key for ssh; None = ssh's own choice.
        failure_grace_s: How long the other ranks may go on after one failed, so that their messages are seen.
        kill_grace_s: How long a rank may take to obey SIGTERM before SIGKILL.
        interrupt_grace_s: How long the ranks may take to end after a forwarded SIGINT, SIGTERM or SIGHUP.
        stop_fd: The job is ended, as by SIGTERM, when this descriptor can be read or is at its end; for callers that
            run it in a thread, where no signal arrives. None = nothing but a signal ends it.
        verbose: Whether the launcher says what it starts.
        elastic: How the ranks may change while the job runs; None = they are fixed.
        restarts: How often a job with fixed ranks is started again when it fails.
        call: The call that the command makes on every rank, for `ringtune.run`; None = the command is a user's.
        allocation: What a batch system has given to the job, set by `launch` where no hosts are named.
    """

    command: list[str]
    num_proc: int | None = None
    hosts: str | None = None
    hostfile: Path | None = None
    run_dir: Path | None = None
    run_dir_optional: bool = False
    name: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    settings: Mapping[str, str] = field(default_factory=dict)
    prefix_output: bool = True
    timestamp_output: bool = False
    echo: bool = True
    on_line: OnLine | None = None
    on_say: OnSay | None = None
    output_folder: Path | None = None
    keep_logs: bool = False
    ssh_port: int | None = None
    ssh_identity_file: Path | None = None
    failure_grace_s: float = 3.0
    kill_grace_s: float = 5.0
    interrupt_grace_s: float = 30.0
    stop_fd: int | None = None
    verbose: bool = False
    elastic: ElasticOptions | None = None
    restarts: int = 0
    call: Call | None = None
    allocation: Allocation | None = None
