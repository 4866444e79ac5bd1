"""What a merge did, in numbers and in sentences for the user."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ringtune.timeline.spans import PartInfo
from ringtune.timeline.units import ranks_text, torn_text


@dataclass(frozen=True)
class MergeReport:
    """What a merge did. ``problems``: inputs left out, one sentence each; ``missing``: ranks without a part."""

    output: Path
    spans: int
    parts: tuple[PartInfo, ...]
    missing: tuple[int, ...]
    problems: tuple[str, ...]

    @property
    def dropped(self) -> int:
        """Spans the recorders had to drop."""
        return sum(part.dropped for part in self.parts)

    def sentences(self) -> list[str]:
        """What the user should know about the merged file's completeness."""
        found = list(self.problems)
        if self.missing:
            found.append(f"no part of rank {ranks_text(self.missing)}")
        torn = [part.rank for part in self.parts if part.truncated]
        if torn:
            found.append(torn_text(torn))
        if self.dropped:
            found.append(f"{self.dropped} spans were dropped while recording")
        unsure = [part.rank for part in self.parts if part.error_ns is None]
        if unsure:
            found.append(f"the clock of rank {ranks_text(unsure)} was not measured; its times may be off")
        return found
