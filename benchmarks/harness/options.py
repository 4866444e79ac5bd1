"""What the commands of the benchmarks share: options, requirements and records."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console

from ringtune import runfolder
from ringtune.benchmarks.harness.devices import CPU, DEVICES
from ringtune.benchmarks.harness.peers import Selection
from ringtune.benchmarks.harness.requirements import Rule, parse_rules
from ringtune.errors import RingtuneError, UsageError

_Command = TypeVar("_Command", bound=Callable[..., Any])


def common(command: _Command) -> _Command:
    """Adds the options that all benchmarks share."""
    for option in (
        click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the record to this file."),
        click.option(
            "--threads-per-rank",
            type=click.IntRange(min=1),
            default=1,
            show_default=True,
            help="Compute threads of each rank, the same for every rank count, so that efficiency shows communication "
            "and not a smaller share of the cores.",
        ),
        click.option("-H", "--hosts", help="host:slots,... as for 'ringtune run'; default: this host."),
    ):
        command = option(command)
    return command


def on_device(command: _Command) -> _Command:
    """Adds `--device`."""
    return click.option(
        "--device",
        type=click.Choice(DEVICES),
        default=CPU,
        show_default=True,
        help="Where tensors lie; ranks take the GPUs in turn. On cuda training computes in bfloat16, channels last.",
    )(command)


def racing(command: _Command) -> _Command:
    """Adds the options that all races share."""
    for option in (
        click.option("--markdown", is_flag=True, help="Print the table once more as Markdown, for documents."),
        click.option(
            "--require-limit",
            metavar="RULES",
            help="Exit 1 when the ratio to the copy limit is below these, as in >=64MiB:0.75.",
        ),
        click.option(
            "--require",
            metavar="RULES",
            help="Exit 1 when the ratio to the best peer is below these: 1.2, or by size <=256KiB:1.0,>=64MiB:1.5, or "
            "against one peer gloo:4.",
        ),
        click.option(
            "--peers",
            help="Comma-separated: gloo, nccl, openmpi, mpich, impi, oneccl, openmpi-tuned, impi-tuned, horovod, or "
            "all. 'make bench-peers' installs them.  [default: gloo; on GPUs nccl,gloo]",
        ),
    ):
        command = option(command)
    return command


def rules_of(text: str | None, peers: Selection) -> tuple[Rule, ...]:
    """Returns what `--require` asks for.

    Raises:
        UsageError: no rule, or no peer to compare with.
    """
    rules = parse_rules(text) if text else ()
    if rules and not peers.peers:
        raise UsageError("--require compares with the best peer, and no peer takes part; see --peers")
    return rules


def senders_of(peers: Selection, benchmark: str) -> dict[str, str]:
    """Returns contender -> peer that sends it."""
    return {name: spec.name for spec in peers.peers for name in spec.contenders[benchmark]}


def require(missed: list[str]) -> None:
    """Raises when something was missed.

    Raises:
        RingtuneError: with all that was missed.
    """
    if missed:
        raise RingtuneError("slower than required:\n" + "\n".join(missed))


def write_record(path: Path | None, record: dict[str, Any], console: Console) -> None:
    """Writes the file of `--json`, if there is one to write."""
    if path is not None:
        runfolder.write_json(path, record)
        console.print(f"record: {path}", soft_wrap=True)
