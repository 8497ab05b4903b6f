"""A Lightning script: a small regression, its learning rate and loss of every step written down."""

import json
import os
import time

import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import gpusched

search = gpusched.lightning.Search()  # <-
trial, hp = search.trial, search.trial.hparams
EPOCHS = 40
is_to_move = hp.get("place") == "moved" and os.environ.get("GPUSCHED_INCARNATION") in ("1", "2")


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))

    def training_step(self, batch, index):
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        group = self.optimizers().param_groups[0]
        row = {"global_step": self.global_step, "epoch": self.current_epoch, "lr": group["lr"]}
        row |= {"rank": self.global_rank, "ranks": trial.world_size, "samples": x[:, 0].tolist()}
        with (trial.folder / "steps.jsonl").open("a") as file:
            file.write(json.dumps(row | {"loss": loss.item()}) + "\n")
        return loss

    def validation_step(self, batch, index):
        if is_to_move and self.current_epoch >= EPOCHS // 2:  # the other ranks are being set up
            time.sleep(0.2)
        x, y = batch
        self.log("val_loss", nn.functional.mse_loss(self.net(x), y), sync_dist=True)
        self.log("step", float(self.current_epoch), sync_dist=True)  # the axis of its plots

    def configure_optimizers(self):
        opt = torch.optim.SGD(self.parameters(), lr=hp.lr, momentum=0.9)
        return [opt], [torch.optim.lr_scheduler.StepLR(opt, 3, 0.5)]


torch.manual_seed(0)
data = TensorDataset(x := torch.rand(256, 4), x.sum(1, keepdim=True) + (3 * x[:, :1]).sin())
size = trial.local_batch(hp.batch)
train, val = DataLoader(data, batch_size=size, shuffle=True), DataLoader(data, batch_size=64)

trainer = search.trainer(  # <-
    max_epochs=EPOCHS,
    callbacks=[EarlyStopping("val_loss", patience=EPOCHS), ModelCheckpoint(monitor="val_loss")],
    accelerator="auto",
    devices="auto",
    logger=False,
    enable_progress_bar=False,
)
trainer.fit(Net(), train, val)
