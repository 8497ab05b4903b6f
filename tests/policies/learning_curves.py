"""Curves to extrapolate, for the contract of all predictors and for their calibration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpusched.policies.extrapolation import CurvePredictor
from scripts.calibration import interval

Array = NDArray[np.float64]


def rising(length: int, end: float = 0.8, noise: float = 0.005, seed: int = 0) -> Array:
    """An ordinary learning curve from 0.1 towards ``end``."""
    x = np.arange(length)
    clean = end - (end - 0.1) * np.exp(-x / 12.0)
    return np.asarray(clean + np.random.default_rng(seed).normal(0, noise, length))


def synthetic(seed: int, horizon: int = 60) -> Array:
    """A curve that none of the predictors was made for: two exponentials, or nothing learnt at all."""
    random = np.random.default_rng([17, seed])
    x = np.arange(horizon)
    noise = random.normal(0, np.exp(random.uniform(np.log(0.003), np.log(0.02))), horizon)
    if random.random() < 0.25:
        return np.asarray(np.clip(random.uniform(0.05, 0.2) + noise, 0, 1))
    end, start = random.uniform(0.3, 0.95), random.uniform(0.0, 0.2)
    fast, slow = np.exp(random.uniform(0, 3)), np.exp(random.uniform(2, 4))
    share = random.random()
    fall = share * np.exp(-x / fast) + (1 - share) * np.exp(-x / slow)
    return np.asarray(np.clip(end - (end - start) * fall + noise, 0, 1))


@dataclass(frozen=True)
class Judged:
    """One forecast and what came true."""

    p: float
    reached: bool
    covered: bool


def judge(
    predictor: CurvePredictor, curves: list[Array], cuts: tuple[int, ...] = (10, 20, 30)
) -> Iterator[Judged]:
    """Each curve, seen up to each cut, against a target drawn from how all of them end."""
    random = np.random.default_rng(0)
    ends = np.array([curve[-1] for curve in curves])
    for trial, curve in enumerate(curves):
        for cut in cuts:
            target = float(np.quantile(ends, random.uniform(0.05, 0.95)))
            found = predictor.predict(curve[:cut], np.array([float(len(curve))]), (0, trial, cut))
            low, high = interval(found)
            p = float(found.reaches(target)[-1])
            yield Judged(p, bool(curve[-1] >= target), bool(low <= curve[-1] <= high))
