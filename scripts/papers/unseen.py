"""Made-up workloads of an author who had seen no policy, for figure ``decisions-unseen``; as ``real.py`` otherwise.

    gpusched simulate scripts/papers/unseen.py:grokking --set R=200 --atoms 8 --deadline 60

``made_up.py`` was written from a list of mechanisms alone (rates that fall, overfitting, divergence, late insight ..),
without sight of the shapes that ``foresight`` and ``pop`` fit, and is used as it came. A workload has 64 configurations
drawn from its space; what is to be large has its sign turned, so that less is better everywhere.
"""

from __future__ import annotations

import functools
import math
import statistics
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))
from papers import made_up, real

CONFIGURATIONS, STEPS = real.CONFIGURATIONS, made_up.TOTAL
SPACE, METRIC, MODE = real.SPACE, real.METRIC, real.MODE
TASKS = tuple(made_up.WORKLOADS)


def draw(random: Random) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, (kind, *bounds) in made_up.SPACE.items():
        if kind == "choice":
            found[name] = random.choice(bounds[0])
        elif kind == "uniform":
            found[name] = random.uniform(*bounds)
        else:
            found[name] = math.exp(random.uniform(*map(math.log, bounds)))
    return found


@functools.cache
def curves(task: str) -> list[tuple[list[float], float]]:
    """The curve and the relative time of a step of each configuration."""
    of, mode = made_up.WORKLOADS[task]
    found = []
    for number in range(CONFIGURATIONS):
        hp = draw(Random(f"{task}/{number}"))
        told = [of(hp, step, Random(f"{task}/{number}/{step}")) for step in range(1, STEPS + 1)]
        metrics = [-value if mode == "max" else value for value, _ in told]
        found.append((metrics, statistics.fmean(seconds for _, seconds in told)))
    usual = statistics.median(step_s for _, step_s in found)
    return [(metrics, step_s / usual) for metrics, step_s in found]


def workload(task: str) -> Callable[[Mapping[str, int], int], tuple[float, float]]:
    def metric(hp: Mapping[str, int], step: int) -> tuple[float, float]:
        curve, step_s = curves(task)[hp["configuration"]]
        return curve[min(step, STEPS) - 1], step_s

    metric.__doc__ = made_up.WORKLOADS[task][0].__doc__
    return metric


globals().update({task: workload(task) for task in TASKS})
