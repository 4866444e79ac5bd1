"""Groups of commands that are loaded when they are used, and the words for a package that is not installed."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import click

from ringtune.errors import RingtuneError, UsageError

# Modules whose absence has a better explanation than the command's own extra.
_EXTRA_OF_MODULE = {
    "torch": "torch",
    "optuna": "tuner",
    "scipy": "tuner",
    "duckdb": "timeline",
    "dash": "dashboard",
    "dash_ag_grid": "dashboard",
    "dash_mantine_components": "dashboard",
    "plotly": "dashboard",
    "waitress": "dashboard",
    "torchvision": "bench",
    "sklearn": "bench",
    "mpi4py": "mpi",
}


@dataclass(frozen=True)
class Entry:
    """A row of the table.

    Attributes:
        target: ``module:attribute`` of the click command.
        summary: One line for ``ringtune --help``, which must import no command.
        extra: Extra of the package that brings what the command imports; empty if the base is enough.
    """

    target: str
    summary: str
    extra: str = ""


class ReaderGone(Exception):
    """The reader of the output has gone. Click would turn a BrokenPipeError into exit code 1 by itself."""


class LazyGroup(click.Group):
    """A group that imports a command's module when the command is called, and only that one.

    Args:
        entries: The commands by name.
        fields: Of `click.Group`.
    """

    def __init__(self, *fields: Any, entries: Mapping[str, Entry], **named: Any) -> None:
        super().__init__(*fields, **named)
        self._entries = entries

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = self._entries.get(cmd_name)
        if entry is None:
            return None
        module, _, attribute = entry.target.partition(":")
        try:
            command = getattr(import_module(module), attribute)
        except ModuleNotFoundError as error:
            raise missing_module(error, entry.extra) from error
        assert isinstance(command, click.Command), f"{entry.target} is no click command"
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self._entries and not name.startswith("-"):
            near = difflib.get_close_matches(name, self._entries, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"the commands are: {', '.join(self._entries)}."
            raise UsageError(f"there is no command '{name}'; {hint}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise ReaderGone from error
        except SystemExit as error:
            if isinstance(error.__context__, BrokenPipeError):  # rich exits when its output is closed
                raise ReaderGone from error
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in self._entries.items()])


def print_version(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    """Callback of an option that prints the version and ends the command."""
    if value and not ctx.resilient_parsing:
        import ringtune

        click.echo(f"ringtune {ringtune.__version__}")
        ctx.exit()


def missing_module(error: ModuleNotFoundError, extra: str = "") -> Exception:
    """Return the error that says what to install, or `error` itself when the cause is not a missing extra.

    Args:
        error: What an import raised.
        extra: The command's own extra, which is right for modules that several extras bring.
    """
    name = error.name or ""
    root = name.partition(".")[0]
    if name == "ringtune._native":
        return RingtuneError("the native runtime is not built; install ringtune again with `pip install .`")
    needed = extra if root in _EXTRA_OF_MODULE and extra else _EXTRA_OF_MODULE.get(root, "")
    if not needed:
        return error
    found = RingtuneError(f"this needs {root}, which is not installed: pip install 'ringtune[{needed}]'")
    found.__cause__ = error
    return found
