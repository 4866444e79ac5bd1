"""The commands of `ringtune bench`."""

from __future__ import annotations

import signal
import threading
from types import FrameType

import click

from ringtune.command_table import Entry, LazyGroup

# A new benchmark adds a line here.
COMMANDS = {
    name: Entry(f"ringtune.benchmarks.{target}", summary, "bench")
    for name, target, summary in (
        ("allreduce", "comm.commands:allreduce", "Time of one blocking allreduce by size."),
        ("collectives", "comm.commands:collectives", "Time of the other collectives by size."),
        ("dashboard", "viewer.pages:dashboard_command", "Pages of the dashboard in a browser, also of a running job."),
        ("engines", "engines.command:engines", "Start-up and step time of jobs in Spark and Ray."),
        ("frameworks", "comm.commands:frameworks", "Sums inside compiled code of TensorFlow, JAX and MXNet."),
        ("gradients", "comm.commands:gradients", "Time to reduce all gradients of a step."),
        ("hook", "comm.commands:hook", "Cost of submitting a gradient from a hook."),
        ("links", "netlab.commands:links", "Allreduce between hosts with shaped links, beside iperf3."),
        ("merge", "viewer.merge:merge_command", "Merging and analysing a large trace: time and memory."),
        ("negotiation", "comm.commands:negotiation", "Messages and time of the control plane by ranks."),
        ("predict", "predict.command:predict", "Predicted step times beside measured ones."),
        ("resnet", "training.commands:resnet", "Images per second and scaling efficiency of a model."),
        ("trace", "viewer.overhead:trace", "What recording a timeline adds to a step."),
        ("train", "training.commands:train", "Real training beside processes that do not communicate."),
        ("tuner", "tuning.command:tuner", "The tuner beside other ways to search."),
    )
}


@click.group(cls=LazyGroup, entries=COMMANDS)
def bench() -> None:
    """Measure training, scaling and single collectives, beside peers in the same run."""
    if (
        threading.current_thread() is threading.main_thread()
    ):  # only the main thread may set a handler; a test may call from another
        signal.signal(signal.SIGTERM, _leave)


def _leave(number: int, _: FrameType | None) -> None:
    """End like an error does: jobs are ended, and network namespaces are removed."""
    raise SystemExit(128 + number)
