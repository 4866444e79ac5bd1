"""How process groups are called in the timeline."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringtune.torch.distributed.traced import WORLD_LABEL, label_of


@given(st.one_of(st.integers(1, 10**7).map(str), st.text(min_size=1).filter(lambda name: name != "0")), st.text())
def test_no_group_is_taken_for_the_world(name: str, described: str) -> None:
    if described == "default_pg":
        return
    label = label_of(name, described)
    assert 0 < label.number < 1 << 16 and label.text and label.number == label_of(name, "other").number


@pytest.mark.parametrize(
    ("name", "described", "text"),
    [
        ("0", "default_pg", "world"),
        ("0", "undefined", "world"),
        ("3", "undefined", "group 3"),
        ("3", "", "group 3"),
        ("3", "mesh_dp", "mesh_dp"),
        ("a6f0", "undefined", "a6f0"),
    ],
)
def test_groups_have_their_description_or_name(name: str, described: str, text: str) -> None:
    label = label_of(name, described)
    assert label.text == text and (label == WORLD_LABEL) == (text == "world")
