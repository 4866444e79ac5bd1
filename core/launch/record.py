"""``ringtune record``: a timeline of a job that another launcher starts and another backend carries."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

import click

from ringtune import runfolder
from ringtune.errors import RingtuneError, UsageError
from ringtune.launch import after_run
from ringtune.launch.launcher import run_name


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("trace.json"),
    show_default=True,
    help="Merged timeline of all ranks.",
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True, metavar="COMMAND...")
def record(output: Path, command: tuple[str, ...]) -> int:
    """Run COMMAND and record every collective of torch.distributed in the ranks that it starts.

    COMMAND is any launcher with its arguments, or a script. Nothing of the script changes: collectives of Gloo, MPI and
    NCCL are recorded with their times, those of tensors on GPUs by the GPU's clock.

    \b
    ringtune record -- torchrun --nproc-per-node 4 train.py
    ringtune record -o trace.json -- mpirun -np 4 python train.py
    """  # noqa: D301 (\b is click's mark for text that is not to be wrapped)
    if shutil.which(command[0]) is None:
        raise UsageError(f"{command[0]}: no such program; give the command as you would run it, after --")
    folder = Path(os.environ.get("RINGTUNE_RUN_DIR", "").strip() or runfolder.planned_folder(run_name(command)))
    code = _run(command, output.absolute(), folder.absolute())
    if not folder.is_dir():
        raise RingtuneError(
            "nothing was recorded: no process of the command called torch.distributed.init_process_group, or ringtune "
            f"is not installed where its Python is (the command ended with {code})"
        )
    after_run.call(folder.absolute(), lambda sentence: print(f"ringtune: {sentence}", file=sys.stderr, flush=True))
    return code


def _run(command: tuple[str, ...], output: Path, folder: Path) -> int:
    """Run the command to its end and return its exit code; SIGTERM and Ctrl-C are its own to answer."""
    environ = {**os.environ, "RINGTUNE_TIMELINE": str(output), "RINGTUNE_RUN_DIR": str(folder)}
    with subprocess.Popen(command, env=environ) as child:

        def hand_on(number: int, frame: FrameType | None) -> None:
            child.send_signal(number)

        before = {
            signal.SIGTERM: signal.signal(signal.SIGTERM, hand_on),
            # The terminal sends it to the command too.
            signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN if os.isatty(0) else hand_on),
        }
        try:
            code = child.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    return code if code >= 0 else 128 - code
