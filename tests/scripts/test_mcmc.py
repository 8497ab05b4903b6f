"""The MCMC model (Domhan et al., IJCAI'15; HyperDrive, section 5.2): its curves, and what it forecasts."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from scripts.calibration import interval
from scripts.papers import mcmc
from scripts.papers.mcmc import MODELS, McmcPredictor
from tests.policies.test_extrapolation import check_calibration


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


@pytest.mark.slow
def test_its_probabilities_mean_something() -> None:
    check_calibration(McmcPredictor(), curves=60)


FORMULAS: dict[str, Callable[..., float]] = {
    "vapor_pressure": lambda x, a, b, c: math.exp(a + b / x + c * math.log(x)),
    "pow3": lambda x, c, a, alpha: c - a * x ** (-alpha),
    "log_log_linear": lambda x, a, b: math.log(a * math.log(x) + b),
    "hill3": lambda x, top, eta, kappa: top * x**eta / (kappa**eta + x**eta),
    "log_power": lambda x, a, b, c: a / (1 + (x / math.exp(b)) ** c),
    "pow4": lambda x, c, a, b, alpha: c - (a * x + b) ** (-alpha),
    "mmf": lambda x, alpha, beta, kappa, delta: alpha - (alpha - beta) / (1 + (kappa * x) ** delta),
    "exp4": lambda x, c, a, b, alpha: c - math.exp(-a * x**alpha + b),
    "janoschek": lambda x, alpha, beta, kappa, delta: (
        alpha - (alpha - beta) * math.exp(-kappa * x**delta)
    ),
    "weibull": lambda x, alpha, beta, kappa, delta: (
        alpha - (alpha - beta) * math.exp(-((kappa * x) ** delta))
    ),
    "ilog2": lambda x, c, a: c - a / math.log(x + 1),
}


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_a_curve_is_its_formula(model: mcmc.Model) -> None:
    random = np.random.default_rng(3)
    parameters = random.uniform(0.3, 1.1, size=(model.size, 5))
    x = np.array([1.0, 2.0, 7.5, 100.0])
    found = model.curves(parameters.T, x)
    assert found.shape == (5, 4)
    formula = FORMULAS[model.name]
    for walker in range(5):
        expected = [formula(step, *parameters[:, walker]) for step in x]
        assert found[walker] == pytest.approx(expected)
