"""The eleven curves of Domhan et al. (IJCAI'15, table 1), each against its formula written out once more."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from gpusched.policies.curves.models import MODELS, SIZE, evaluate, highs, lows

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


def test_there_are_eleven_with_36_parameters() -> None:
    """With 11 weights and sigma: 48 dimensions, for which 100 walkers are just enough (more than twice as many)."""
    assert [model.name for model in MODELS] == list(FORMULAS)
    assert SIZE == 36


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_a_curve_is_its_formula(model: object) -> None:
    random = np.random.default_rng(3)
    parameters = random.uniform(0.3, 1.1, size=(model.size, 5))  # type: ignore[attr-defined]
    x = np.array([1.0, 2.0, 7.5, 100.0])
    found = model.function(parameters, x)  # type: ignore[attr-defined]
    assert found.shape == (5, 4)
    formula = FORMULAS[model.name]  # type: ignore[attr-defined]
    for walker in range(5):
        expected = [formula(step, *parameters[:, walker]) for step in x]
        assert found[walker] == pytest.approx(expected)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_the_fit_begins_inside_the_prior_with_a_learning_curve(model: object) -> None:
    start = np.array(model.start)  # type: ignore[attr-defined]
    assert (start > model.low).all()  # type: ignore[attr-defined]
    assert (start < model.high).all()  # type: ignore[attr-defined]
    curve = model.function(start[:, None], np.arange(1.0, 101.0))[0]  # type: ignore[attr-defined]
    assert -0.5 < curve[0] < curve[-1] < 1.5


def test_all_models_at_once() -> None:
    assert len(lows()) == len(highs()) == SIZE
    middle = np.array([value for model in MODELS for value in model.start])
    found = evaluate(np.tile(middle, (3, 1)), np.array([1.0, 10.0]))
    assert found.shape == (11, 3, 2)
    assert np.isfinite(found).all()
