"""The walk of timeline/README.md: its blocks are there to be made anew, and hold what a real job gave."""

from __future__ import annotations

import re

import pytest

from ringtune.benchmarks import walk
from ringtune.errors import RingtuneError


def test_the_document_holds_every_command_and_picture() -> None:
    text = walk.README.read_text()
    for name, command in walk.commands().items():
        found = re.search(rf"<!-- walk: {name} -->\n```\n(.*?)```\n", text, re.DOTALL)
        assert found is not None
        lines = found[1].splitlines()
        assert lines[0].startswith(f"$ ringtune timeline {command[0]} ")
        assert len(lines) > 5
    for name in ("fine", "slow"):
        assert (walk.README.parent / walk.IMAGES / f"walk-{name}.png").stat().st_size < 200_000


def test_a_block_is_replaced_and_nothing_else() -> None:
    text = "before\n<!-- walk: diff -->\n```\nold\n```\nafter\n<!-- walk: other -->\n```\nkept\n```\n"
    found = walk.replaced(text, "diff", ["diff", "a b.json"], "one  \ntwo\nthree\n", lines=2)
    content = "$ ringtune timeline diff 'a b.json'\none\ntwo\n...\n"
    assert found == text.replace("old\n", content)
    assert walk.replaced(found, "diff", ["x"], "", lines=2) == text.replace("old\n", "$ ringtune timeline x\n")
    with pytest.raises(RingtuneError, match="no block <!-- walk: none -->"):
        walk.replaced(text, "none", [], "")
