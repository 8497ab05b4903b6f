"""From a ``Forecast`` command to the numbers of its answer: equations 1 to 3 of HyperDrive (Middleware'17, 3.1.1).

    (1)  P(m) = P(y(m) >= y_target | y(1..n))                 ``Prediction.reaches``
         p_m = P(m) - P(m - 1),  p = p_1 + .. + p_M
    (2)  x = 1 p_1 + 2 p_2 + .. + M p_M                       expected remaining steps
    (3)  ERT = x * (time of a step)                           made by the policy, which knows that time

P(m) is the chance to be at the target *at* step m. What is sought is the chance to have *reached* it by then, which
cannot fall: P(m) is replaced by the largest so far, which changes nothing where curves rise.
"""

from __future__ import annotations

import numpy as np

from gpusched.core.decisions import Forecast
from gpusched.policies.curves.predictor import Array, CurvePredictor

#: More future steps than this are not evaluated one by one but interpolated.
MAX_STEPS = 64
MIN_POINTS = 3


def forecast(command: Forecast, predictor: CurvePredictor, seed: int) -> dict[str, float]:
    """Probabilities and expectations for one curve; empty if the curve is too short to say anything.

    ``reached_by_end``: p. ``remaining_steps``: x of equation 2. ``reached_at_end``: P(y(horizon) >= target).
    ``mean``, ``spread``, ``low``, ``high``: of y at the horizon; the last two bound the central 90 %.
    Steps are those of the curve (one value a step).
    """
    curve = np.asarray(command.curve, dtype=np.float64)
    ahead = command.horizon - len(curve)
    if len(curve) < MIN_POINTS or ahead < 1:
        return {}
    steps = _evaluated(len(curve), command.horizon)
    prediction = predictor.predict(curve, steps, (seed, command.trial, command.step))
    at_each = prediction.reaches(command.target)
    future = np.arange(len(curve) + 1, command.horizon + 1, dtype=np.float64)
    p, x = remaining(np.interp(future, steps, at_each))
    low, high = prediction.interval(0.9)
    return {
        "reached_by_end": p,
        "remaining_steps": x,
        "reached_at_end": float(at_each[-1]),
        "mean": prediction.mean,
        "spread": prediction.spread,
        "low": low,
        "high": high,
    }


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
