"""The commands ``ringtune dashboard`` and ``ringtune report``."""

from __future__ import annotations

import gc
from pathlib import Path

import click

from ringtune import layout
from ringtune.errors import UsageError
from ringtune.output_file import is_stdout


@click.command()
@click.argument("runs", type=click.Path(path_type=Path), default=Path(layout.RUNS_FOLDER))
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8050, show_default=True, help="Port; 0 for any free one."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--token", default="", help="Secret that every request must carry; generated when --host needs one.")
@click.option("--prefix", default="/", show_default=True, help="Path under which a proxy shows the dashboard.")
@click.option("--page", default="", help="Print the address of this page of the run, for example timeline.")
def dashboard(runs: Path, port: int, host: str, token: str, prefix: str, page: str) -> None:
    """Serve the dashboard over the folder RUNS (or over one run) until interrupted with Ctrl-C."""
    from ringtune.bootstrap.interfaces import is_loopback
    from ringtune.dashboard.page_registry import TABS
    from ringtune.dashboard.routes import Route, href
    from ringtune.dashboard.server import ServeOptions, Server, new_token

    if token and len(token) < 8:
        raise UsageError("--token is too short: give at least 8 characters, or none to have one generated")
    if not is_loopback(host) and not token:
        token = new_token()
    clean = "/" + prefix.strip("/") + ("/" if prefix.strip("/") else "")
    if page and (page not in TABS or not layout.is_run(runs)):
        raise UsageError(f"--page {page}: expected a run folder for RUNS, and one of its pages: {', '.join(TABS)}")
    first = href(Route(page, runs.resolve().name), "") if page else ""
    server = Server(ServeOptions(runs, host, port, token, clean, first))
    click.echo(f"ringtune dashboard over {runs.resolve()}\n  {server.url}")
    if not is_loopback(host):
        click.echo(
            "  Other machines can reach it, unencrypted: use it, and share its token, only in a network you trust."
        )
    click.echo("  Stop with Ctrl-C.")
    # Imported modules stay in memory; a search for garbage in them takes some eighty milliseconds of a page's poll.
    gc.collect()
    gc.freeze()
    try:
        server.run()
    except KeyboardInterrupt:
        pass
    finally:
        server.close()


_FOLDER = click.Path(path_type=Path, file_okay=False)


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), default=Path("report.html"), show_default=True
)
@click.option("--tensorboard", type=_FOLDER, metavar="FOLDER", help="Instead, write event files of its steps.")
@click.option("--mlflow", type=_FOLDER, metavar="FOLDER", help="Instead, write its steps into a store of files.")
@click.option("--wandb", type=_FOLDER, metavar="FOLDER", help="Instead, write its steps as an offline run.")
def report(run: Path, output: Path, **tools: Path | None) -> None:
    """Write the folder RUN as one self-contained HTML file that opens anywhere, without a network.

    Or write its steps (step time, exposed communication, waiting for late ranks, efficiency) for TensorBoard, MLflow
    or Weights & Biases; nothing is sent anywhere.
    """
    asked = {tool: folder for tool, folder in tools.items() if folder is not None}
    if asked:
        from ringtune.dashboard.exports import export

        for tool, folder in asked.items():
            click.echo(f"{folder}: {export(run, tool, folder)} steps for {tool}")
        return
    from ringtune.dashboard.report import write_report

    written = write_report(run, output)
    click.echo(f"{output}: {written / 2**20:.1f} MiB, opens in any browser without a network", err=is_stdout(output))
