"""``ringtune metrics``: which metrics a running job exports, and the dashboard for Grafana."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from ringtune.meters.catalogue import CATALOGUE, markdown
from ringtune.output_file import write_output
from ringtune.standard_streams import screen_width

GRAFANA_FILE = Path(__file__).parent / "grafana.json"
"""The dashboard: import it in Grafana and choose the data source."""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--grafana", "target", metavar="FILE", help="Write the dashboard for Grafana into FILE; - prints it.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print the list as Markdown.")
def metrics(target: str | None, as_markdown: bool) -> None:
    """List the metrics of `ringtune run --metrics-port PORT ...`, or write the dashboard for Grafana."""
    if target is not None:
        _write(target)
    elif as_markdown:
        click.echo(markdown())
    else:
        table = Table("metric", "kind", "labels", "meaning", box=None)
        for metric in CATALOGUE:
            table.add_row(metric.name, metric.kind, ", ".join(metric.all_labels), metric.meaning)
        Console(width=screen_width(200)).print(table)


def _write(target: str) -> None:
    document = GRAFANA_FILE.read_text(encoding="utf-8")
    if target == "-":
        click.echo(document, nl=False)
        return
    write_output(target, document.encode())
