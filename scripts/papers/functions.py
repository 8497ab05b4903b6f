"""Functions of hyperparameters, for figure ``samplers``: what a configuration comes to depends on its values.

    gpusched simulate scripts/papers/functions.py:network --sampler tpe --set R=60

A step takes 0.1 units on one atom.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from random import Random
from typing import Any

SPACE = {
    "lr": {"loguniform": [1e-5, 1.0]},
    "width": {"logint": [8, 1024]},
    "dropout": {"uniform": [0.0, 0.7]},
    "decay": {"loguniform": [1e-7, 1e-1]},
    "opt": {"choice": ["adam", "sgd"]},
    "momentum": {"uniform": [0.0, 0.99], "when": {"opt": "sgd"}},
}
METRIC, MODE, STEP_TIME = "accuracy", "max", 0.1


def network(hp: Mapping[str, Any], step: int, random: Random) -> float:
    """Shaped like the accuracy of a small network: a ridge in rate and momentum, narrower and higher for sgd."""
    rate = math.log10(hp["lr"]) + (
        0.0 if hp["opt"] == "adam" else math.log10(1 - hp["momentum"]) + 1.0
    )
    off = (rate + (3.0 if hp["opt"] == "adam" else 1.5)) / (1.2 if hp["opt"] == "adam" else 0.8)
    size = (math.log2(hp["width"]) - 8.0) / 4.0
    drop = (hp["dropout"] - 0.15 - 0.1 * size) / 0.4
    decay = (math.log10(hp["decay"]) + 4.0) / 3.0
    miss = off * off + 0.5 * size * size + 0.5 * drop * drop + 0.3 * decay * decay
    end = (0.96 if hp["opt"] == "adam" else 0.98) - 0.6 * (1.0 - math.exp(-0.5 * miss))
    tau = 3.0 + 6.0 * math.exp(-0.7 * (rate + 3.0))
    return 0.1 + (end - 0.1) * (1.0 - math.exp(-step / min(200.0, tau))) + random.gauss(0.0, 0.004)


def ridge(hp: Mapping[str, Any], step: int, random: Random) -> float:
    """Only a product of rate and size counts, and fast starters end low: early scores mislead the sampler."""
    along = math.log10(hp["lr"]) + math.log2(hp["width"]) / 3.0
    end = 0.5 + 0.45 * math.exp(-((along - 0.5) ** 2)) - 0.2 * hp["dropout"]
    tau = 4.0 + 30.0 * max(0.0, end - 0.5)
    return end * (1.0 - math.exp(-step / tau)) + random.gauss(0.0, 0.004)
