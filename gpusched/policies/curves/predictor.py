"""The seam ``CurvePredictor`` and what every predictor answers with: a mixture over possible continuations.

A curve is ``y(1), .., y(n)``, scaled to 0..1 with more being better. A predictor gives, for every later step m up to a
horizon, the distribution of the *observed* value y(m) (measurement noise included), as a weighted mixture of normal
distributions.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import special

Array = NDArray[np.float64]

#: name -> (module, class)
PREDICTORS: Mapping[str, tuple[str, str]] = {
    "mcmc": ("gpusched.policies.curves.mcmc", "McmcPredictor"),
    "least_squares": ("gpusched.policies.curves.ensemble", "EnsemblePredictor"),
}


#: Power of the likelihood, in both predictors. Neighbouring steps err alike, and no curve is quite like those fitted:
#: n steps tell less than n times as much. 1 is the paper's and too sure of itself (scripts/calibration.py).
TEMPER = 0.3


@dataclass(frozen=True, slots=True)
class Prediction:
    """The distribution of y(m) at some later steps, as a mixture of normal distributions, one a row."""

    steps: Array  # (m,), rising
    means: Array  # (k, m)
    scales: Array  # (k, m)
    weights: Array  # (k,), summing to 1

    def reaches(self, target: float) -> Array:
        """P(y(m) >= target | y(1..n)) at each of the steps: equation 1 of HyperDrive."""
        above: Array = special.ndtr((self.means - target) / self.scales)
        return np.clip(self.weights @ above, 0.0, 1.0)

    @property
    def mean(self) -> float:
        """Expectation of y at the last step."""
        return float(self.weights @ self.means[:, -1])

    @property
    def spread(self) -> float:
        """Standard deviation of the possible curves at the last step (HyperDrive's prediction accuracy PA)."""
        variance = float(self.weights @ (self.means[:, -1] - self.mean) ** 2)
        return math.sqrt(max(0.0, variance))

    def quantile(self, share: float) -> float:
        """The value that y at the last step stays below with this probability."""
        means, scales = self.means[:, -1], self.scales[:, -1]
        reach = 60.0 * float(scales.max())
        low, high = float(means.min()) - reach, float(means.max()) + reach
        for _ in range(80):
            middle = 0.5 * (low + high)
            if float(self.weights @ special.ndtr((middle - means) / scales)) < share:
                low = middle
            else:
                high = middle
        return 0.5 * (low + high)

    def interval(self, level: float = 0.9) -> tuple[float, float]:
        """The central interval of y at the last step."""
        tail = 0.5 * (1.0 - level)
        return self.quantile(tail), self.quantile(1.0 - tail)


class CurvePredictor(Protocol):
    """Extrapolates learning curves."""

    def predict(self, curve: Array, steps: Array, seed: Sequence[int]) -> Prediction:
        """The distribution of y at ``steps`` (rising, all beyond ``len(curve)``) given the curve.

        ``curve`` is finite and has at least three values. The same arguments give the same answer.
        """
        ...


def make_predictor(name: str) -> CurvePredictor:
    """A predictor by name. Raises KeyError for an unknown name."""
    module, attribute = PREDICTORS[name]
    made: CurvePredictor = getattr(importlib.import_module(module), attribute)()
    return made
