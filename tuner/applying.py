"""`ringtune tune --apply`: the environment that keeps a result, printed or written."""

from __future__ import annotations

import click

from ringtune.output_file import is_stdout, write_output
from ringtune.tuner.messages import environment, settled
from ringtune.tuner.records import ResultRecord


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
    write_output(where, ("\n".join([head, *lines]) + "\n").encode())
    click.echo(f"ringtune tune: environment written to {where}", err=is_stdout(where))
