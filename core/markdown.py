"""Lists for READMEs that are made from tables in the code."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

LINE = 120


def bullets(items: Iterable[str]) -> str:
    """Return a Markdown list with no line longer than 120 characters, where words allow."""
    wrapped = (
        textwrap.wrap(f"- {item}", LINE, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
        for item in items
    )
    return "\n".join(line for lines in wrapped for line in lines)
