"""Recorded curves of real training as workloads, for figure ``decisions``.

    gpusched simulate scripts/papers/real.py:tabular --set R=128 --atoms 8 --deadline 60
    python scripts/papers/real.py [TASK ..]     records them again (torch, scikit-learn; ten minutes of a core)

Six small tasks that do not saturate in 128 steps, each trained once for 64 configurations drawn from its space: the
metric on data held back after each step, and the processor time of a step. In the workload a configuration is one of
the 64, without repetition; its step takes as long as it took, on a scale on which the median configuration needs 1 s.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

STEPS, CONFIGURATIONS = 128, 64
FOLDER = Path(__file__).with_name("curves")
SPACE = {"configuration": {"choice": list(range(CONFIGURATIONS))}}
METRIC, MODE = "loss", "min"
#: What a task measures. An accuracy is recorded as the share of errors, so that less is better everywhere.
WORDS = {
    "tabular": "Log loss of a network on generated tabular data: 40 columns, 8 classes.",
    "digits": "Share of errors of a network on 300 handwritten digits, a few of them wrongly labelled.",
    "autoencoder": "Squared error of handwritten digits squeezed through six numbers.",
    "boosting": "Share of errors of boosted trees, a tree of each class a step, on labels with noise: some overfit.",
    "adding": "Squared error of a recurrent network that adds two marked numbers: nothing for long, then a fall.",
    "charlm": "Bits a byte of a small transformer (``recipes/charlm.py``).",
}
TASKS = tuple(WORDS)


@functools.cache
def curves(task: str) -> list[tuple[list[float], float]]:
    """The curve and the relative time of a step of each configuration."""
    rows = [json.loads(line) for line in (FOLDER / f"{task}.jsonl").read_text().splitlines()]
    usual = statistics.median(row["step_s"] for row in rows)
    return [
        ([math.nan if value is None else value for value in row["curve"]], row["step_s"] / usual)
        for row in rows
    ]


def at(task: str, hp: Mapping[str, int], step: int) -> tuple[float, float]:
    """The metric, and the seconds of a step; a curve stays at its last value."""
    curve, step_s = curves(task)[hp["configuration"]]
    return curve[min(step, len(curve)) - 1], step_s


def workload(task: str) -> Callable[[Mapping[str, int], int], tuple[float, float]]:
    return lambda hp, step: at(task, hp, step)


globals().update({task: workload(task) for task in TASKS})


# ---------------------------------------------------------------- recording


def log_uniform(random: Random, low: float, high: float) -> float:
    return math.exp(random.uniform(math.log(low), math.log(high)))


def optimizer_of(net: Any, random: Random) -> Any:
    import torch

    name, decay = random.choice(["sgd", "momentum", "adam"]), log_uniform(random, 1e-6, 1e-1)
    if name == "adam":
        return torch.optim.AdamW(
            net.parameters(), log_uniform(random, 1e-5, 1e-1), weight_decay=decay
        )
    momentum = 0.9 if name == "momentum" else 0.0
    rate = log_uniform(random, 1e-4, 1e0) * (0.3 if momentum else 1.0)
    return torch.optim.SGD(net.parameters(), rate, momentum=momentum, weight_decay=decay)


def layers(sizes: list[int], dropout: float, activation: Any) -> Any:
    from torch import nn

    layers: list[Any] = []
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Linear(before, after), activation(), nn.Dropout(dropout)]
    return nn.Sequential(*layers[:-2])


def _network(
    data: Any, classes: int, random: Random, updates: int
) -> Iterator[tuple[float, float]]:
    """Yield the log loss and the share of errors after each step of so many updates."""
    import torch
    from torch import nn
    from torch.nn import functional

    x, y, test_x, test_y = data
    sizes = [x.shape[1], *[random.choice([16, 32, 64, 128])] * random.choice([1, 2, 3]), classes]
    net = layers(
        sizes, random.choice([0.0, 0.1, 0.3]), random.choice([nn.ReLU, nn.Tanh, nn.Sigmoid])
    )
    optimizer, batch = optimizer_of(net, random), random.choice([16, 32, 64, 128])
    while True:
        net.train()
        for _ in range(updates):
            chosen = torch.randint(len(x), (batch,))
            loss = functional.cross_entropy(net(x[chosen]), y[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        net.eval()
        with torch.no_grad():
            said = net(test_x)
            wrong = float((said.argmax(1) != test_y).float().mean())
            yield float(functional.cross_entropy(said, test_y)), wrong


@functools.cache
def split(task: str) -> Any:
    """Data of a task, as tensors: trained on and held back."""
    import torch
    from sklearn import datasets

    if task == "tabular":
        x, y = datasets.make_classification(
            6000,
            40,
            n_informative=16,
            n_classes=8,
            n_clusters_per_class=3,
            flip_y=0.05,
            random_state=7,
        )
        kept = 4000
    else:
        x, y = datasets.load_digits(return_X_y=True)
        kept = 300 if task == "digits" else 1200
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))
    x, y = torch.tensor(x, dtype=torch.float32)[order], torch.tensor(y)[order]
    x = x / 16.0 if task != "tabular" else (x - x.mean(0)) / x.std(0)
    if task == "digits":
        y[:kept:15] = y[:kept:15].roll(1)
    return x[:kept], y[:kept], x[kept:], y[kept:]


def _train_tabular(random: Random) -> Iterator[float]:
    return (loss for loss, _ in _network(split("tabular"), 8, random, 15))


def _train_digits(random: Random) -> Iterator[float]:
    return (wrong for _, wrong in _network(split("digits"), 10, random, 4))


def _train_autoencoder(random: Random) -> Iterator[float]:
    import torch
    from torch import nn
    from torch.nn import functional

    x, _, test_x, _ = split("autoencoder")
    width, activation = random.choice([32, 64, 128]), random.choice([nn.ReLU, nn.Tanh, nn.GELU])
    sizes = [64, *[width] * random.choice([1, 2]), 6]
    net = nn.Sequential(layers(sizes, 0.0, activation), layers(sizes[::-1], 0.0, activation))
    optimizer, batch = optimizer_of(net, random), random.choice([16, 32, 64, 128])
    while True:
        for _ in range(15):
            some = x[torch.randint(len(x), (batch,))]
            loss = functional.mse_loss(net(some), some)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            yield float(functional.mse_loss(net(test_x), test_x))


def _train_boosting(random: Random) -> Iterator[float]:
    from sklearn.ensemble import GradientBoostingClassifier

    x, y, test_x, test_y = (part.numpy() for part in split("tabular"))
    y = y.copy()
    y[:600:5] = (y[:600:5] + 3) % 8
    model = GradientBoostingClassifier(
        learning_rate=log_uniform(random, 3e-3, 1.5),
        n_estimators=STEPS,
        max_depth=random.choice([1, 2, 3, 4]),
        subsample=random.choice([0.3, 0.6, 1.0]),
        max_features=random.choice([3, 6, 12]),
        min_samples_leaf=random.choice([1, 5, 20]),
        random_state=random.randrange(10**6),
    ).fit(x[:600], y[:600])
    for predicted in model.staged_predict(test_x[:1500]):
        yield float((predicted != test_y[:1500]).mean())


def _train_adding(random: Random) -> Iterator[float]:
    import torch
    from torch import nn
    from torch.nn import functional

    def sample(count: int) -> tuple[Any, Any]:
        values, marks = torch.rand(count, 16), torch.zeros(count, 16)
        marks[torch.arange(count), torch.randint(8, (count,))] = 1.0
        marks[torch.arange(count), torch.randint(8, 16, (count,))] = 1.0
        return torch.stack([values, marks], 2), (values * marks).sum(1)

    torch.manual_seed(0)
    test_x, test_y = sample(500)
    torch.manual_seed(random.randrange(10**6))
    width = random.choice([8, 16, 32])
    kind = random.choice([nn.GRU, nn.LSTM, nn.RNN])
    net, head = kind(2, width, batch_first=True), nn.Linear(width, 1)
    both = nn.ModuleList([net, head])
    optimizer = torch.optim.Adam(both.parameters(), log_uniform(random, 3e-4, 1e-1))
    batch = random.choice([16, 32, 64])
    while True:
        for _ in range(8):
            x, y = sample(batch)
            loss = functional.mse_loss(head(net(x)[0][:, -1])[:, 0], y)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(both.parameters(), 1.0)
            optimizer.step()
        with torch.no_grad():
            yield float(functional.mse_loss(head(net(test_x)[0][:, -1])[:, 0], test_y))


def recipe_of(name: str) -> Any:
    """Import a script of ``recipes/``."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "recipes"))
    return importlib.import_module(name)


