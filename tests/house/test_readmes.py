"""READMEs and guides name only what exists: files, anchors, commands, options, make targets, variables, messages."""

from __future__ import annotations

import importlib.util
import re
from functools import cache
from pathlib import Path

import pytest

from ringtune.variables import VARIABLES
from tests import pages
from tests.house.test_files import FILES

ROOT = pages.ROOT
LONGEST_LINE = 120
MOST_LINES = {"native/README.md": 200, "benchmarks/README.md": 250}
PAGES = [pages.read(path) for path in FILES if path.suffix == ".md" and path.name != "CHANGELOG.md"]
NAMES = [str(page) for page in PAGES]
# What a README may name although it is not under version control: results of commands, and folders of the machine.
MADE = ("build/", "runs/", "dist/", ".venv", "~", "/", "$")
_PATH = re.compile(
    r"(?<![\w./<>~$-])((?:\.\./)*[A-Za-z_][\w.-]*(?:/[\w.-]+)+|[a-z]\w*\.(?:py|h|cc|cu|toml))(?![\w/*<{(])"
)
_ROOMS = ("core", "tuner", "timeline", "dashboard", "native", "tests", "benchmarks", "ringtune", ".ci")


@pytest.fixture(params=PAGES, ids=NAMES)
def page(request: pytest.FixtureRequest) -> pages.Page:
    return request.param


@cache
def anchors(path: Path) -> frozenset[str]:
    """Names of a page's headings, as links spell them."""
    text = pages._FENCE.sub("", path.read_text(encoding="utf-8"))
    found = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return frozenset(re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in found)


def long_lines(page: pages.Page) -> list[str]:
    """Of texts, commands and what they print."""
    return [
        f"{page}:{number}: {len(line)} characters"
        for number, line in enumerate(page.text.splitlines(), start=1)
        if len(line) > LONGEST_LINE
    ]


def test_pages_and_their_lines_are_short(page: pages.Page) -> None:
    found = long_lines(page)
    if page.text.count("\n") > MOST_LINES.get(str(page), 10_000):
        found.append(f"{page}: more than {MOST_LINES[str(page)]} lines")
    assert not found, "\n".join(found)


def test_links_lead_somewhere(page: pages.Page) -> None:
    wrong = []
    for link in page.links():
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.path.parent / name).resolve() if name else page.path
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            wrong.append(link)
    assert not wrong


def test_files_that_are_named_exist(page: pages.Page) -> None:
    """Names in backquotes that begin with a room of the repository, or with a folder beside the page."""
    wrong = []
    for code in page.inline():
        for name in _PATH.findall(code):
            first = name.split("/")[0]
            if "/" not in name or name.startswith(MADE) or (first not in _ROOMS and not _is_folder(page, first)):
                continue
            plain = name.rstrip("./").removeprefix("ringtune/")
            bases = (ROOT, page.path.parent, ROOT / "core")
            # Modules may be named without their suffix; what ranks leave in run folders is nowhere here.
            if "rank-" not in name and not any(
                (base / (plain + end)).exists() for base in bases for end in ("", ".py")
            ):
                wrong.append(name)
    assert not wrong


def _is_folder(page: pages.Page, name: str) -> bool:
    return (page.path.parent / name).is_dir() and page.path.parent != ROOT


def test_a_gradient_passes_few_files() -> None:
    """Its way from hook to wire and back, as native/README.md tells it in steps (files: the test before)."""
    way = (ROOT / "native/README.md").read_text(encoding="utf-8").split("## A gradient's way\n")[1]
    steps = re.findall(r"^\d+\. .+", way.split("\n## ")[0], re.MULTILINE)
    files = [name for step in steps for name in _PATH.findall(step)]
    assert steps and all(_PATH.search(step) for step in steps)
    assert len(files) == len(set(files)) <= 15


def test_commands_parse(page: pages.Page) -> None:
    wrong = [
        f"ringtune {' '.join(words)}: {said}"
        for line in page.command_lines()
        for part in re.split(r"\s(?:\||&&|;)\s", line)
        if (words := pages.ringtune_words(part)) is not None and (said := pages.wrong_words(words))
    ]
    assert not wrong, "\n".join(wrong)


