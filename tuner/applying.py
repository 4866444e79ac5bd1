"""The end of `ringtune tune`: the environment that keeps a result, printed or written; all of it as one document."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
import orjson

from ringtune import layout
from ringtune.output_file import is_stdout, write_output
from ringtune.tuner.messages import environment, settled
from ringtune.tuner.records import Record, ResultRecord


def apply(result: ResultRecord, where: str, *, quiet: bool = False) -> None:
    """Print the environment that keeps the result, or write it into a file.

    Args:
        result: How the session ended.
        where: ``print`` or a file name.
        quiet: Print nothing on standard output.

    Raises:
        RingtuneError: The file cannot be written.
    """
    lines = environment(result)
    if where == "print":
        if lines and not quiet:
            click.echo("ringtune tune: to keep it, set:")
            click.echo("\n".join(lines))
        return
    head = f"# ringtune tune: {result.decision}: {settled(result)}"
    write_output(where, ("\n".join([head, *lines]) + "\n").encode())
    click.echo(f"ringtune tune: environment written to {where}", err=quiet or is_stdout(where))


def print_document(records: Sequence[Record], result: ResultRecord | None, run: Path, exit_code: int) -> None:
    """Print a session as JSON: its records as in the journal, the result (null for none), the lines that keep it."""
    document = {
        "format": layout.FORMAT,
        "run": str(run),
        "exit_code": exit_code,
        "result": None if result is None else result.as_dict(),
        "keep": [] if result is None else environment(result),
        "records": [record.as_dict() for record in records],
    }
    click.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2))
