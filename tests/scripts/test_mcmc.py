"""The MCMC model (Domhan et al., IJCAI'15; HyperDrive, section 5.2): what it forecasts."""

from __future__ import annotations

import numpy as np

from scripts.papers.mcmc import McmcPredictor
from tests.policies.test_extrapolation import interval


def test_it_finds_the_curve_it_was_given() -> None:
    """A pow3 curve with little noise, seen half: its end within the 90 % interval, and that not wide."""
    x = np.arange(1.0, 81.0)
    curve = 0.85 - 0.6 * x**-0.6
    noisy = curve + np.random.default_rng(1).normal(0, 0.003, 80)
    found = McmcPredictor().predict(noisy[:40], x[40:], (1,))
    low, high = interval(found)
    assert low < curve[-1] < high
    assert high - low < 0.08
    assert found.reaches(0.95)[-1] < 0.05
