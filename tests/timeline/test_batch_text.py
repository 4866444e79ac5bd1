"""Numbers of batches as people read them."""

from __future__ import annotations

import pytest

from ringtune.timeline.units import batch_text
from ringtune.timeline.vocabulary import FOREIGN_BATCHES


@pytest.mark.parametrize(
    ("batch", "text"),
    [
        (7, "7"),
        ((1 << 31) + 7, "7 (step schedule)"),
        ((1 << 29) + (3 << 20) + 7, "7 (group 3)"),
        ((1 << 29) + (3 << 20) + (1 << 19) + 7, "7 (group 3, step schedule)"),
        (FOREIGN_BATCHES.start + 7, "7"),
        ((3 << 29) + (3 << 20) + 7, "7 (group 3)"),
        ((0xABCD << 28) + 7, "7"),
    ],
)
def test_a_batch_is_called_by_its_number_in_its_group_or_schedule(batch: int, text: str) -> None:
    assert batch_text(batch) == text