def test_options_that_are_named_alone_exist(page: pages.Page) -> None:
    """An option in backquotes without a command is one of ringtune's, unless another program's command stands there."""
    wrong = {
        found[1]
        for code in page.inline()
        if (found := re.match(r"(--[a-z][a-z0-9-]+)", code)) and found[1] not in pages.option_names() | _OTHERS
    }
    assert not wrong


# Options of other programs, which the pages name alone: pytest, docker, horovodrun's that set nothing here, examples.
_OTHERS = {
    "--shm-size", "--ipc", "--gpus", "--gtest_filter", "--gloo", "--mpi", "--mpi-args", "--torus-allreduce",
}  # fmt: skip


def test_make_targets_exist(page: pages.Page) -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = {
        word for line in page.command_lines() if (found := re.match(r"make ([a-z-]+)", line)) and (word := found[1])
    }
    assert named <= targets


def test_variables_exist(page: pages.Page) -> None:
    """Build options (``-DRINGTUNE_...``) are CMake's; a name that ends in `_` stands for a family."""
    known = {f"RINGTUNE_{variable.name}" for variable in VARIABLES} | _read_elsewhere()
    named = set(re.findall(r"(?<![\w-])(?<!-D)(RINGTUNE_[A-Z0-9_]*[A-Z0-9])\b(?!_)", page.text))
    assert named <= known


@cache
def _read_elsewhere() -> frozenset[str]:
    """Names that stand in full in product code and scripts, such as `RINGTUNE_PERFETTO_UI`; tests invent some."""
    return frozenset(
        name
        for path in FILES
        if path.suffix in (".py", ".sh", "") and path.relative_to(ROOT).parts[0] != "tests"
        for name in re.findall(r"\b(RINGTUNE_[A-Z0-9_]+)\b", path.read_text(encoding="utf-8", errors="ignore"))
    )


@cache
def _messages() -> str:
    """All sources, with the literals of a message joined as the compiler joins them."""
    sources = "".join(
        path.read_text(encoding="utf-8")
        for path in FILES
        if path.suffix in (".py", ".cc", ".h") and path.relative_to(ROOT).parts[0] != "tests"
    )
    return re.sub(r'"\s*\n\s*f?"', "", sources)


def test_messages_of_the_troubleshooting_page_are_said() -> None:
    """Headings in backquotes are words of ringtune's own messages, so that a search for them finds the entry."""
    text = (pages.GUIDE / "troubleshooting.md").read_text(encoding="utf-8")
    headings = re.findall(r"^### (.+)$", text, re.MULTILINE)
    assert len(headings) >= 25
    quoted = [code for heading in headings for code in re.findall(r"`([^`]+)`", heading)]
    assert [words for words in quoted if words not in _messages()] == []


def test_the_parser_finds_what_is_wrong() -> None:
    assert pages.wrong_words(["run", "-np", "2", "python", "train.py", "--epochs", "3"]) == ""
    assert pages.wrong_words(["run", "--no-such-flag", "python"])
    assert pages.wrong_words(["timeline", "sumary"])
    assert pages.wrong_words(["timeline", "summary|diff", "a.json"]) == ""
    assert pages.ringtune_words("A=1 ringtune run -np 2 python x.py") == ["run", "-np", "2", "python", "x.py"]


def test_every_page_stands_in_the_documentation() -> None:
    """`make docs` fails on a page that no table of contents leads to; CI does not build it."""
    spec = importlib.util.spec_from_file_location("stage", ROOT / ".ci" / "docs" / "stage.py")
    assert spec is not None and spec.loader is not None
    stage = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(stage)
    guides = [f"{stage.GUIDE}/{name}" for name in ("README", *stage.GUIDES)]
    listed = {"README", *guides, *(f"{name}/README" for name in stage.LAYERS), *stage.MORE}
    assert {name.removesuffix(".md") for name in NAMES} == listed
