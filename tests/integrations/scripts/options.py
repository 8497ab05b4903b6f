"""A script with options of its own (argparse) that logs to TensorBoard; the recipe has ``args``, ``cwd: private``."""

import argparse

import torch
from torch import nn
from torch.utils.tensorboard import SummaryWriter

from gpusched import trial

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--epochs", type=int, default=14)
parser.add_argument("--log-dir", default="logs")
args = parser.parse_args()

torch.manual_seed(1)
x = torch.rand(256, 10)
data = torch.utils.data.TensorDataset(x, (x.sum(1) > 5).long())
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 2))
optimizer = torch.optim.Adadelta(model.parameters(), lr=args.lr)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
loader = torch.utils.data.DataLoader(data, batch_size=32, shuffle=True)
model, optimizer, loader = trial.prepare(model, optimizer, loader)  # <- for several GPUs
writer = SummaryWriter(args.log_dir)

for epoch in trial.steps(args.epochs, model=model, opt=optimizer, sched=schedule):  # <-
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    schedule.step()
    model.eval()
    with torch.no_grad():
        loss = nn.functional.cross_entropy(model(data.tensors[0]), data.tensors[1])
    writer.add_scalar("loss", loss, epoch)
    writer.flush()
    trial.report(loss=loss)  # <-
