"""A model, its optimizer, a step of it and its weights: what scripts that are about something else need."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import gpusched


def linear(inputs: int = 1, dtype: torch.dtype = torch.float32, lr: float = 0.1) -> tuple[Any, Any]:
    """A layer with one output, and SGD for it."""
    model = nn.Linear(inputs, 1, dtype=dtype)
    return model, torch.optim.SGD(model.parameters(), lr=lr)


def with_a_layer() -> Any:
    """The trial of a script that tracks one layer."""
    trial = gpusched.init()
    trial.track(model=nn.Linear(1, 1))
    return trial


def descend(optimizer: Any, loss: Any) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def weights_of(*models: nn.Module) -> list[float]:
    return torch.cat([p.detach().flatten() for m in models for p in m.parameters()]).tolist()
