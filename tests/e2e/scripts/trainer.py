"""A trainer that owns its loop and calls hooks, as libraries do (docs/coming-from.md)."""

from __future__ import annotations

import os

import torch

import gpusched


class Search:
    def __init__(self, trial: gpusched.Trial) -> None:
        self.trial = trial

    def on_train_begin(self, trainer: Trainer) -> None:
        self.trial.track(model=trainer.model, opt=trainer.optimizer, schedule=trainer.scheduler)
        trainer.epoch = self.trial.step

    def on_evaluate(self, trainer: Trainer, metrics: dict[str, float]) -> None:
        self.trial.report(score=metrics["score"], epoch=trainer.epoch, lr=trainer.rate)


class Trainer:
    def __init__(self, model: torch.nn.Module, lr: float, callbacks: list[Search]) -> None:
        several = int(os.environ.get("WORLD_SIZE", "1")) > 1
        self.model = torch.nn.parallel.DistributedDataParallel(model) if several else model
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=lr)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.5)
        self.callbacks = callbacks
        self.epoch = 0

    @property
    def rate(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])

    def fit(self, epochs: int) -> None:
        for callback in self.callbacks:
            callback.on_train_begin(self)
        while self.epoch < epochs:
            self.optimizer.zero_grad()
            self.model(torch.ones(4, 2)).square().mean().backward()
            self.optimizer.step()
            self.scheduler.step()
            self.epoch += 1
            for callback in self.callbacks:
                callback.on_evaluate(self, {"score": float(self.epoch)})


trial = gpusched.init()
Trainer(torch.nn.Linear(2, 1), lr=0.5, callbacks=[Search(trial)]).fit(12)
