"""Minimised metrics, for figure ``foresight``; otherwise as ``hard.py``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from random import Random

SPACE = {name: {"uniform": [0.0, 1.0]} for name in ("u", "v", "w")}
METRIC, MODE, STEP_TIME = "loss", "min", 0.1


def loss(hp: Mapping[str, float], step: int, random: Random) -> float:
    """A power law down to a floor of its own; one in 20 diverges."""
    if hp["w"] < 0.05 and step > 12:
        return math.nan
    floor, fall = 1.6 + 1.2 * hp["u"] ** 2, 0.2 + 0.5 * hp["v"]
    return floor + 5.0 * step**-fall + random.gauss(0.0, 0.01)
