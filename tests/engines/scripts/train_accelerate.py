"""Digits by Accelerate on the CPU: FOLDER [STEP]. The group is made before the Accelerator, which keeps it.

State is saved every fifth step, and loaded when the job is started again; rank 1 dies at STEP of the first start.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

from tests.engines import cases


class Steps:
    """What Accelerate saves with the model: the number of steps that were done."""

    done = 0

    def state_dict(self):
        return {"done": self.done}

    def load_state_dict(self, state):
        self.done = state["done"]


def main() -> None:
    dist.init_process_group("ringtune")
    accelerator = Accelerator(cpu=True)
    folder, dies_at = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None
    images, targets = cases.digits()
    net = cases.model()
    rows = cases.ROWS // accelerator.num_processes
    net, optimizer, loader = accelerator.prepare(
        net,
        torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9),
        DataLoader(TensorDataset(images, targets), batch_size=rows),
    )
    steps, saved = Steps(), folder / "state"
    accelerator.register_for_checkpointing(steps)
    if saved.exists():
        accelerator.load_state(str(saved))
    cases.started(folder, steps.done)
    with cases.noticing(folder, dist.get_rank()):
        while steps.done < cases.STEPS:
            if dist.get_rank() == 1 and steps.done == dies_at:
                cases.die(folder)
            for batch, wanted in loader:
                optimizer.zero_grad()
                accelerator.backward(torch.nn.functional.cross_entropy(net(batch), wanted))
                optimizer.step()
            steps.done += 1
            if dies_at is not None and steps.done % 5 == 0:
                accelerator.save_state(str(saved))
    loss = float(torch.nn.functional.cross_entropy(accelerator.unwrap_model(net)(images), targets).detach())
    (folder / f"loss-{dist.get_rank()}").write_text(f"{loss} {dist.get_backend()}", encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
