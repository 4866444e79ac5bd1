"""Where the runtime is told to look for NCCL."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ringtune.config import Config
from ringtune.errors import ConfigError
from ringtune.gpu import nccl


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A library where the wheels install theirs."""
    library = tmp_path / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    library.parent.mkdir(parents=True)
    library.touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)
    return library


def test_the_process_and_the_system_come_before_the_wheels(wheel: Path) -> None:
    paths = nccl.libraries(Config.from_environ({}))
    assert paths[0] == "" and str(wheel) in paths[1:]
    assert "nvidia" not in sys.modules


def test_a_library_that_is_named_is_the_only_one(wheel: Path) -> None:
    assert nccl.libraries(Config.from_environ({"RINGTUNE_NCCL_LIBRARY": "libmine.so"})) == ["libmine.so"]


def test_another_driver_is_not_mixed_with_nvidias_nccl(wheel: Path) -> None:
    assert nccl.libraries(Config.from_environ({"RINGTUNE_CUDA_DRIVER": "libfake.so"})) == []
    both = {"RINGTUNE_CUDA_DRIVER": "libfake.so", "RINGTUNE_NCCL_LIBRARY": "libmine.so"}
    assert nccl.libraries(Config.from_environ(both)) == ["libmine.so"]


def test_the_data_path_of_tensors_is_one_of_five_words() -> None:
    for word in ("auto", "nccl", "ring", "staged", "nccl-host"):
        assert Config.from_environ({"RINGTUNE_GPU_DATA_PATH": word}).gpu_data_path == word
    with pytest.raises(ConfigError, match="RINGTUNE_GPU_DATA_PATH"):
        Config.from_environ({"RINGTUNE_GPU_DATA_PATH": "mpi"})
