"""As torch's multi-GPU example with a snapshot: a Trainer class that wraps DDP, samples and saves by itself."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import gpusched


class Trainer:
    def __init__(self, model, data, optimizer, snapshot):
        self.model = DistributedDataParallel(model)
        self.data, self.optimizer, self.snapshot = data, optimizer, snapshot
        self.first_epoch = 0
        if snapshot:
            saved = torch.load(snapshot)
            self.model.module.load_state_dict(saved["model"])
            self.optimizer.load_state_dict(saved["optimizer"])
            self.first_epoch = saved["epochs"]

    def epoch(self, epoch):
        self.data.sampler.set_epoch(epoch)
        for source, target in self.data:
            self.optimizer.zero_grad()
            loss = nn.functional.mse_loss(self.model(source), target)
            loss.backward()
            self.optimizer.step()
        return loss

    def save(self, epochs, path):
        model, optimizer = self.model.module.state_dict(), self.optimizer.state_dict()
        torch.save({"model": model, "optimizer": optimizer, "epochs": epochs}, path)

    def train(self, epochs, trial):
        for epoch in range(self.first_epoch, epochs):
            loss = self.epoch(epoch)
            trial.report(loss=trial.mean(loss, 1))  # <-
            if trial.should_save():  # <-
                with trial.checkpoint_dir() as folder:  # <-
                    if trial.rank == 0:
                        self.save(epoch + 1, folder / "snapshot.pt")


def main():
    trial = gpusched.init()  # <-
    dist.init_process_group("gloo", **{} if "RANK" in os.environ else ALONE)
    torch.manual_seed(0)
    x = torch.rand(128, 8)
    data = TensorDataset(x, x.sum(1, keepdim=True))
    size = trial.local_batch(32)  # <-
    loader = DataLoader(data, batch_size=size, shuffle=False, sampler=DistributedSampler(data))
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    folder = trial.restored_dir  # <-
    Trainer(model, loader, optimizer, folder and folder / "snapshot.pt").train(20, trial)
    dist.destroy_process_group()


ALONE = {"init_method": "tcp://127.0.0.1:0", "rank": 0, "world_size": 1}
main()
