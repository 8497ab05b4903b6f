"""The eleven parametric curves of Domhan, Springenberg and Hutter (IJCAI'15, table 1), for many walkers at once.

A curve function takes parameters ``p`` of shape (k, walkers) and steps ``x`` of shape (n,), and gives (walkers, n).
Bounds are the box of the uniform prior; starts are where the fit of a single curve begins. All are for curves between
0 and 1 over steps that count from 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from gpusched.policies.curves.predictor import Array

CurveFunction = Callable[[Array, Array], Array]


@dataclass(frozen=True, slots=True)
class Model:
    """One parametric curve."""

    name: str
    function: CurveFunction
    start: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]

    @property
    def size(self) -> int:
        return len(self.start)


def _columns(p: Array) -> list[Array]:
    return [row[:, None] for row in p]


def vapor_pressure(p: Array, x: Array) -> Array:
    a, b, c = _columns(p)
    return np.asarray(np.exp(a + b / x + c * np.log(x)))


def pow3(p: Array, x: Array) -> Array:
    c, a, alpha = _columns(p)
    return np.asarray(c - a * x**-alpha)


def log_log_linear(p: Array, x: Array) -> Array:
    a, b = _columns(p)
    return np.asarray(np.log(np.maximum(a * np.log(x) + b, 1e-6)))


def hill3(p: Array, x: Array) -> Array:
    top, eta, kappa = _columns(p)
    return np.asarray(top / (1.0 + (kappa / x) ** eta))


def log_power(p: Array, x: Array) -> Array:
    a, b, c = _columns(p)
    return np.asarray(a / (1.0 + (x / np.exp(b)) ** c))


def pow4(p: Array, x: Array) -> Array:
    c, a, b, alpha = _columns(p)
    return np.asarray(c - (a * x + b) ** -alpha)


def mmf(p: Array, x: Array) -> Array:
    top, bottom, kappa, delta = _columns(p)
    return np.asarray(top - (top - bottom) / (1.0 + (kappa * x) ** delta))


def exp4(p: Array, x: Array) -> Array:
    c, a, b, alpha = _columns(p)
    return np.asarray(c - np.exp(b - a * x**alpha))


def janoschek(p: Array, x: Array) -> Array:
    top, bottom, kappa, delta = _columns(p)
    return np.asarray(top - (top - bottom) * np.exp(-kappa * x**delta))


def weibull(p: Array, x: Array) -> Array:
    top, bottom, kappa, delta = _columns(p)
    return np.asarray(top - (top - bottom) * np.exp(-((kappa * x) ** delta)))


def ilog2(p: Array, x: Array) -> Array:
    c, a = _columns(p)
    return np.asarray(c - a / np.log(x + 1.0))


MODELS: Sequence[Model] = (
    Model("vapor_pressure", vapor_pressure, (-0.6, -0.6, 0.1), (-6, -6, -0.5), (1, 4, 1.5)),
    Model("pow3", pow3, (0.8, 0.5, 0.5), (0, -1, 0.01), (1.5, 1.5, 4)),
    Model("log_log_linear", log_log_linear, (0.3, 1.3), (-0.5, 0.5), (2, 3)),
    Model("hill3", hill3, (0.7, 1.0, 3.0), (0, 0.05, 0.01), (1.5, 6, 300)),
    Model("log_power", log_power, (0.8, 1.0, -0.8), (0, -6, -6), (1.5, 7, 0)),
    Model("pow4", pow4, (0.9, 1.0, 1.0, 0.7), (0, 0, 0.01, 0.01), (1.5, 30, 30, 5)),
    Model("mmf", mmf, (0.7, 0.1, 0.2, 1.5), (0, -0.5, 0.001, 0.05), (1.5, 1.2, 10, 8)),
    Model("exp4", exp4, (0.8, 0.5, -0.3, 0.7), (0, 0, -6, 0.05), (1.5, 6, 3, 3)),
    Model("janoschek", janoschek, (0.7, 0.1, 0.2, 0.9), (0, -0.5, 0, 0.05), (1.5, 1.2, 5, 4)),
    Model("weibull", weibull, (0.7, 0.1, 0.2, 1.0), (0, -0.5, 0.001, 0.05), (1.5, 1.2, 10, 6)),
    Model("ilog2", ilog2, (0.8, 0.4), (0, -1), (1.5, 1.5)),
)
SIZE = sum(model.size for model in MODELS)


def lows() -> Array:
    return np.array([value for model in MODELS for value in model.low], dtype=np.float64)


def highs() -> Array:
    return np.array([value for model in MODELS for value in model.high], dtype=np.float64)


def evaluate(parameters: Array, x: Array) -> Array:
    """Every model for every walker: (models, walkers, n) from parameters of shape (walkers, SIZE)."""
    found = np.empty((len(MODELS), len(parameters), len(x)))
    place = 0
    for row, model in enumerate(MODELS):
        found[row] = model.function(parameters[:, place : place + model.size].T, x)
        place += model.size
    return found
