"""``init(comm=...)`` and what is built, in every front end."""

from __future__ import annotations

import atexit
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from ringtune import session
from ringtune.bootstrap.placement import Placement
from ringtune.bootstrap.rendezvous import Rendezvous
from ringtune.common import job
from ringtune.common.communicators import another_mpi
from ringtune.config import Config
from ringtune.errors import ConfigError, NotSupported
from ringtune.session import Session, is_initialized

FRONT_ENDS = ("ringtune.torch", "ringtune.numpy")
Open = Callable[..., Session]


class Communicator:
    """What is asked of mpi4py's."""

    def __init__(self, rank: int, size: int) -> None:
        self._place = rank, size

    def Get_rank(self) -> int:  # noqa: N802
        return self._place[0]

    def Get_size(self) -> int:  # noqa: N802
        return self._place[1]

    def bcast(self, value: object, root: int) -> object:
        raise AssertionError("nothing travels in a world that is not the job's")


@pytest.fixture(params=FRONT_ENDS)
def front_end(request: pytest.FixtureRequest) -> Any:
    return importlib.import_module(request.param)


@pytest.fixture
def launched(fake: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 of 2, which a launcher started; nothing is open yet."""
    for name, value in (("RANK", "0"), ("SIZE", "2"), ("STORE", "127.0.0.1:1")):
        monkeypatch.setenv(f"RINGTUNE_{name}", value)


def test_no_mpi_is_needed(front_end: Any) -> None:
    assert front_end.gloo_built() is True
    assert front_end.mpi_built() is False and front_end.mpi_enabled() is False
    assert {"gloo_built", "mpi_built", "mpi_enabled", "nccl_built"} <= set(front_end.__all__)


@pytest.mark.parametrize("comm", [None, [], [0, 1], (0, 1), Communicator(0, 2)])
def test_all_ranks_may_be_named(front_end: Any, comm: Any, launched: None) -> None:
    front_end.init(comm=comm)
    assert front_end.size() == 2 and front_end.gloo_enabled() is True
    front_end.shutdown()


@pytest.mark.parametrize(
    ("comm", "message"),
    [
        ([0], r"init\(comm=\[0\]\): expected all ranks 0 to 1 together"),
        ([1, 0], r"init\(comm=\[1, 0\]\): expected"),
        ("world", r"init\(comm='world'\): expected"),
        (Communicator(1, 2), r"this is rank 1 of 2 there: expected all ranks 0 to 1 together"),
        (Communicator(0, 1), r"a world of one process in a job of 2: it was built for .*, which did not start the job"),
    ],
)
def test_other_communicators_are_refused(front_end: Any, comm: Any, message: str, launched: None) -> None:
    with pytest.raises(NotSupported, match=message):
        front_end.init(comm=comm)
    assert not is_initialized()


FRAMEWORKS = {
    "tensorflow.basics": ("tensorflow",),
    "keras.lifecycle": (),
    "jax.lifecycle": ("jax", "jax.errors"),
    "mxnet.basics": ("mxnet", "mxnet.base"),
}
"""Where the front ends that need a framework begin, and what they import of it."""


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_front_ends_of_all_frameworks_hand_the_communicator_to_the_same_code(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shown without the frameworks; the tests above show what that code does with it."""
    package = ModuleType(f"ringtune.{name.partition('.')[0]}")
    package.__path__ = [str(Path(job.__file__).parents[1] / name.partition(".")[0])]  # its own __init__ imports all
    before = set(sys.modules)
    with monkeypatch.context() as patch:
        for module in FRAMEWORKS[name]:
            patch.setitem(sys.modules, module, MagicMock())
        patch.setitem(sys.modules, package.__name__, package)
        try:
            front_end = importlib.import_module(f"ringtune.{name}")
            join, comm = MagicMock(), object()
            patch.setattr(job, "join_job", join)
            patch.setattr(session, "require", MagicMock())
            if hasattr(front_end, "engine"):
                patch.setattr(front_end, "engine", MagicMock())
            front_end.init(comm, "dynamic")
            front_end.init(comm=comm)
            assert [call.args[:2] for call in join.call_args_list] == [(comm, "dynamic"), (comm, None)]
        finally:
            atexit.unregister(getattr(sys.modules.get(f"ringtune.{name}"), "_settle_at_exit", None))
            for module in set(sys.modules) - before:
                if module.startswith(f"{package.__name__}."):
                    del sys.modules[module]


def test_a_world_of_one_is_right_in_a_job_of_one() -> None:
    assert another_mpi(1, 1) == "" == another_mpi(2, 4)


def test_the_mpi_of_mpi4py_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    version = "Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4\n\0"
    mpi = SimpleNamespace(Get_library_version=lambda: version)
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", mpi)
    assert "it was built for Open MPI v4.1.4, which did not" in another_mpi(1, 4)


def test_ranks_do_not_meet_through_another_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace(MPI=SimpleNamespace(COMM_WORLD=Communicator(0, 1))))
    placement = Placement(rank=1, size=4, local_rank=1, local_size=2, launcher="pmi")
    with pytest.raises(ConfigError, match="mpi4py sees a world of 1: it was built for another MPI than the launcher's"):
        Rendezvous().find(placement, Config(secret="x" * 32), {})
