"""Trains on one rank, and apart from each other on several: the model is not wrapped."""

from __future__ import annotations

import torch

import gpusched

trial = gpusched.init()
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
trial.track(model=model, opt=optimizer)
for step in range(trial.step, 12):
    optimizer.zero_grad()
    model(torch.randn(4, 3)).square().mean().backward()
    optimizer.step()
    trial.report(score=float(step), ranks=trial.world_size)
