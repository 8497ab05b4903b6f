"""Extrapolation of learning curves, for ``earlyterm`` and ``pop``: how a curve may continue, and what that means.

A curve is ``y(1), .., y(n)``, scaled to 0..1 with more being better. A predictor gives, for every later step m up to a
horizon, the distribution of the *observed* value y(m) (measurement noise included), as a weighted mixture of normal
distributions. ``extrapolate`` turns that into equations 1 to 3 of HyperDrive (Middleware'17, 3.1.1).

    (1)  P(m) = P(y(m) >= y_target | y(1..n))                 ``Prediction.reaches``
         p_m = P(m) - P(m - 1),  p = p_1 + .. + p_M
    (2)  x = 1 p_1 + 2 p_2 + .. + M p_M                       expected remaining steps
    (3)  ERT = x * (time of a step)                           made by the policy, which knows that time

P(m) is replaced by the largest so far, as the chance to have *reached* the target by then cannot fall.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import special

from gpusched.policies.foresight_curves import LIKELY, Curves, shapes_at, weights

Array = NDArray[np.float64]

#: More future steps than this are not evaluated one by one but interpolated.
MAX_STEPS = 64
MIN_POINTS = 3
#: Shapes that explain a curve less well than this share of the best one are left out.
NEGLIGIBLE = 1e-3


@dataclass(frozen=True, slots=True)
class Prediction:
    """The distribution of y(m) at some later steps, as a mixture of normal distributions, one a row."""

    steps: Array  # (m,), rising
    means: Array  # (k, m)
    scales: Array  # (k, m)
    weights: Array  # (k,), summing to 1

    def reaches(self, target: float) -> Array:
        """Return P(y(m) >= target | y(1..n)) at each of the steps: equation 1 of HyperDrive."""
        above: Array = special.ndtr((self.means - target) / self.scales)
        return np.clip(self.weights @ above, 0.0, 1.0)


class CurvePredictor(Protocol):
    """Extrapolates learning curves."""

    def predict(self, curve: Array, steps: Array, seed: Sequence[int]) -> Prediction:
        """Return the distribution of y at ``steps`` given the curve; the same arguments give the same answer.

        ``curve``: (n,), n at least 3, the values y(1) to y(n), from 0 (worst) to 1. ``steps``: (m,), rising, all above
        n. ``seed``: of a predictor that draws random numbers.
        """


class ShapesPredictor:
    """The forecaster of ``foresight``, on one curve (1 to 4 ms); the seed is not used."""

    def predict(self, curve: Array, steps: Array, seed: Sequence[int]) -> Prediction:
        """See ``CurvePredictor.predict``."""
        curves = Curves()
        curves.read({0: [(step, float(score)) for step, score in enumerate(curve, 1)]})
        start, height, start_var, height_var, cov, explained = curves.seen[0].fit
        likely = weights(explained + LIKELY)
        kept = likely > NEGLIGIBLE * likely.max()
        shape = shapes_at(steps)[:, kept].T
        start, height, start_var, height_var, cov = (
            one[kept, None] for one in (start, height, start_var, height_var, cov)
        )
        fitted = start_var + shape * (2 * cov + shape * height_var)
        scales = np.sqrt(fitted + curves.noise_var + curves.misfit_var)
        means = np.minimum(1.0, start + height * shape)
        return Prediction(steps, means, scales, likely[kept] / likely[kept].sum())


@dataclass(frozen=True, slots=True)
class Outlook:
    """Answer of an extrapolation about a target, in steps of the curve (one value a step), to nine decimal places.

    NumPy's last bits differ between processors, and decisions must not.

    ``reached_by_end``: p. ``remaining_steps``: x of equation 2. ``reached_at_end``: P(y(horizon) >= target).
    """

    reached_by_end: float
    remaining_steps: float
    reached_at_end: float


def extrapolate(
    curve: Sequence[float],
    horizon: int,
    target: float,
    *,
    predictor: CurvePredictor,
    seed: Sequence[int],
) -> Outlook | None:
    """Extrapolate a curve to the step ``horizon``; None if it is too short to say anything."""
    seen = np.asarray(curve, dtype=np.float64)
    ahead = horizon - len(seen)
    if len(seen) < MIN_POINTS or ahead < 1:
        return None
    steps = _evaluated(len(seen), horizon)
    prediction = predictor.predict(seen, steps, seed)
    at_each = prediction.reaches(target)
    future = np.arange(len(seen) + 1, horizon + 1, dtype=np.float64)
    p, x = remaining(np.interp(future, steps, at_each))
    return Outlook(*(round(each, 9) for each in (p, x, float(at_each[-1]))))


def remaining(reached: Array) -> tuple[float, float]:
    """p and x of equation 2, from P(1), .., P(M)."""
    by_then = np.maximum.accumulate(np.clip(reached, 0.0, 1.0))
    each = np.diff(by_then, prepend=0.0)
    return float(by_then[-1]), float(np.arange(1, len(each) + 1) @ each)


def _evaluated(length: int, horizon: int) -> Array:
    """The steps to evaluate: all of them, or the first ones densely and the rest ever more sparsely."""
    ahead = horizon - length
    if ahead <= MAX_STEPS:
        return np.arange(length + 1, horizon + 1, dtype=np.float64)
    offsets = np.unique(np.round(np.geomspace(1, ahead, MAX_STEPS)))
    return length + offsets