def _train_charlm(random: Random) -> Iterator[float]:
    import torch

    recipe = recipe_of("charlm")
    hp = SimpleNamespace(context=32, dropout=0.1, heads=4, text="stdlib")
    hp.width, hp.depth = random.choice([16, 32, 48]), random.choice([1, 2])
    rate, decay, batch = (
        log_uniform(random, 1e-4, 1e-1),
        log_uniform(random, 1e-3, 1.0),
        random.choice([8, 16]),
    )
    text = recipe.read_text(hp, "cpu")
    kept = int(len(text) * (1 - recipe.HELD_BACK))
    training, held_back = (recipe.Windows(part, hp.context) for part in (text[:kept], text[kept:]))
    some = torch.arange(0, len(held_back), math.ceil(len(held_back) / 200))
    net = recipe.Transformer(hp)
    optimizer = torch.optim.AdamW(
        net.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=decay, fused=True
    )
    ramp = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, (n + 1) / recipe.RAMP))
    while True:
        net.train()
        for _ in range(6):
            chosen = torch.randint(len(training), (batch,))
            loss = recipe.bits(net, *training.batch(chosen, shift=True))
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            ramp.step()
        net.eval()
        with torch.no_grad():
            yield float(recipe.bits(net, *held_back.batch(some, shift=False)))


def record(
    task: str,
    train: Callable[[Random], Iterator[float]],
    configurations: int = CONFIGURATIONS,
    steps: int = STEPS,
) -> None:
    """Write the curves of so many configurations, drawn by their number, into ``curves/TASK.jsonl``."""
    import torch

    torch.set_num_threads(1)
    FOLDER.mkdir(exist_ok=True)
    began = time.process_time()
    with (FOLDER / f"{task}.jsonl").open("w") as file:
        for number in range(configurations):
            torch.manual_seed(number)
            values, seconds, before = [], [], time.process_time()
            for value in train(Random(f"{task}/{number}")):
                values.append(float(f"{value:.4g}") if math.isfinite(value) else None)
                seconds.append(time.process_time() - before)
                before += seconds[-1]
                if len(values) == steps:
                    break
            # Boosted trees are all grown before the first is looked at.
            step_s = sum(seconds) / steps if task == "boosting" else statistics.median(seconds)
            row = {"step_s": float(f"{step_s:.3g}"), "curve": values}
            file.write(json.dumps(row, separators=(",", ":")) + "\n")
            file.flush()
    spent = time.process_time() - began
    print(f"{task}: {configurations} times {steps} steps, {spent:.0f} s of one core", flush=True)


if __name__ == "__main__":
    for name in sys.argv[1:] or TASKS:
        record(name, globals()[f"_train_{name}"])
