from __future__ import annotations

import pytest
import torch

from ringtune.benchmarks.training.vision import build_model, check_model, models
from ringtune.errors import UsageError


def test_torchvision_imports_beside_this_torch() -> None:
    assert "resnet50" in models().list_models()


def test_a_model_has_random_weights_from_the_seed() -> None:
    torch.manual_seed(3)
    first = build_model("resnet18").state_dict()
    torch.manual_seed(3)
    second = build_model("resnet18").state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_an_unknown_model_names_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"'resnet55'; near: resnet50"):
        check_model("resnet55")


def test_detection_models_are_not_offered() -> None:
    with pytest.raises(UsageError, match="no classification model"):
        check_model("fasterrcnn_resnet50_fpn")
