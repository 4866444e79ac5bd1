"""Which events the recorder puts around collectives on GPUs; when they are reached is the native tests' matter."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.conftest import needs

needs("torch")

import torch  # noqa: E402

from ringtune.foreign import ForeignRecorder  # noqa: E402
from ringtune.torch.distributed.traced import COMMUNICATE, DEVICE_WAIT  # noqa: E402
from ringtune.torch.recorder import gpu_times  # noqa: E402

MAIN, SIDE = 100, 200


class Runtime:
    """Notes what it is asked to time."""

    def __init__(self) -> None:
        self.begun: list[tuple[int, int]] = []
        self.ended: list[tuple[int, int]] = []
        self.dropped: list[int] = []

    def begin_foreign(self, stage: int, kind: int, name: str, begin_ns: int, *about: int) -> int:
        assert (kind, name, begin_ns, about[:-1]) == (0, "a", 5, (64, 7, 0, 3, 1))
        self.begun.append((stage, about[-1]))
        return len(self.begun)

    def end_foreign(self, work: int, stream: int) -> None:
        if work:
            self.ended.append((self.begun[work - 1][0], stream))

    def drop_foreign(self, work: int) -> None:
        if work:
            self.dropped.append(self.begun[work - 1][0])


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    _current(monkeypatch, MAIN)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device=None: SimpleNamespace(cuda_stream=MAIN))
    return Runtime()


def _current(monkeypatch: pytest.MonkeyPatch, handle: int) -> None:
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: SimpleNamespace(cuda_stream=handle))


def _begun(runtime: Runtime, *, blocks: bool) -> gpu_times.GpuTimes:
    session = SimpleNamespace(foreign=ForeignRecorder(cast(Any, runtime)))
    call: Any = SimpleNamespace(session=session, kind=0, name="a", begin_ns=5, about=(64, 7, 0, 3))
    return gpu_times.GpuTimes(call, 1, blocks)


def _work(*, done: bool) -> Any:
    future: Any = torch.futures.Future()
    if done:
        future.set_result([])
    return SimpleNamespace(get_future=lambda: future)


def test_a_blocking_call_holds_up_the_main_stream_alone(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _begun(runtime, blocks=True).follow(None, None)
    assert runtime.begun == runtime.ended == [(COMMUNICATE, MAIN), (DEVICE_WAIT, MAIN)]
    _current(monkeypatch, SIDE)
    assert _begun(runtime, blocks=True).follow(None, None)
    assert runtime.ended[2:] == [(COMMUNICATE, SIDE)] and not runtime.dropped


def test_a_work_ends_in_the_stream_in_which_its_future_calls_back(runtime: Runtime) -> None:
    times = _begun(runtime, blocks=False)
    assert times.follow(None, _work(done=True))
    assert runtime.ended == [(COMMUNICATE, MAIN)]
    ended = times.begin_wait(5)
    assert runtime.begun[-1] == (DEVICE_WAIT, MAIN) and len(runtime.ended) == 1
    ended()
    assert runtime.ended[-1] == (DEVICE_WAIT, MAIN)


def test_a_work_of_the_host_is_not_timed_by_the_gpu(runtime: Runtime) -> None:
    assert not _begun(runtime, blocks=True).follow(None, _work(done=False))
    assert runtime.dropped == [COMMUNICATE, DEVICE_WAIT] and not runtime.ended


class Group:
    """A process group that launches several calls together."""

    def __init__(self, *, fails: bool) -> None:
        self._fails = fails

    def _start_coalescing(self, device: Any) -> None:
        assert device == "cuda"

    def _end_coalescing(self, device: Any) -> Any:
        if self._fails:
            raise RuntimeError("NCCL")
        return _work(done=True)


def test_calls_that_are_launched_together_end_with_the_last(runtime: Runtime) -> None:
    for fails in (False, True):
        group = Group(fails=fails)
        gpu_times._starting(Group._start_coalescing)(group, "cuda")
        for _ in range(2):
            assert _begun(runtime, blocks=False).follow(group, None)
        assert not runtime.ended
        try:
            gpu_times._ending(Group._end_coalescing)(group, "cuda")
        except RuntimeError:
            assert fails and runtime.dropped == [COMMUNICATE] * 2
        else:
            assert not fails and runtime.ended == [(COMMUNICATE, MAIN)] * 2
            runtime.ended.clear()
        assert not gpu_times._together
