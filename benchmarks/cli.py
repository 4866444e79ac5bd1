"""The commands of `ringtune bench`."""

from __future__ import annotations

import importlib
import signal
import threading
from types import FrameType

import click

# Name -> where the command stands. It is imported when it is used: `ringtune bench --help` needs neither torch nor
# scipy. A new benchmark adds a line here.
COMMANDS = {
    "allreduce": "ringtune.benchmarks.comm.commands:allreduce",
    "collectives": "ringtune.benchmarks.comm.commands:collectives",
    "dashboard": "ringtune.benchmarks.viewer.pages:dashboard_command",
    "gradients": "ringtune.benchmarks.comm.commands:gradients",
    "hook": "ringtune.benchmarks.comm.commands:hook",
    "links": "ringtune.benchmarks.netlab.commands:links",
    "merge": "ringtune.benchmarks.viewer.merge:merge_command",
    "negotiation": "ringtune.benchmarks.comm.commands:negotiation",
    "predict": "ringtune.benchmarks.predict.command:predict",
    "resnet": "ringtune.benchmarks.training.commands:resnet",
    "train": "ringtune.benchmarks.training.commands:train",
    "trace": "ringtune.benchmarks.viewer.overhead:trace",
    "tuner": "ringtune.benchmarks.tuning.command:tuner",
}


class LazyGroup(click.Group):
    """A group whose commands are imported on first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name].partition(":")
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command)
        return command


@click.group(cls=LazyGroup)
def bench() -> None:
    """Measure training, scaling and single collectives, beside peers in the same run."""
    if threading.current_thread() is threading.main_thread():  # the only one that may; a test may call from another
        signal.signal(signal.SIGTERM, _leave)


def _leave(number: int, _: FrameType | None) -> None:
    """End like an error does: jobs are ended, and network namespaces are taken away."""
    raise SystemExit(128 + number)
