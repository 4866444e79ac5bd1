"""``ringtune tune``: runs a training job with the tuner on and shows what it finds."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from ringtune import layout, runfolder
from ringtune.errors import UsageError
from ringtune.launch import LaunchOptions, launch
from ringtune.launch.launcher import run_name
from ringtune.timeline.units import several
from ringtune.tuner.applying import apply, print_document
from ringtune.tuner.messages import sentence
from ringtune.tuner.progress import Follower, LiveView, PlainView
from ringtune.tuner.records import Record, ResultRecord, TrialRecord
from ringtune.tuner.restarts.command import tune_by_restarts

_VARIABLES = {
    "max_trials": "RINGTUNE_AUTOTUNE_MAX_TRIALS",
    "steps_per_trial": "RINGTUNE_AUTOTUNE_STEPS_PER_TRIAL",
    "warmup_steps": "RINGTUNE_AUTOTUNE_WARMUP_STEPS",
    "horizon": "RINGTUNE_AUTOTUNE_HORIZON",
    "seed": "RINGTUNE_AUTOTUNE_SEED",
    "study": "RINGTUNE_AUTOTUNE_STUDY",
}

_OF_RESTARTS = ("run_limit", "allow_compression")


@dataclass(frozen=True)
class TuneOptions:
    """What the command line asked for.

    Attributes:
        job: The job to run, without the tuner's variables.
        settings: The tuner's variables.
        apply: ``print``, or the file that receives the environment of the result.
        as_json: Print one JSON document at the end, and all else on standard error.
    """

    job: LaunchOptions
    settings: dict[str, str]
    apply: str = "print"
    as_json: bool = False


@click.command(context_settings={"allow_interspersed_args": False, "help_option_names": ["-h", "--help"]})
@click.option("-np", "--num-proc", type=int, metavar="N", help="Number of ranks; default: all slots of the hosts.")
@click.option("-H", "--hosts", metavar="HOST:SLOTS,...", help="Where the ranks run; default: this machine.")
@click.option("-hostfile", "--hostfile", type=click.Path(path_type=Path), help="File of lines `host slots=N`.")
@click.option("--run-dir", type=click.Path(path_type=Path), help="Run folder; default: runs/<script>-<time>.")
@click.option("--max-trials", type=click.IntRange(min=1), help="Most settings tried, the default included [16].")
@click.option("--steps-per-trial", type=click.IntRange(min=1), help="Steps measured in one trial [10].")
@click.option("--warmup-steps", type=click.IntRange(min=0), help="Steps before the first trial [5].")
@click.option(
    "--budget",
    metavar="PERCENT|TIME",
    help="Most of the training time that the search may lose [2%]; 0: no bound. --restarts: most time of all runs.",
)
@click.option("--horizon", type=click.IntRange(min=1), help="Steps in which further trials must pay [10000].")
@click.option("--study", metavar="URL", help="Optuna storage to start from and add to [the user's own memory].")
@click.option("--seed", type=click.IntRange(min=0), help="Seed of the suggestions.")
@click.option("--apply", default="print", metavar="print|FILE", help="Print the result's environment, or write it.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print the session as one JSON document; all else goes to standard error."
)
@click.option("--restarts", is_flag=True, help="One short run of COMMAND a trial, for settings that need a restart.")
@click.option("--run-limit", type=click.FloatRange(min=1), help="--restarts: seconds after which a run failed [600].")
@click.option("--allow-compression", is_flag=True, help="--restarts: gradients may travel as bf16 or fp16.")
@click.option(
    "--try", "own", multiple=True, metavar="NAME=V,V", help="--restarts: a variable to try too; may be repeated."
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="COMMAND...")
def tune(command: tuple[str, ...], **values: Any) -> int:
    """Tune fusion buffer and cycle time while COMMAND trains on several ranks, or what it starts with (--restarts).

    \b
    ringtune tune -np 2 python train.py
    ringtune tune -np 2 --restarts --budget 10min python train.py
    ringtune tune -np 8 -H node1:4,node2:4 --apply tuned.env python train.py

    The job trains as always and ends as always; the setting that a fresh comparison confirms stays for the rest of
    it. Ctrl-C ends the job and keeps what was learned.

    DDP's static_graph promises that each step uses the same parameters: --restarts tries it only with
    --try RINGTUNE_DDP_STATIC_GRAPH=1.
    """  # noqa: D301 (\b is click's mark for text that is not to be wrapped)
    run_dir: Path = values["run_dir"] or runfolder.planned_folder(run_name(command) if command else "tune")
    job = LaunchOptions(
        command=list(command),
        num_proc=values["num_proc"],
        hosts=values["hosts"],
        hostfile=values["hostfile"],
        run_dir=run_dir.absolute(),
    )
    if values["restarts"]:
        return tune_by_restarts(job, values)
    wrong = [f"--{name.replace('_', '-')}" for name in _OF_RESTARTS if values[name]] + ["--try"] * bool(values["own"])
    if wrong:
        raise UsageError(f"{wrong[0]} is for --restarts")
    settings = {variable: str(values[name]) for name, variable in _VARIABLES.items() if values[name] is not None}
    if values["budget"] is not None:
        settings["RINGTUNE_AUTOTUNE_BUDGET"] = _percent(values["budget"])
    return run_tuned(TuneOptions(job, settings, str(values["apply"]), values["as_json"]))


def _percent(text: str) -> str:
    """Return the number in ``2%`` or ``2``.

    Raises:
        UsageError: It is none, or none from 0 to 100.
    """
    word = text.strip().removesuffix("%").strip()
    try:
        fits = 0.0 <= float(word) <= 100.0
    except ValueError:
        fits = False
    if not fits:
        raise UsageError(f"--budget {text}: expected a share of the training time from 0 % to 100 %, for example 2%")
    return word


def run_tuned(options: TuneOptions) -> int:
    """Run the job, show its tuning session and say how it ended.

    Returns:
        The job's exit code.

    Raises:
        UsageError: The job's options cannot work.
        RingtuneError: The job cannot be started, or the environment cannot be written.
    """
    assert options.job.run_dir is not None
    journal = layout.tuning_journal(options.job.run_dir)
    job = replace(options.job, settings={**options.settings, "RINGTUNE_AUTOTUNE": "1"})
    console = Console()
    with contextlib.ExitStack() as stack:
        if options.as_json:
            job = replace(job, echo=False, on_line=_on_stderr)
            follower = stack.enter_context(Follower(journal, PlainView(err=True).show))
        elif console.is_terminal and not console.is_dumb_terminal:
            view = stack.enter_context(LiveView(console))
            job = replace(job, echo=False, on_line=view.line)
            follower = stack.enter_context(Follower(journal, view.show))
        else:
            follower = stack.enter_context(Follower(journal, PlainView().show))
        exit_code = launch(job)
    for line in closing_words(follower.records, options.job.run_dir):
        click.echo(line, err=options.as_json)
    if follower.result is not None:
        apply(follower.result, options.apply, quiet=options.as_json)
    if options.as_json:
        print_document(follower.records, follower.result, options.job.run_dir, exit_code)
    return exit_code


def _on_stderr(rank: int, stream: str, text: str) -> None:
    """Print a line of the job."""
    del stream
    click.echo(f"[{rank}] {text}", err=True)


def closing_words(records: Sequence[Record], run: Path) -> list[str]:
    """Return what is to be said at the end of the job."""
    result = next((record for record in reversed(records) if isinstance(record, ResultRecord)), None)
    if not records:
        return [
            "ringtune tune: nothing was tuned: no training session with two or more ranks reached its first trial. "
            "Does the script call init(), and optimizer.step() of a DistributedOptimizer often enough? One that knows "
            "nothing of ringtune (DDP, FSDP2) is tuned with --restarts."
        ]
    trials = [record for record in records if isinstance(record, TrialRecord) and record.source != "confirm"]
    if result is None:
        kept = f"{several(len(trials), 'trial')} {'is' if len(trials) == 1 else 'are'} kept for the next session"
        return [
            f"ringtune tune: the job ended before the search was finished and without saying so; {kept} "
            f"(journal: {layout.tuning_journal(run)})"
        ]
    lines = [f"ringtune tune: {sentence(result)}"]
    balance = f"time {'lost' if result.lost_ns >= 0 else 'won'} by searching {abs(result.lost_ns) / 1e9:.2f} s"
    lines.append(f"ringtune tune: {several(len(trials), 'trial')}, {balance}; run: {run}")
    if result.decision == "interrupted" and trials:
        lines.append("ringtune tune: the trials are kept; the next session of this job starts from the best of them")
    return lines
