"""A loop of the script's own with Accelerate: rates, losses and samples of every step written down."""

import json
import os
import time

import accelerate
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import gpusched

hp = gpusched.init().hparams
EPOCHS = 40
is_to_move = hp.get("place") == "moved" and os.environ.get("GPUSCHED_INCARNATION") in ("1", "2")
torch.manual_seed(0)
data = TensorDataset(x := torch.rand(256, 4), x.sum(1, keepdim=True) + (3 * x[:, :1]).sin())
if hp.files:  # all state in Accelerate's own files
    accelerator, trial = accelerate.Accelerator(cpu=True), gpusched.init()
else:
    accelerator = gpusched.accelerate.Accelerator()  # <-
    trial = accelerator.trial
model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
opt = torch.optim.SGD(model.parameters(), lr=hp.lr, momentum=0.9)
schedule = torch.optim.lr_scheduler.LinearLR(opt, 1.0, 0.1, EPOCHS * 256 // hp.batch)
loader = DataLoader(data, batch_size=hp.batch, shuffle=True)
model, opt, loader, schedule = accelerator.prepare(model, opt, loader, schedule)
if hp.files:
    trial.scale_lr(opt)
    if trial.restored_dir:
        accelerator.load_state(str(trial.restored_dir))

for epoch in trial.steps(EPOCHS):  # <-
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        accelerator.backward(loss)
        row = {"epoch": epoch, "rank": trial.rank, "ranks": trial.world_size, "loss": loss.item()}
        row |= {"lr": schedule.get_last_lr()[0], "samples": x[:, 0].tolist()}
        opt.step()
        schedule.step()
        opt.zero_grad()
        with (trial.folder / "steps.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
    with torch.no_grad():
        x, y = data.tensors
        loss = nn.functional.mse_loss(accelerator.unwrap_model(model)(x), y)
        trial.report(val_loss=loss)  # <-
    if is_to_move and epoch >= EPOCHS // 2:  # the other ranks are being set up
        time.sleep(1)
    if hp.files and trial.should_save():
        with trial.checkpoint_dir() as folder:
            accelerator.save_state(str(folder))
