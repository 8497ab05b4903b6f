"""Recorded curves of real training that no policy was made on, for figure ``decisions-held-out``.

    gpusched simulate scripts/papers/held_out.py:lstm --set R=128 --atoms 8 --deadline 60
    python scripts/papers/held_out.py [TASK ..]     records them again (torch, scikit-learn; ten minutes of a core)

As in ``real.py``: six tasks, 64 configurations each, 128 steps. They were chosen for how their curves run before any
was looked at, and no policy has been changed since: rates that fall (by steps, by a cosine), data so few that training
overfits, reinforcement learning, a late insight, and noise as the target.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))
from papers import real
from papers.real import curves, log_uniform, optimizer_of

__all__ = ["CONFIGURATIONS", "METRIC", "MODE", "SPACE", "STEPS", "TASKS", "curves"]

CONFIGURATIONS, STEPS = real.CONFIGURATIONS, real.STEPS
SPACE, METRIC, MODE = real.SPACE, real.METRIC, real.MODE
WORDS = {
    "diabetes": "Squared error of a network on 300 patients: the best model is often an early one.",
    "convolution": "Share of errors of a convolutional network on digits, whose rate falls by steps.",
    "lstm": "Bits a byte of a recurrent character model, whose rate falls by a cosine to the last step.",
    "cartpole": "How far the last 100 episodes of a policy gradient are from 500 moves each, as a share.",
    "modular": 'Share of errors of sums modulo 23: learnt by heart at first, understood by some later ("grokking").',
    "diffusion": "Squared error of the noise that a network finds in points of two moons.",
}
TASKS = tuple(WORDS)
globals().update({task: real.workload(task) for task in TASKS})


# ---------------------------------------------------------------- recording


def _updates(
    net: Any, optimizer: Any, batch: Any, loss_of: Any, number: int, clip: float | None = None
) -> None:
    import torch

    net.train()
    for _ in range(number):
        loss = loss_of(net, *batch())
        optimizer.zero_grad()
        loss.backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(net.parameters(), clip)
        optimizer.step()
    net.eval()


def _some(x: Any, y: Any, size: int) -> Any:
    import torch

    def draw() -> tuple[Any, Any]:
        chosen = torch.randint(len(x), (size,))
        return x[chosen], y[chosen]

    return draw


def _train_diabetes(random: Random) -> Iterator[float]:
    import torch
    from sklearn import datasets
    from torch import nn
    from torch.nn import functional

    data = datasets.load_diabetes(return_X_y=True)
    x, y = (torch.tensor(part, dtype=torch.float32) for part in data)
    x, y = (x - x.mean(0)) / x.std(0), ((y - y.mean()) / y.std())[:, None]
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))
    x, y = x[order], y[order]
    sizes = [x.shape[1], *[random.choice([32, 64, 128, 256])] * random.choice([1, 2, 3]), 1]
    net = real.layers(sizes, random.choice([0.0, 0.2, 0.5]), random.choice([nn.ReLU, nn.Tanh]))
    optimizer = optimizer_of(net, random)
    batch = _some(x[:300], y[:300], random.choice([8, 16, 32, 64]))
    while True:
        _updates(net, optimizer, batch, lambda net, x, y: functional.mse_loss(net(x), y), 10)
        with torch.no_grad():
            yield float(functional.mse_loss(net(x[300:]), y[300:]))


def _train_convolution(random: Random) -> Iterator[float]:
    import torch
    from torch import nn
    from torch.nn import functional

    x, y, test_x, test_y = real.split("convolution")
    x, test_x = x.reshape(-1, 1, 8, 8)[:600], test_x.reshape(-1, 1, 8, 8)
    width = random.choice([4, 8, 16])
    net = nn.Sequential(
        *(nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(width, 2 * width, 3), nn.ReLU(), nn.Flatten()),
        *(nn.Dropout(random.choice([0.0, 0.2, 0.5])), nn.Linear(8 * width, 10)),
    )
    rate, decay = log_uniform(random, 1e-3, 1.0), log_uniform(random, 1e-6, 1e-1)
    optimizer = torch.optim.SGD(net.parameters(), rate, momentum=0.9, weight_decay=decay)
    falls = random.choice([(40, 80), (64, 96), (100,), ()])
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, falls, 0.1)
    batch = _some(x, y[:600], random.choice([8, 16, 32]))
    while True:
        _updates(net, optimizer, batch, lambda net, x, y: functional.cross_entropy(net(x), y), 4)
        schedule.step()
        with torch.no_grad():
            yield float((net(test_x).argmax(1) != test_y).float().mean())


def _train_lstm(random: Random) -> Iterator[float]:
    import torch
    from torch import nn
    from torch.nn import functional

    recipe = real.recipe_of("charlm")
    text = recipe.read_text(SimpleNamespace(context=32, text="stdlib"), "cpu")
    kept = int(len(text) * (1 - recipe.HELD_BACK))
    training, held_back = (recipe.Windows(part, 32) for part in (text[:kept], text[kept:]))
    some = torch.arange(0, len(held_back), math.ceil(len(held_back) / 150))
    width, size = random.choice([16, 32, 64]), random.choice([8, 16, 32])
    hidden = nn.LSTM(width, 2 * width, batch_first=True)
    net = nn.ModuleList([nn.Embedding(256, width), hidden, nn.Linear(2 * width, 256)])
    optimizer = torch.optim.AdamW(net.parameters(), log_uniform(random, 1e-4, 1e-1))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)

    def bits(net: Any, text: Any, following: Any) -> Any:
        said = net[2](net[1](net[0](text))[0]).flatten(0, 1)
        return functional.cross_entropy(said, following.flatten()) / math.log(2)

    def batch() -> Any:
        return training.batch(torch.randint(len(training), (size,)), shift=True)

    while True:
        _updates(net, optimizer, batch, bits, 5, clip=1.0)
        schedule.step()
        with torch.no_grad():
            yield float(bits(net, *held_back.batch(some, shift=False)))


def _train_cartpole(random: Random) -> Iterator[float]:
    import torch
    from torch import nn

    carts = real.recipe_of("cartpole").CartPole(8, random.randrange(10**6))
    width, horizon = random.choice([8, 16, 32]), random.choice([0.9, 0.95, 0.99])
    net = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 2))
    optimizer = torch.optim.Adam(net.parameters(), log_uniform(random, 1e-4, 1e-1))
    entropy = random.choice([0.0, 0.01, 0.05])
    while True:
        spoken, goes_on = [], []
        for _ in range(50):
            choice = torch.distributions.Categorical(logits=net(carts.seen()))
            action = choice.sample()
            _, fallen, late, _ = carts.step(action)
            spoken.append((choice.log_prob(action), choice.entropy()))
            goes_on.append(~(fallen | late))
        returns, running = [], torch.zeros(8)
        for alive in reversed(goes_on):
            running = 1.0 + horizon * running * alive
            returns.append(running)
        worth = torch.stack(returns[::-1])
        worth = (worth - worth.mean()) / (worth.std() + 1e-6)
        said, unsure = (torch.stack(part) for part in zip(*spoken, strict=True))
        loss = -(said * worth).mean() - entropy * unsure.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield 1.0 - float(carts.recent.mean()) / 500.0


def _train_modular(random: Random) -> Iterator[float]:
    import torch
    from torch import nn
    from torch.nn import functional

    base = 23
    pairs = torch.tensor(list(itertools.combinations_with_replacement(range(base), 2)))
    pairs = pairs[torch.randperm(len(pairs), generator=torch.Generator().manual_seed(1))]
    kept, sums = int(0.7 * len(pairs)), pairs.sum(1) % base
    width, hidden = random.choice([16, 32, 64]), random.choice([64, 128])
    embedding = nn.Embedding(base, width)
    head = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, base))
    net = nn.ModuleList([embedding, head])
    decay = log_uniform(random, 1e-2, 3.0)
    optimizer = torch.optim.AdamW(
        net.parameters(), log_uniform(random, 1e-4, 3e-2), weight_decay=decay
    )

    def loss_of(net: Any, pairs: Any, sums: Any) -> Any:
        return functional.cross_entropy(net[1](net[0](pairs).sum(1)), sums)

    batch = _some(pairs[:kept], sums[:kept], random.choice([64, 128, 256]))
    while True:
        _updates(net, optimizer, batch, loss_of, 40)
        with torch.no_grad():
            said = head(embedding(pairs[kept:]).sum(1)).argmax(1)
            yield float((said != sums[kept:]).float().mean())


def _train_diffusion(random: Random) -> Iterator[float]:
    import torch
    from sklearn import datasets
    from torch import nn
    from torch.nn import functional

    moons = torch.tensor(datasets.make_moons(4000, noise=0.05, random_state=1)[0]).float()
    width = random.choice([16, 32, 64, 128])
    net = real.layers([3, *[width] * random.choice([1, 2, 3]), 2], 0.0, nn.SiLU)
    optimizer = optimizer_of(net, random)

    def noisy(clean: Any, generator: Any = None) -> tuple[Any, Any]:
        time = torch.rand(len(clean), 1, generator=generator)
        noise = torch.randn(clean.shape, generator=generator)
        mixed = (1 - time).sqrt() * clean + time.sqrt() * noise
        return torch.cat([mixed, time], 1), noise

    held_back = noisy(moons[3000:], torch.Generator().manual_seed(1))
    size = random.choice([16, 32, 64, 128])

    def loss_of(net: Any, seen: Any, noise: Any) -> Any:
        return functional.mse_loss(net(seen), noise)

    def batch() -> Any:
        return noisy(moons[torch.randint(3000, (size,))])

    while True:
        _updates(net, optimizer, batch, loss_of, 10)
        with torch.no_grad():
            yield float(loss_of(net, *held_back))


if __name__ == "__main__":
    for name in sys.argv[1:] or TASKS:
        real.record(name, globals()[f"_train_{name}"])
