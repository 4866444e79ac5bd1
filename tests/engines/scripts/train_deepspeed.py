"""Digits by DeepSpeed on the CPU: FOLDER STAGE [STEP].

State is saved every fifth step, and loaded when the job is started again; rank 1 dies at STEP of the first start.
"""

import sys
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist

from tests.engines import cases


def main() -> None:
    folder, stage = Path(sys.argv[1]), int(sys.argv[2])
    dies_at = int(sys.argv[3]) if len(sys.argv) > 3 else None
    # An operation for inference, which would be compiled here and leaves shared memory behind.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend="ringtune")
    images, targets = cases.digits()
    net = cases.model().float()
    own = slice(dist.get_rank(), None, dist.get_world_size())
    settings = {
        "train_micro_batch_size_per_gpu": cases.ROWS // dist.get_world_size(),
        "optimizer": {"type": "SGD", "params": {"lr": 0.5, "momentum": 0.9}},
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    engine, *_ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config=settings)
    saved = folder / "state"
    if saved.exists():
        engine.load_checkpoint(str(saved))
    cases.started(folder, engine.global_steps)
    with cases.noticing(folder, dist.get_rank()):
        while engine.global_steps < cases.STEPS:
            if dist.get_rank() == 1 and engine.global_steps == dies_at:
                cases.die(folder)
            loss = torch.nn.functional.cross_entropy(engine(images[own].float()), targets[own])
            engine.backward(loss)
            engine.step()
            if dies_at is not None and engine.global_steps % 5 == 0:
                engine.save_checkpoint(str(saved))
    loss = float(torch.nn.functional.cross_entropy(engine.module(images.float()), targets).detach())
    (folder / f"loss-{dist.get_rank()}").write_text(f"{loss} {dist.get_backend()}", encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
