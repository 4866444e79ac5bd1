"""Terms are the field's: words that ringtune had instead, and phrases without a noun, do not come back."""

from __future__ import annotations

import re
from pathlib import Path

from tests.house.test_files import ROOT, text_files

RETIRED = re.compile(
    r"\b(?:shm_?arena|ballots?|warden|roster|caller_habit|gpuplane|device_?routes|core_(?:spread|distance)|stager|"
    r"note_bytes|post_alone|rehearsal|kernel_shelf|straggling|senseless)\b|\bdear(?:er|est)?\b|\bhear[sd]?\b|"
    r"\bare told\b(?! apart)|comes? to an end of|\bno chance \(p",
    re.IGNORECASE,
)


def test_words_of_the_field() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: {match[0]}"
        for path in text_files()
        if path != Path(__file__) and path.name != "CHANGELOG.md"
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if (match := RETIRED.search(line))
    ]
    assert not wrong, "\n".join(wrong)
