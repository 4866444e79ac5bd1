"""`ringtune tune --apply`: the environment that keeps a result, printed or written."""

from __future__ import annotations

from pathlib import Path

import click

from ringtune.errors import RingtuneError
from ringtune.tuner.records import ResultRecord
from ringtune.tuner.words import environment, settled


def apply(result: ResultRecord, where: str) -> None:
    """Print the environment that keeps the result, or write it into a file.

    Args:
        result: How the session ended.
        where: ``print`` or a file name.

    Raises:
        RingtuneError: The file cannot be written.
    """
    lines = environment(result)
    if where == "print":
        if lines:
            click.echo("ringtune tune: to keep it, set:")
        for line in lines:
            click.echo(line)
        return
    head = f"# ringtune tune: {result.decision}: {settled(result)}"
    try:
        Path(where).write_text("\n".join([head, *lines]) + "\n", encoding="utf-8")
    except OSError as error:
        raise RingtuneError(f"--apply {where}: cannot be written: {error.strerror}") from None
    click.echo(f"ringtune tune: environment written to {where}")
