"""Which backends a group of torch.distributed may have beside ringtune; groups over real ranks: tests/jobs."""

from __future__ import annotations

import pytest

from ringtune.errors import NotSupported
from ringtune.torch.distributed.mixed import others_of


@pytest.mark.parametrize(
    ("backends", "others"),
    [
        ({"cpu": "ringtune"}, {}),
        ({"cpu": "ringtune", "cuda": "nccl"}, {"cuda": "nccl"}),
        ({"cpu": "ringtune", "cuda": "nccl", "xpu": "xccl"}, {"cuda": "nccl", "xpu": "xccl"}),
        ({"cpu": "ringtune", "cuda": "ringtune"}, {}),
        ({"cuda": "ringtune"}, {}),
        ({"cuda": "ringtune", "cpu": "gloo"}, {"cpu": "gloo"}),
        ({}, {}),
    ],
)
def test_what_torch_makes_beside(backends: dict[str, str], others: dict[str, str]) -> None:
    assert others_of(backends) == others


@pytest.mark.parametrize(
    ("backends", "words"),
    [
        ({"cpu": "gloo", "cuda": "ringtune"}, "name ringtune first, as cuda:ringtune,cpu:gloo"),
        ({"cpu": "ringtune", "xpu": "ringtune"}, "tensors of the CPU and of CUDA devices, not of xpu"),
        ({"cuda": "nccl", "cpu": "ringtune"}, "name ringtune first, as cpu:ringtune,cuda:nccl"),
    ],
)
def test_what_cannot_be_is_refused_in_words(backends: dict[str, str], words: str) -> None:
    with pytest.raises(NotSupported, match=words):
        others_of(backends)
