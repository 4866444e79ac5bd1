"""`--device cuda`: refused in words without a GPU, who takes part beside it, and how what lies on a device is timed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from ringtune.benchmarks.cli import bench
from ringtune.benchmarks.comm import contenders
from ringtune.benchmarks.comm.contenders import DeviceContest
from ringtune.benchmarks.harness import devices, peers
from ringtune.benchmarks.harness.peers import PEERS, Ground, select_peers
from ringtune.benchmarks.harness.race.bursts import Burst, run_burst
from ringtune.benchmarks.harness.race.patterns import Buffers, Task
from ringtune.benchmarks.training.config import TrainingTask
from ringtune.benchmarks.training.models import Batch, build_model, describe
from ringtune.errors import UsageError


def gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Let torch say that it sees so many GPUs, and that it has NCCL."""
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("name", ["allreduce", "gradients", "resnet", "train"])
def test_without_a_gpu_it_says_why(name: str) -> None:
    done = CliRunner().invoke(bench, [name, "--device", "cuda"])
    assert isinstance(done.exception, UsageError)
    assert str(done.exception).startswith(f"--device cuda needs a GPU, and torch {torch.__version__} is built without")


def test_a_gpu_that_is_not_visible_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 0)
    with pytest.raises(UsageError, match="sees none \\(nvidia-smi, CUDA_VISIBLE_DEVICES\\)"):
        devices.check_device("cuda")
    devices.check_device("cpu")


def test_nccl_is_named_where_it_refuses_ranks_that_share_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 1)
    alone = select_peers(None, "allreduce", Ground(None, "cuda", 1))
    assert (alone.contenders, alone.absent) == (("ringtune", "nccl", "gloo"), {})
    shared = select_peers(None, "gradients", Ground(None, "cuda", 2))
    assert shared.contenders == ("ringtune", "gloo", "gloo-buckets", "gloo-bucket-views")
    assert shared.absent == {
        "nccl": "2 ranks share one GPU, and NCCL refuses ranks that share a GPU ('Duplicate GPU detected')"
    }
    gpus(monkeypatch, 4)
    assert devices.nccl_absent(4) is None
    assert "5 ranks share 4 GPUs" in str(devices.nccl_absent(5))


def test_each_peer_takes_part_where_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 2)
    assert select_peers("all", "allreduce", Ground(None, "cuda", 2)).contenders == ("ringtune", "gloo", "nccl")
    assert select_peers("openmpi", "allreduce", Ground(None, "cuda", 2)).absent == {
        "openmpi": "it takes tensors of the CPU only"
    }
    assert select_peers("nccl", "allreduce").absent == {"nccl": "it takes tensors on GPUs only: --device cuda"}
    train = select_peers(None, "train", Ground(None, "cuda", 2))
    assert train.contenders == ("ringtune", "alone", "ddp-nccl", "ddp-gloo")
    assert select_peers(None, "resnet", Ground(None, "cuda", 2)).contenders == ("ringtune", "ddp-nccl")
    assert select_peers(None, "resnet").contenders == ("ringtune",)


@pytest.mark.parametrize("benchmark", ["allreduce", "gradients"])
def test_nccl_goes_the_ways_of_gloo(benchmark: str) -> None:
    ways = PEERS["nccl"].contenders[benchmark]
    assert {name.replace("nccl", "gloo") for name in ways} == set(PEERS["gloo"].contenders[benchmark])
    assert set(ways.values()) <= set(contenders.CONTENDERS)
    assert peers.PEERS["ddp-nccl"].contenders["train"] == {"ddp-nccl": "ddp-nccl"}


class Lazy:
    """A device that does what it was given when somebody waits for it, and sums with another rank's zeros."""

    def __init__(self, wrong: bool = False) -> None:
        self.given: list[Any] = []
        self.waits = 0
        self.there = torch.empty(0)
        self.wrong = wrong

    def call(self) -> None:
        self.given.append("sum")

    def settle(self) -> None:
        self.waits += 1
        if self.wrong and self.given:
            self.there[1] = 5.0
        self.given.clear()


@pytest.mark.parametrize("wrong", [False, True])
def test_a_burst_ends_when_the_device_has_done_everything(monkeypatch: pytest.MonkeyPatch, wrong: bool) -> None:
    device = Lazy(wrong)
    monkeypatch.setattr(devices, "settle_of", lambda kind: device.settle)
    buffers = Buffers(Task([40, 80], "float32", 0, 1))
    hosts = [torch.from_numpy(array) for array in buffers.arrays]
    theres = [torch.zeros_like(host) for host in hosts]
    device.there = theres[0]
    contest = DeviceContest(buffers, list(zip(hosts, theres, strict=True)), device.call)
    if wrong:
        with pytest.raises(ArithmeticError, match="wrong sum: tensor 0"):
            run_burst(contest, Burst(1, 3))
        return
    run_burst(contest, Burst(2, 3))
    assert device.waits == 2 * 2 and not device.given
    assert np.array_equal(theres[1].numpy(), buffers.arrays[1])


def test_training_on_a_device_computes_in_bfloat16_with_channels_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's device `meta` computes shapes and strides alone."""
    task = TrainingTask("resnet18", 2, 32, device="meta")
    model = build_model(task)
    weight: Any = next(model.parameters())
    assert weight.is_meta and weight.is_contiguous(memory_format=torch.channels_last) and weight.dtype == torch.float32
    batch = Batch(task)
    assert batch._inputs.is_contiguous(memory_format=torch.channels_last) and batch._labels.is_meta
    asked: list[Any] = []
    real = torch.autocast
    monkeypatch.setattr(torch, "autocast", lambda *given: (asked.append(given), real("cpu", torch.bfloat16))[1])
    loss = batch.loss(model)
    assert asked == [("meta", torch.bfloat16)] and loss.dtype == torch.float32
    assert describe(task) == "resnet18, batch 2, 32 px, bfloat16 on meta"
    assert TrainingTask("resnet18", 2, 32).dtype == "float32"


def test_ranks_take_gpus_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 2)
    taken: list[Any] = []
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    assert [str(devices.take("cuda", rank)) for rank in range(3)] == ["cuda:0", "cuda:1", "cuda:0"]
    assert taken == [torch.device("cuda", 0), torch.device("cuda", 1), torch.device("cuda", 0)]
    assert str(devices.take("cpu", 1)) == "cpu" and len(taken) == 3
    assert devices.settle_of("cpu") is None
    monkeypatch.setattr(torch.cuda, "synchronize", SimpleNamespace())
    assert devices.settle_of("cuda") is torch.cuda.synchronize
