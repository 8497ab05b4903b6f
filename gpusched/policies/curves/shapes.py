"""``shapes``: the forecaster of ``foresight``, on one curve (some milliseconds, and nothing drawn at random)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpusched.policies.curves.predictor import Array, Prediction
from gpusched.policies.foresight_curves import LIKELY, Curves, shapes_at, weights

#: Shapes that explain a curve less well than this share of the best one are left out.
NEGLIGIBLE = 1e-3


class ShapesPredictor:
    """Implements ``CurvePredictor``; the seed is not used."""

    def predict(self, curve: Array, steps: Array, seed: Sequence[int]) -> Prediction:
        """See ``CurvePredictor.predict``."""
        curves = Curves()
        curves.read({0: [(step, float(score)) for step, score in enumerate(curve, 1)]}, 1.0)
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
