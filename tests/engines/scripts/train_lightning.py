"""Digits by Lightning: FOLDER STRATEGY. No line names ringtune.

With a step at which rank 1 dies, state is saved every fifth step, and loaded when the job is started again.
"""

import argparse
import os
from pathlib import Path

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

from tests.engines import cases


class Digits(pl.LightningModule):
    def __init__(self, folder: Path, dies_at: int | None) -> None:
        super().__init__()
        self.net, self.folder, self.dies_at = cases.model(), folder, dies_at

    def on_train_start(self):
        cases.started(self.folder, self.global_step)

    def training_step(self, batch, index):
        if self.global_rank == 1 and self.global_step == self.dies_at:
            cases.die(self.folder)
        return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5, momentum=0.9)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("strategy")
    parser.add_argument("--dies", type=int)
    parser.add_argument("--devices", type=int, default=2)
    given = parser.parse_args()
    if given.strategy == "ringtune":
        import ringtune.lightning  # noqa: F401 - registers the strategy
    strategy = given.strategy
    if strategy == "backend":
        strategy = pl.strategies.DDPStrategy(process_group_backend="ringtune")
    images, targets = cases.digits()
    model = Digits(given.folder, given.dies)
    saved = given.folder / "state" / "last.ckpt"
    trainer = pl.Trainer(
        strategy=strategy,
        accelerator="cpu",
        devices=given.devices,
        max_epochs=cases.STEPS,
        logger=False,
        enable_checkpointing=given.dies is not None,
        callbacks=[pl.callbacks.ModelCheckpoint(saved.parent, "last", every_n_train_steps=5)] if given.dies else [],
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=given.folder,
    )
    loader = DataLoader(TensorDataset(images, targets), batch_size=cases.ROWS // given.devices, shuffle=False)
    with cases.noticing(given.folder, int(os.environ["RINGTUNE_RANK"])):
        trainer.fit(model, loader, ckpt_path=str(saved) if saved.exists() else None)
    loss = float(torch.nn.functional.cross_entropy(model.net(images), targets).detach())
    backend = torch.distributed.get_backend() if torch.distributed.is_initialized() else ""
    (given.folder / f"loss-{trainer.global_rank}").write_text(f"{loss} {backend}", encoding="utf-8")


if __name__ == "__main__":
    main()
