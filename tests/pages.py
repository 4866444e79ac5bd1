"""READMEs and guides as the tests read them: fenced blocks, inline code, links, and the `ringtune` lines among them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import click

from ringtune.cli import cli

ROOT = Path(__file__).parents[1]
GUIDE = ROOT / "core" / "guide"
# In the order in which a reader meets them.
GUIDES = (
    "quickstart", "horovod", "ddp", "ddp-walk", "walk", "tuning", "elastic", "hosts", "dashboard", "troubleshooting",
    "choosing", "slurm", "lsf", "kubernetes", "kubeflow", "sagemaker", "databricks", "synapse", "ray-vms",
    "faq",
)  # fmt: skip
# Those of frameworks and engines, which run in tests/frameworks and tests/engines, in environments of their own.
FRAMEWORK_GUIDES = ("jax", "mxnet", "tensorflow", "torch-libraries", "spark", "ray", "dask")

_FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```[ ]*$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_TITLE = re.compile(r'title="([^"]+)"')


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        info: What stands behind the fence, for example ``sh no-run``.
        text: The lines between the fences.
    """

    info: str
    text: str

    @property
    def language(self) -> str:
        return (self.info.split() or [""])[0]

    @property
    def marks(self) -> set[str]:
        return set(self.info.split()[1:])

    @property
    def title(self) -> str:
        """Name of the file that the block shows; empty if it shows none."""
        found = _TITLE.search(self.info)
        return found[1] if found else ""


@dataclass(frozen=True)
class Page:
    """A Markdown file."""

    path: Path
    text: str = field(repr=False)

    def __str__(self) -> str:
        return str(self.path.relative_to(ROOT))

    def blocks(self) -> list[Block]:
        return [Block(info.strip(), text) for info, text in _FENCE.findall(self.text)]

    def prose(self) -> str:
        """The text without its fenced blocks."""
        return _FENCE.sub("", self.text)

    def inline(self) -> list[str]:
        """What stands between single backquotes; a vertical bar in a table is written with a backslash there."""
        return [code.replace("\\|", "|") for code in _INLINE.findall(self.prose())]

    def links(self) -> list[str]:
        return _LINK.findall(self.prose())

    def command_lines(self) -> Iterator[str]:
        """Lines of shell in blocks (fenced, or indented by four spaces) and in inline code, without their comments."""
        for block in self.blocks():
            if block.language in ("", "sh", "bash"):
                yield from _shell_lines(block.text)
        indented = "\n".join(line for line in self.prose().splitlines() if line.startswith("    "))
        yield from _shell_lines(indented)
        yield from self.inline()


def _shell_lines(text: str) -> Iterator[str]:
    for line in text.replace("\\\n", " ").splitlines():
        yield re.sub(r"\s+#\s.*$", "", line.strip().removeprefix("$ "))


def read(path: Path) -> Page:
    return Page(path, path.read_text(encoding="utf-8"))


def ringtune_words(line: str) -> list[str] | None:
    """Return the words behind ``ringtune`` of a line of shell; None where it runs none of its commands."""
    # "ringtune tune: trial 0 ..." is what a command prints.
    found = re.match(r"(?:[A-Z_]+=\S* )*ringtune (?![a-z]+:)(?=[a-z-])(.+)", line.strip())
    if found is None:
        return None
    words = found[1].replace("...", " ").replace("<", "").replace(">", "")
    try:
        return [word.strip("[]") for word in shlex.split(words) if word not in ("|", "&&", "\u2026")]
    except ValueError:
        return None


def wrong_words(words: list[str]) -> str:
    """Parse a command line with ringtune's own parser; return what it cannot parse, or an empty text."""
    command: click.Command = cli
    context = click.Context(cli, info_name="ringtune")
    rest = list(words)
    while isinstance(command, click.Group):
        while rest and rest[0].startswith("-"):
            rest.pop(0)
        if not rest:
            return ""
        name = rest.pop(0)
        if "|" in name:
            said = [wrong_words([*words[: len(words) - len(rest) - 1], one, *rest]) for one in name.split("|") if one]
            return next((text for text in said if text), "")
        try:
            found = command.get_command(context, name)
        except click.ClickException as error:
            return error.format_message()
        if found is None:
            return f"no command {name!r}"
        command, context = found, click.Context(found, info_name=name, parent=context, **found.context_settings)
    try:
        command.make_parser(context).parse_args(rest)
    except click.BadOptionUsage as error:
        # Prose may name an option without its value: "`ringtune run --metrics-port` ...".
        return "" if "requires" in error.format_message() else error.format_message()
    except click.ClickException as error:
        return error.format_message()
    return ""


@cache
def option_names() -> frozenset[str]:
    """All options of all commands."""
    names: set[str] = set()
    waiting: list[click.Command] = [cli]
    while waiting:
        command = waiting.pop()
        context = click.Context(command)
        for parameter in command.get_params(context):
            names |= {*parameter.opts, *parameter.secondary_opts}
        if isinstance(command, click.Group):
            waiting += [
                found for name in command.list_commands(context) if (found := command.get_command(context, name))
            ]
    return frozenset(names)
