"""Which dtypes of torch travel, and which of these are reduced."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from ringtune.session import Session
from ringtune.torch.handles import DTYPES
from tests.core.fake_native import fake_of
from tests.core.test_torch_operations import FORMS, call

Open = Callable[..., Session]
MOVED = [torch.uint16, torch.uint32, torch.uint64, torch.complex64, torch.complex128]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype not in MOVED], ids=str)
def test_every_dtype_keeps_its_values(form: str, dtype: torch.dtype, opened: Open) -> None:
    opened()
    tensor = torch.tensor([1, 0, 1]).to(dtype)
    result = call(form, tensor.clone())
    assert result.dtype is dtype and torch.equal(result, tensor)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", MOVED, ids=str)
def test_unsigned_and_complex_tensors_are_moved_and_not_reduced(form: str, dtype: torch.dtype, opened: Open) -> None:
    now = opened()
    tensor = torch.tensor([1, 0, 1]).to(dtype)
    if "reduce" not in form:
        result = call(form, tensor.clone())
        assert result.dtype is dtype and result.tolist() == tensor.tolist()
        return
    with pytest.raises(ValueError, match=r"(uint|complex)\d+ is not reduced, only gathered, broadcast and exchanged"):
        call(form, tensor)
    assert fake_of(now).calls == []


@pytest.mark.parametrize("form", FORMS)
def test_other_dtypes_are_refused(form: str, opened: Open) -> None:
    opened()
    with pytest.raises(ValueError, match=r"Tensor type torch.ComplexHalfTensor is not supported"):
        call(form, torch.zeros(1, dtype=torch.complex32))
