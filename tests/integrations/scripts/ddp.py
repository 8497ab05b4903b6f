"""As torch's multi-GPU example with a snapshot: a Trainer class that wraps DDP, samples, and saves by itself.

Its snapshot stays what it is, in a working directory of each trial (``cwd: private``).
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from gpusched import trial


class Trainer:
    def __init__(self, model, data, optimizer, save_every, snapshot):
        self.rank = int(os.environ["LOCAL_RANK"])
        self.model, self.data, self.optimizer = model, data, optimizer
        self.save_every, self.snapshot = save_every, snapshot
        self.epochs_run = 0
        if os.path.exists(snapshot):  # noqa: PTH110 - as it is there
            saved = torch.load(snapshot)
            self.model.load_state_dict(saved["MODEL_STATE"])
            self.epochs_run = saved["EPOCHS_RUN"]
        self.model = DistributedDataParallel(self.model)

    def run_epoch(self, epoch):
        self.data.sampler.set_epoch(epoch)
        for source, target in self.data:
            self.optimizer.zero_grad()
            loss = nn.functional.mse_loss(self.model(source), target)
            loss.backward()
            self.optimizer.step()
        return loss

    def save_snapshot(self, epoch):
        snapshot = {"MODEL_STATE": self.model.module.state_dict(), "EPOCHS_RUN": epoch}
        torch.save(snapshot, self.snapshot)

    def train(self, epochs):
        for epoch in trial.steps(epochs, model=self.model, optimizer=self.optimizer):  # <-
            loss = self.run_epoch(epoch)
            if self.rank == 0 and epoch % self.save_every == 0:
                self.save_snapshot(epoch)
            trial.report(loss=trial.mean(loss, 1))  # <-


def main(epochs, save_every, batch_size, snapshot="snapshot.pt"):
    if not dist.is_initialized():  # <-
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    x = torch.rand(128, 8)
    data = TensorDataset(x, x.sum(1, keepdim=True))
    size = trial.local_batch(batch_size)  # <-
    loader = DataLoader(data, batch_size=size, shuffle=False, sampler=DistributedSampler(data))
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    Trainer(model, loader, optimizer, save_every, snapshot).train(epochs)
    dist.destroy_process_group()


main(20, save_every=10, batch_size=32)
