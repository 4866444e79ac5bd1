"""Digits by transformers' Trainer on the CPU: FOLDER. The group is made before TrainingArguments."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

from tests.engines import cases


class Rows(Dataset):
    def __init__(self) -> None:
        self.images, self.targets = cases.digits()

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row):
        return {"images": self.images[row], "labels": self.targets[row]}


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = cases.model()

    def forward(self, images, labels=None):
        logits = self.net(images)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


class InOrder(Trainer):
    def _get_train_sampler(self, *_):
        return torch.utils.data.SequentialSampler(self.train_dataset)


def main() -> None:
    dist.init_process_group("ringtune")
    folder = Path(sys.argv[1])
    arguments = TrainingArguments(
        output_dir=str(folder / "out"),
        use_cpu=True,
        max_steps=cases.STEPS,
        per_device_train_batch_size=cases.ROWS // dist.get_world_size(),
        learning_rate=0.5,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        weight_decay=0.0,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    model, rows = Net(), Rows()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    trainer = InOrder(model=model, args=arguments, train_dataset=rows, optimizers=(optimizer, None))
    trainer.train()
    loss = float(torch.nn.functional.cross_entropy(model.net(rows.images), rows.targets).detach())
    Path(folder, f"loss-{dist.get_rank()}").write_text(f"{loss} {dist.get_backend()}", encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
