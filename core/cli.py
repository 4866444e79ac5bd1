"""The command ``ringtune``: a table of commands, loaded when they are used.

No other module of core knows the layers above it, here as strings. Rooms raise `RingtuneError` (or `UsageError`);
`main` alone turns them into a message and an exit code.
"""

from __future__ import annotations

import errno
import os
import resource
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

import click

from ringtune import standard_streams
from ringtune.command_table import Entry, LazyGroup, ReaderGone, missing_module, print_version
from ringtune.errors import RingtuneError, UsageError

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141


COMMANDS = {
    "run": Entry("ringtune.launch.command:run", "Start a training job on several ranks."),
    "record": Entry("ringtune.launch.record:record", "Record a job of any launcher and any backend of torch."),
    "check": Entry("ringtune.check:check", "Show what is built and available on this machine."),
    "metrics": Entry("ringtune.meters.command:metrics", "List the metrics for Prometheus; write Grafana's dashboard."),
    "timeline": Entry("ringtune.timeline.cli:timeline", "Read timelines: where the time went."),
    "tune": Entry("ringtune.tuner.cli:tune", "Tune the knobs while a job trains.", "tuner"),
    "predict": Entry("ringtune.tuner.predict_cli:predict", "Predict a job on more ranks or another network.", "tuner"),
    "dashboard": Entry("ringtune.dashboard.cli:dashboard", "Serve the dashboard over the run folders.", "dashboard"),
    "report": Entry("ringtune.dashboard.cli:report", "Write a run as one self-contained HTML file.", "dashboard"),
    "bench": Entry("ringtune.benchmarks.cli:bench", "Measure throughput and scaling efficiency.", "bench"),
}

_NETWORK = Entry("ringtune.tuner.preflight_cli", "Behind `ringtune check --network`.", "tuner")


def check_network(**wanted: Any) -> None:
    """Run `ringtune check --network`, which lies in a layer above.

    Raises:
        RingtuneError: What it needs is not installed, or the ranks failed.
    """
    module = _layer_above(_NETWORK)
    module.check_network(module.NetworkCheck(**wanted))


_OUTLOOK = Entry("ringtune.tuner.outlook", "Predictions of `ringtune timeline doctor`.", "tuner")


def _foresee(trace: Any, name: str) -> Any:
    """Predict what changes of a traced job would give, by the model in a layer above `ringtune.timeline`.

    Raises:
        RingtuneError: What it needs is not installed, or the model does not fit the trace.
    """
    return _layer_above(_OUTLOOK).foresee(trace, name)


def _layer_above(entry: Entry) -> Any:
    try:
        return import_module(entry.target)
    except ModuleNotFoundError as error:
        raise missing_module(error, entry.extra) from error


@click.group(cls=LazyGroup, entries=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=print_version, help="Show the version."
)
@click.option("--traceback", "show_traceback", is_flag=True, help="Show where an error was raised (for developers).")
@click.pass_context
def cli(ctx: click.Context, show_traceback: bool) -> None:
    """See, predict and cut the cost of communication in data-parallel training."""
    ctx.obj = _foresee
    if show_traceback:
        os.environ["RINGTUNE_TRACEBACK"] = "1"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: Words after ``ringtune``; default: the process's.

    Returns:
        The exit code: what the command returned, 1 after an error, 2 after wrong use, 130 after an interrupt.
    """
    standard_streams.make_fit()
    code = _run(arguments)
    # Output may still be buffered: a full device or a reader that has gone shows only here.
    if (error := standard_streams.flush()) is not None and code == 0:
        code = EXIT_BROKEN_PIPE if isinstance(error, BrokenPipeError) else _report(error)
    return code


def _run(arguments: Sequence[str] | None) -> int:
    try:
        result = cli.main(args=arguments, prog_name="ringtune", standalone_mode=False)
    except (KeyboardInterrupt, click.Abort):
        return EXIT_INTERRUPTED
    except ReaderGone:
        # The reader has closed the pipe, as in `ringtune timeline summary F | head`.
        return EXIT_BROKEN_PIPE
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (RingtuneError, OSError) as error:
        return _report(error)
    except ModuleNotFoundError as error:
        if (missing := missing_module(error)) is error:
            raise
        return _report(missing)
    return result if isinstance(result, int) else 0


def _report(error: Exception) -> int:
    # Read here and not through Config: the configuration itself may be what is wrong.
    if os.environ.get("RINGTUNE_TRACEBACK", "").strip() not in ("", "0"):
        traceback.print_exception(type(error), error, error.__traceback__)
    said = _in_words(error) if isinstance(error, OSError) else str(error)
    with suppress(OSError):  # standard error cannot be written, so the message is lost
        click.secho(f"ringtune: {said}", fg="red", err=True)
    return EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILURE


def _in_words(error: OSError) -> str:
    """Say what the system refused, and what can be done."""
    reason = error.strerror or str(error)
    if error.errno in (errno.EMFILE, errno.ENFILE):
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return f"{reason}: this process may have {limit} descriptors; raise the limit (ulimit -n 1024)"
    if isinstance(error, FileNotFoundError) and not _has_working_folder():
        return "the working folder has been deleted; go to another (cd) and start again"
    if error.filename is not None:
        return f"{os.fsdecode(error.filename)}: {reason}"
    return f"the output cannot be written: {reason}" if standard_streams.is_output_error(error) else reason


def _has_working_folder() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
