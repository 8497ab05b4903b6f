"""Four small tasks that a minute of one core does not exhaust, as recipes of gpusched: ``train(trial)``.

Data and networks are those of ``scripts/papers/real.py``; a step is 40 to 200 updates, then a look at data held back.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

sys.path.append(str(Path(__file__).resolve().parents[1]))
from papers import real

RATE = {"loguniform": [1e-4, 1.0]}
BATCH = {"choice": [16, 32, 64, 128]}
DENSE = {
    "lr": RATE,
    "momentum": {"choice": [0.0, 0.5, 0.9]},
    "weight_decay": {"loguniform": [1e-6, 1e-1]},
    "batch": BATCH,
    "width": {"choice": [16, 32, 64, 128]},
    "depth": {"choice": [1, 2, 3]},
}
ACTIVATION = {"choice": ["ReLU", "Tanh", "Sigmoid"]}
#: What is searched, and the updates of a step.
TASKS: dict[str, tuple[dict[str, Any], int]] = {
    "tabular": ({**DENSE, "activation": ACTIVATION, "dropout": {"choice": [0.0, 0.1, 0.3]}}, 200),
    "digits300": ({**DENSE, "activation": ACTIVATION, "dropout": {"choice": [0.0, 0.1, 0.3]}}, 100),
    "autoencoder": ({**DENSE, "activation": {"choice": ["ReLU", "Tanh", "GELU"]}}, 200),
    "adding": (
        {
            "lr": {"loguniform": [3e-4, 1e-1]},
            "batch": BATCH,
            "width": {"choice": [8, 16, 32]},
            "cell": {"choice": ["GRU", "LSTM", "RNN"]},
        },
        40,
    ),
}
#: Numbers of a sequence of the task ``adding``.
LENGTH = 40


class Recurrent(nn.Module):
    """Sequences (N, LENGTH, 2) to one number each (N)."""

    def __init__(self, cell: str, width: int) -> None:
        super().__init__()
        self.net = getattr(nn, cell)(2, width, batch_first=True)
        self.head = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.net(x)[0][:, -1])[:, 0]


def _sums(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Sequences of numbers of which two are marked, and the sum of those two."""
    generator = torch.Generator().manual_seed(seed)
    values, marks = torch.rand(count, LENGTH, generator=generator), torch.zeros(count, LENGTH)
    for low, high in ((0, LENGTH // 2), (LENGTH // 2, LENGTH)):
        places = torch.randint(low, high, (count,), generator=generator)
        marks[torch.arange(count), places] = 1.0
    return torch.stack([values, marks], 2), (values * marks).sum(1)


def _task(name: str, hp: Any) -> tuple[nn.Module, tuple[torch.Tensor, ...], Any, Any]:
    """Return the network, the data (two of training, two held back), the loss, and what is reported."""
    if name == "adding":
        data = (*_sums(20_000, 0), *_sums(500, 1))
        return Recurrent(hp.cell, hp.width), data, functional.mse_loss, functional.mse_loss
    x, y, test_x, test_y = real.split("digits" if name == "digits300" else name)
    activation = getattr(nn, hp.activation)
    if name == "autoencoder":
        sizes = [64, *[hp.width] * hp.depth, 6]
        halves = (real.layers(part, 0.0, activation) for part in (sizes, sizes[::-1]))
        mse = functional.mse_loss
        return nn.Sequential(*halves), (x, x, test_x, test_x), mse, mse
    sizes = [x.shape[1], *[hp.width] * hp.depth, 8 if name == "tabular" else 10]
    net = real.layers(sizes, hp.dropout, activation)
    entropy = functional.cross_entropy
    return net, (x, y, test_x, test_y), entropy, entropy if name == "tabular" else _errors


def _errors(said: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return (said.argmax(1) != labels).float().mean()


def _endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def train(trial: Any, name: str) -> None:
    """Train one configuration of the task; report the loss (or share of errors) on data held back after each step."""
    hp = trial.hparams
    net, (x, y, test_x, test_y), loss_of, reported = _task(name, hp)
    model = trial.wrap(net)
    if name == "adding":
        opt: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), hp.lr)
    else:
        decay = {"weight_decay": hp.weight_decay}
        opt = torch.optim.SGD(model.parameters(), hp.lr, momentum=hp.momentum, **decay)
    trial.scale_lr(opt)
    loader = trial.loader(range(len(x)), batch_size=hp.batch)
    trial.track(model=model, opt=opt)
    batches = _endless(loader)
    for _ in trial.steps():
        model.train()
        for chosen in islice(batches, TASKS[name][1]):
            loss = loss_of(model(x[chosen]), y[chosen])
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
        net.eval()
        with torch.no_grad():  # the data held back are few: each rank looks at all of them
            trial.report(loss=float(reported(net(test_x), test_y)))
