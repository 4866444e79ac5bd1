"""Digits by Accelerate on the CPU: FOLDER. The group is made before the Accelerator, which keeps it."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

from tests.engines import cases


def main() -> None:
    dist.init_process_group("ringtune")
    accelerator = Accelerator(cpu=True)
    images, targets = cases.digits()
    net = cases.model()
    rows = cases.ROWS // accelerator.num_processes
    net, optimizer, loader = accelerator.prepare(
        net,
        torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9),
        DataLoader(TensorDataset(images, targets), batch_size=rows),
    )
    for _ in range(cases.STEPS):
        for batch, wanted in loader:
            optimizer.zero_grad()
            accelerator.backward(torch.nn.functional.cross_entropy(net(batch), wanted))
            optimizer.step()
    loss = float(torch.nn.functional.cross_entropy(accelerator.unwrap_model(net)(images), targets).detach())
    Path(sys.argv[1], f"loss-{dist.get_rank()}").write_text(f"{loss} {dist.get_backend()}", encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
