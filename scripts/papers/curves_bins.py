"""Losses shaped like figure 2 of Hermes (Electronics'21): 16 jobs of 1000 iterations, 4 or 12 of them good.

Good combinations converge within 500 (60% of them) or 1000 iterations; the others stay above half of the first loss. A
step is ten iterations. ``short`` is GoogleNet (0.030 s an iteration at batch 16, Table 2), ``long`` VGG19 (0.110 s).
"""

from __future__ import annotations

import math
from random import Random

JOBS, STEPS, ITERATIONS_A_STEP = 16, 100, 10
SPACE = {"job": {"choice": list(range(JOBS))}}
METRIC, MODE = "loss", "min"
FIRST_LOSS = 7.0
SECONDS_AN_ITERATION = {"short": 0.030, "long": 0.110}


def _shape(job: int, good: int) -> tuple[float, float]:
    """(final loss, time constant in iterations)."""
    random = Random(f"bin {good}, job {job}")
    if job < good:
        fast = random.random() < 0.6
        return random.uniform(1.0, 1.15), random.uniform(60.0, 140.0) if fast else random.uniform(
            180.0, 260.0
        )
    return random.uniform(4.0, 6.8), random.uniform(200.0, 1500.0)


def _loss(hp: dict, step: int, good: int, model: str) -> tuple[float, float]:
    final, tau = _shape(hp["job"], good)
    value = final + (FIRST_LOSS - final) * math.exp(-step * ITERATIONS_A_STEP / tau)
    noise = Random(f"{hp['job']}, {step}").gauss(0.0, 0.05)
    return value + noise, ITERATIONS_A_STEP * SECONDS_AN_ITERATION[model]


def bin_1_short(hp: dict, step: int) -> tuple[float, float]:
    return _loss(hp, step, 4, "short")


def bin_2_short(hp: dict, step: int) -> tuple[float, float]:
    return _loss(hp, step, 12, "short")


def bin_1_long(hp: dict, step: int) -> tuple[float, float]:
    return _loss(hp, step, 4, "long")


def bin_2_long(hp: dict, step: int) -> tuple[float, float]:
    return _loss(hp, step, 12, "long")
