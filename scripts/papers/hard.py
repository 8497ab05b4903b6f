"""Workloads that are hard on a scheduler, for figure ``foresight``.

    gpusched simulate scripts/papers/hard.py:slow --set R=500

A step takes 0.1 units on one atom. Each has one difficulty: early ranks mislead (``slow``, ``takeoff``, ``crossing``,
``overfit``), nothing tells configurations apart (``equal``), training further is useless (``plateau``, ``copies``),
good configurations are rare (``rare``), progress comes in jumps (``stairs``), or nobody knows the best possible metric
(``reward``; ``loss`` in ``hard_min.py``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from random import Random

SPACE = {name: {"uniform": [0.0, 1.0]} for name in ("u", "v", "w")}
METRIC, MODE, STEP_TIME = "score", "max", 0.1
Hparams = Mapping[str, float]


def slow(hp: Hparams, step: int) -> float:
    """The slower a configuration starts the better it ends."""
    tau = 4.0 * 40.0 ** hp["u"]
    return (0.45 + 0.4 * hp["u"] + 0.1 * hp["v"]) * (1.0 - math.exp(-step / tau))


def equal(hp: Hparams, step: int, random: Random) -> float:
    """Every configuration trains alike; only noise ranks them."""
    return 0.9 * (1.0 - math.exp(-step / 120.0)) + random.gauss(0.0, 0.01)


def plateau(hp: Hparams, step: int, random: Random) -> float:
    """Trained to the end within ten steps: what counts is how many configurations were looked at."""
    end = 0.65 * (1.0 - hp["v"] ** 0.35)
    return 0.3 + end * (1.0 - math.exp(-step / (1.5 + 6.0 * hp["u"]))) + random.gauss(0.0, 0.004)


def takeoff(hp: Hparams, step: int, random: Random) -> float:
    """At chance for 3 to 160 steps, then a steep rise; good ones take off at any time."""
    start, end = 10.0 ** (0.5 + 1.7 * hp["u"]), 0.1 + 0.85 * hp["v"] ** 1.5
    return 0.1 + (end - 0.1) / (1.0 + (start / step) ** 4) + random.gauss(0.0, 0.005)


def crossing(hp: Hparams, step: int, random: Random) -> float:
    """Two families: one learns fast and ends low, the other overtakes it after about 60 steps."""
    is_late = hp["u"] > 0.6
    tau, end = (60.0, 0.75 + 0.2 * hp["v"]) if is_late else (8.0, 0.45 + 0.25 * hp["v"])
    return end * (1.0 - math.exp(-step / tau)) + random.gauss(0.0, 0.003)


def overfit(hp: Hparams, step: int, random: Random) -> float:
    """Rises, peaks after 10 to 200 steps, and falls again."""
    peak, height = 10.0 * 20.0 ** hp["u"], 0.5 + 0.45 * hp["v"]
    away = math.log(step / peak)
    return height * math.exp(-0.12 * away * away) + random.gauss(0.0, 0.003)


def rare(hp: Hparams, step: int, random: Random) -> float:
    """One configuration of 30 is far better, which shows from about step 10 on."""
    end = 0.9 + 0.08 * hp["v"] if hp["u"] < 1.0 / 30.0 else 0.35 + 0.25 * hp["v"]
    return end * (1.0 - math.exp(-step / (6.0 + 30.0 * hp["w"]))) + random.gauss(0.0, 0.005)


def stairs(hp: Hparams, step: int, random: Random) -> float:
    """Levels off, and jumps where the learning rate falls, after 40 and 160 steps."""
    height = 0.5 + 0.3 * hp["v"] + 0.1 * (1.0 - math.exp(-step / 10.0))
    drops = 0.07 * (step > 40) + 0.04 * (step > 160)
    return (
        height * (1.0 - math.exp(-step / (2.0 + 10.0 * hp["u"])))
        + drops * hp["w"]
        + random.gauss(0.0, 0.003)
    )


def copies(hp: Hparams, step: int) -> float:
    """Five configurations over and over, without noise: every comparison is a tie."""
    kind = int(5 * hp["u"])
    return (0.5 + 0.08 * kind) * (1.0 - math.exp(-step / (10.0 + 5.0 * kind)))


def reward(hp: Hparams, step: int, random: Random) -> float:
    """Returns without a ceiling, from hundreds below nought to thousands, noisy."""
    end = 4000.0 * hp["u"] * hp["v"]
    return (
        -300.0
        + (end + 300.0) * (1.0 - math.exp(-step / (30.0 + 100.0 * hp["w"])))
        + random.gauss(0.0, 40.0)
    )
