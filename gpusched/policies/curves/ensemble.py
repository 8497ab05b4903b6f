"""``least_squares``: a cheap, deterministic ensemble (some milliseconds a curve).

Each member is a fixed shape h(x), which rises from 0 at the first step to 1 at the horizon, and a noise level. Given
both, ``y(x) = start + rise * h(x) + noise`` is linear in two unknowns with a normal prior, so the least-squares fit,
its uncertainty and the evidence for the member all have a closed form. The shapes are those of the eleven curves of
Domhan et al. (power laws, exponentials of a power, Hill and MMF sigmoids, logarithms) on a grid of their parameters;
members count by their evidence. Nothing is drawn at random and nothing is iterated.

The evidence alone would be too sure of itself, as real curves are like none of the shapes: ``DRIFT``, ``DOUBT`` and
``TEMPER`` are the three constants that make its probabilities mean what they say.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpusched.policies.curves.predictor import TEMPER, Array, Prediction

#: Normal prior of (value at the first step, rise from there to the horizon), on the scale 0..1.
PRIOR_MEAN = np.array([0.4, 0.25])
PRIOR_SD = np.array([0.4, 0.35])
NOISE_LEVELS = np.geomspace(0.002, 0.15, 10)
#: Standard deviations that extrapolation adds to every member for changes that no shape describes: for a horizon at e
#: times the observed length, and as a share of the predicted change. With ``TEMPER`` chosen on one half of the recorded
#: curves and judged on the other half (scripts/calibration.py).
DRIFT = 0.015
DOUBT = 0.25
#: Members whose weight is below this share of the best member's are left out.
NEGLIGIBLE = 1e-3


class EnsemblePredictor:
    """Implements ``CurvePredictor``; the seed is not used."""

    def predict(self, curve: Array, steps: Array, seed: Sequence[int]) -> Prediction:
        """See ``CurvePredictor.predict``."""
        count = len(curve)
        seen = np.arange(1, count + 1, dtype=np.float64)
        shapes = _shapes(np.concatenate([seen, steps]))
        observed, ahead = shapes[:, :count], shapes[:, count:]
        precision, linear, evidence = _posterior(observed, curve)
        weights = np.exp(TEMPER * (evidence - evidence.max()))
        weights[weights < NEGLIGIBLE] = 0.0
        shape, level = np.nonzero(weights)
        kept = weights[shape, level]
        covariance = np.linalg.inv(precision[shape, level])
        mean = np.einsum("kij,kj->ki", covariance, linear[shape, level])
        features = np.stack([np.ones_like(ahead[shape]), ahead[shape]], axis=-1)  # (k, m, 2)
        means = np.einsum("kmi,ki->km", features, mean)
        of_fit = np.einsum("kmi,kij,kmj->km", features, covariance, features)
        drift = DRIFT * np.log(steps / count)
        last = mean[:, :1] + mean[:, 1:] * observed[shape, -1:]
        doubt = DOUBT * (means - last)
        scales = np.sqrt(
            of_fit + NOISE_LEVELS[level][:, None] ** 2 + drift[None, :] ** 2 + doubt**2
        )
        return Prediction(steps, means, scales, kept / kept.sum())


def _posterior(observed: Array, curve: Array) -> tuple[Array, Array, Array]:
    """For every shape (first axis) and noise level: posterior precision, precision times mean, log evidence."""
    count = len(curve)
    design = np.stack([np.ones_like(observed), observed], axis=-1)  # (shape, n, 2)
    gram = np.einsum("kni,knj->kij", design, design)
    moment = np.einsum("kni,n->ki", design, curve)
    inverse_noise = NOISE_LEVELS**-2.0
    prior_precision = np.diag(PRIOR_SD**-2.0)
    prior_linear = prior_precision @ PRIOR_MEAN
    precision = gram[:, None] * inverse_noise[None, :, None, None] + prior_precision
    linear = moment[:, None] * inverse_noise[None, :, None] + prior_linear
    fitted = np.einsum("slij,slj->sli", np.linalg.inv(precision), linear)
    squares = inverse_noise * float(curve @ curve) + float(prior_linear @ PRIOR_MEAN)
    misfit = squares[None, :] - np.einsum("sli,sli->sl", linear, fitted)
    determinant = np.linalg.slogdet(precision)[1] + 2.0 * np.log(PRIOR_SD).sum()
    evidence: Array = -0.5 * (misfit + determinant) - count * np.log(NOISE_LEVELS)[None, :]
    return precision, linear, evidence


def _shapes(x: Array) -> Array:
    """Every shape at ``x`` (from the first step to the horizon), scaled to run from 0 to 1. One shape a row."""
    end = x[-1]
    falling: list[Array] = [-np.log(x), 1.0 / np.log(x + 1.0)]
    for exponent in (0.1, 0.25, 0.5, 1.0, 2.0):
        for offset in (0.0, 3.0, 10.0, 30.0):
            falling.append((x + offset) ** -exponent)
    for half in np.geomspace(1.0, end, 12):
        falling += [np.exp(-((x / half) ** power)) for power in (0.5, 1.0, 2.0)]
        falling += [1.0 / (1.0 + (x / half) ** power) for power in (1.0, 2.0, 4.0)]
    values = np.array(falling)
    span = values[:, :1] - values[:, -1:]
    scaled: Array = (values[:, :1] - values) / np.maximum(span, 1e-12)
    return scaled
