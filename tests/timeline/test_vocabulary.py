"""README, vocabulary, run folder and native recorder speak the same words."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from ringtune import layout
from ringtune.timeline import vocabulary as words
from ringtune.timeline.merging.merge import merge_run
from ringtune.timeline.vocabulary import Stage
from tests.timeline.generated_run import generate_run

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "timeline" / "README.md").read_text(encoding="utf-8")


def items(heading: str) -> list[str]:
    """Items of the first list under a heading, each on one line."""
    section = README.split(f" {heading}\n", 1)[1]
    lines = re.search(r"(?:^(?:- |  )\S.*\n)+", section, re.MULTILINE)
    assert lines is not None
    return [" ".join(item.split()) for item in re.split(r"^- ", lines.group(), flags=re.MULTILINE)[1:]]


EVERYWHERE = ("step", "knobs_version")
"""Arguments that the README names once for all spans but counters."""


def code(text: str) -> str:
    return f"`{text}`"


def codes(names: Sequence[str]) -> str:
    return ", ".join(map(code, names))


def camel(stage: Stage) -> str:
    return "".join(part.title() for part in stage.name.split("_"))


def span_item(word: words.SpanWord) -> str:
    name = word.name if word.stage is Stage.RANGE else codes(word.name.split(", "))
    own = [argument for argument in word.arguments if argument not in EVERYWHERE]
    item = f"{int(word.stage)} {code(word.stage.label)}, {name}: {word.meaning}"
    return f"{item} ({codes(own)})" if own else item


def test_list_of_spans() -> None:
    assert items("Spans") == [span_item(word) for word in words.SPAN_WORDS]
    named_below = {word.stage for word in words.SPAN_WORDS if word.arguments[-2:] != EVERYWHERE}
    assert named_below == {Stage.COUNTER}


def test_list_of_instants() -> None:
    expected = [
        f"{code(word.name)} (category {code(word.category)}): {word.meaning} ({codes(word.arguments)})"
        for word in words.INSTANT_WORDS
    ]
    assert items("Instants") == expected


def test_list_of_arguments_explains_every_argument() -> None:
    assert items("Arguments") == [f"{code(w.name)} ({w.unit}): {w.meaning}" for w in words.ARGUMENT_WORDS]
    used = {name for word in (*words.SPAN_WORDS, *words.INSTANT_WORDS) for name in word.arguments}
    assert used | {"thread"} == {word.name for word in words.ARGUMENT_WORDS}  # which spans of other tools have


def test_list_of_the_run_folder() -> None:
    assert items("Run folder") == [f"{code(w.path)} (by {w.writer}): {w.content}" for w in words.FILE_WORDS]


def test_a_run_holds_nothing_the_list_does_not_name(tmp_path: Path) -> None:
    run = generate_run(tmp_path)
    merge_run(run)
    names = {
        re.sub(r"rank-\d+", layout.rank_stem(0), str(path.relative_to(run)))
        for path in run.rglob("*")
        if path.is_file()
    }
    patterns = [re.escape(word.path).replace("<name>", "[^/]+") for word in words.FILE_WORDS]
    assert [name for name in names if not any(re.fullmatch(pattern, name) for pattern in patterns)] == []


def test_every_kind_is_named_in_the_readme() -> None:
    assert ", ".join(words.KINDS) in " ".join(README.split())


def test_stages_are_numbered_as_the_recorder_numbers_them() -> None:
    header = (ROOT / "native" / "trace" / "span.h").read_text(encoding="utf-8")
    stages = header.split("enum class Stage", 1)[1].split("};", 1)[0]
    native = {name: int(number) for name, number in re.findall(r"^  k([A-Z]\w+) = (\d+),", stages, re.MULTILINE)}
    assert native == {camel(stage): int(stage) for stage in Stage if stage not in words.FOREIGN_STAGES}


def test_spans_are_named_as_the_recorder_names_them() -> None:
    sink = (ROOT / "native" / "trace" / "chrome_sink.cc").read_text(encoding="utf-8")
    texts = (ROOT / "native" / "trace" / "event_text.cc").read_text(encoding="utf-8")
    groups = (ROOT / "native" / "trace" / "batch_slots.cc").read_text(encoding="utf-8")
    pieces = (ROOT / "native" / "trace" / "span.cc").read_text(encoding="utf-8")
    native = dict(re.findall(r'case Stage::k(\w+):\s+return "([\w ]+)";', texts))
    named = {Stage.RANGE, Stage.PIECE, Stage.COUNTER}  # by the user, by the kind of piece, by what is counted
    ours = {
        camel(word.stage): word.name.removesuffix("<KIND>").removesuffix("<N>")
        for word in words.SPAN_WORDS
        if word.stage not in named
    }
    assert native == ours
    for word in words.SPAN_WORDS:
        if word.stage in named - {Stage.RANGE}:
            assert all(f'"{name}"' in texts + pieces for name in word.name.split(", "))
    for event in (words.PART_EVENT, words.END_EVENT):
        assert f'"{event}"' in sink
    for word in (words.TENSORS_EVENT, *words.GROUP_ARGUMENTS):
        assert f'\\"{word}\\"' in groups
    for fact in words.FACTS[:-1]:  # the recorder knows no threads
        assert f'\\"{fact}\\"' in texts


def test_kinds_are_numbered_as_in_the_runtime() -> None:
    header = (ROOT / "native" / "collective" / "kind.h").read_text(encoding="utf-8")
    native = {
        int(number): re.sub(r"(?<!^)([A-Z])", r"_\1", name).upper()
        for name, number in re.findall(r"^  k([A-Z]\w+) = (\d+),", header, re.MULTILINE)
    }
    assert native == dict(enumerate(words.KINDS[: len(native)]))
    table = (ROOT / "native" / "trace" / "span.cc").read_text(encoding="utf-8")
    listed = re.search(r"operation_name.*?kNames\{(.*?)\};", table, re.DOTALL)
    assert listed is not None and tuple(re.findall(r'"(\w+)"', listed.group(1))) == words.KINDS


@pytest.mark.parametrize(
    "statement", ["import ringtune.timeline", "from ringtune.timeline import load, summarize, merge"]
)
def test_reading_traces_needs_neither_torch_nor_the_native_runtime(statement: str) -> None:
    heavy = "('torch', 'ringtune._native', 'optuna', 'dash')"
    check = f"{statement}; import sys; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=280, check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_name_loads() -> None:
    import ringtune.timeline as package

    for name in package.__all__:
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = package.nothing
