from __future__ import annotations

from pathlib import Path

import pytest

from ringtune.benchmarks.training.profiles import GradientProfile, load_profile, parse_profile
from ringtune.errors import UsageError

RECORDED = "a comment\n1\n3\n552.6,4000\n27.1,8192000\n0,8192\n"


def test_recorded_profile() -> None:
    assert parse_profile(RECORDED, "f") == (4000, 8_192_000, 8192)


def test_plain_sizes() -> None:
    assert parse_profile("4000\n8\n", "f") == (4000, 8)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no tensors"),
        ("a comment\n1\n2\n1,4\n", "names 2 tensors, 1 follow"),
        ("4000\n1,zero\n", "f:2: expected"),
        ("4000\n0\n", "f:2: expected"),
    ],
)
def test_not_a_profile(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_profile(text, "f")


def test_file(tmp_path: Path) -> None:
    path = tmp_path / "net.log"
    path.write_text(RECORDED)
    assert load_profile(str(path)) == GradientProfile("net", (4000, 8_192_000, 8192))


def test_equal_tensors() -> None:
    profile = load_profile("2000x4KiB")
    assert profile.sizes_bytes == (4096,) * 2000
    assert profile.total_bytes == 2000 * 4096


def test_resnet50_in_backward_order() -> None:
    profile = load_profile("resnet50")
    assert len(profile.sizes_bytes) == 161
    assert profile.total_bytes == 25_557_032 * 4
    assert profile.sizes_bytes[:3] == (1000 * 4, 1000 * 2048 * 4, 2048 * 4)


def test_gpt2_small() -> None:
    profile = load_profile("gpt2")
    assert len(profile.sizes_bytes) == 148
    assert profile.total_bytes == 124_439_808 * 4
    assert profile.sizes_bytes[:4] == (768 * 4, 768 * 4, 768 * 4, 4 * 768 * 768 * 4)
    assert profile.sizes_bytes[-1] == 50257 * 768 * 4


def test_missing_file() -> None:
    with pytest.raises(UsageError, match=r"no gradient profile at nowhere/net\.log"):
        load_profile("nowhere/net.log")


def test_unknown_model_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="resnet50"):
        load_profile("resnet5")
