"""What states give to be kept, and what they take back."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ringtune import session
from ringtune.common.elastic import ObjectState, State
from ringtune.elastic import kept_state
from ringtune.errors import InvalidArgument, NotSupported


def object_state(**values: Any) -> ObjectState:
    return ObjectState(lambda value: value, lambda: 0, **values)


def test_a_state_takes_what_an_equal_one_has_saved() -> None:
    first = object_state(epoch=0, seen=[])
    first.epoch, first.seen = 4, [1, 2]
    first.save()
    first.seen.append(3)
    second = object_state(epoch=0, seen=[])
    second.take_saved(pickle.loads(pickle.dumps(first.saved())))
    assert (second.epoch, second.seen) == (4, [1, 2])
    second.seen.append(9)
    second.restore()
    assert second.seen == [1, 2]


@pytest.mark.parametrize("saved", [{"epoch": 1}, {"epoch": 1, "seen": [], "more": 2}, None, [1]])
def test_the_state_of_another_training_is_refused(saved: Any) -> None:
    with pytest.raises(InvalidArgument, match="this training has epoch, seen: empty the folder"):
        object_state(epoch=0, seen=[]).take_saved(saved)


class Opened:
    """Tells when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return unpickled.append, (True,)


unpickled: list[bool] = []


def test_a_file_that_another_user_puts_in_place_once_it_was_looked_at_is_not_unpickled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "state"

    def write(mode: int) -> None:
        file.write_bytes(kept_state._HEADER.pack(kept_state._MAGIC, 3) + pickle.dumps(Opened()))
        file.chmod(mode)

    def gather(value: Any, name: str) -> list[Any]:  # all ranks have looked at their files
        write(0o666)
        return [value]

    monkeypatch.setattr(kept_state, "_folder", lambda: tmp_path)
    monkeypatch.setattr("ringtune.numpy.objects.allgather_object", gather)
    monkeypatch.setattr(session, "require", lambda: SimpleNamespace(rank=0, local_rank=0))
    write(0o600)
    with pytest.raises(InvalidArgument, match="may have been written by another user"):
        kept_state.KeptState(object_state(epoch=0)).sync()
    assert not unpickled


def test_a_class_without_anything_to_keep_says_so() -> None:
    state = State(lambda value: value, lambda: 0)
    with pytest.raises(NotSupported, match="State cannot be kept on a disk"):
        state.saved()


def test_a_torch_state_takes_model_optimizer_and_attributes() -> None:
    torch = pytest.importorskip("torch")
    from ringtune.torch.elastic.state import TorchState

    def made(seed: int) -> Any:
        torch.manual_seed(seed)
        model = torch.nn.Linear(3, 2)
        return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    model, optimizer = made(1)
    first = TorchState(model, optimizer, batch=0)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    first.batch = 7
    first.save()
    other_model, other_optimizer = made(2)
    second = TorchState(other_model, other_optimizer, batch=0)
    second.take_saved(pickle.loads(pickle.dumps(first.saved())))
    assert second.batch == 7
    assert all(map(torch.equal, model.parameters(), other_model.parameters()))
    momenta = [[one["momentum_buffer"] for one in each.state.values()] for each in (optimizer, other_optimizer)]
    assert len(momenta[0]) == 2 and all(map(torch.equal, *momenta))
    with pytest.raises(InvalidArgument, match="holds batch, this training has batch, model, optimizer"):
        second.take_saved({"batch": 1})
