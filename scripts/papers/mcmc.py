"""The learning-curve model of Domhan, Springenberg and Hutter (IJCAI'15), as HyperDrive uses it, and POP by it.

    f(x) = sum of w_k f_k(x | theta_k) over the eleven curves of ``MODELS``,  y(x) ~ Normal(f(x), sigma^2)

The posterior of all parameters, weights and sigma given y(1..n) is sampled by ``emcee`` with 100 walkers and 700
samples each (HyperDrive, section 5.2), the log-probability of all walkers in one vectorised call. As in the paper,
walkers start around the least-squares fits of the single curves with equal weights, and curves that end below where
they began have (nearly) no probability; because the metric is bounded, neither have those that leave 0..1 at the
horizon. Both limits are soft by ``SLACK``, so that a trial that unlearns can be described at all. Ours is ``TEMPER``:
the likelihood to the power 0.3, without which the 90 % interval of real curves holds three outcomes of four.

All curves are between 0 and 1, over steps that count from 1, and computed for many walkers at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import emcee
import numpy as np
from scipy import optimize

from gpusched.policies.extrapolation import Array, Prediction
from gpusched.policies.pop import Pop


@dataclass(frozen=True, slots=True)
class Model:
    """One parametric curve of steps ``x`` (n,): each parameter is a column (walkers, 1), the value (walkers, n).

    ``low`` and ``high``: box of the uniform prior; ``start``: where the fit of this curve alone begins.
    """

    name: str
    start: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    function: Callable[..., Array]

    def curves(self, parameters: Array, x: Array) -> Array:
        """Return (walkers, n) for parameters of shape (walkers, size)."""
        return np.asarray(self.function(x, *parameters.T[:, :, None]))

    @property
    def size(self) -> int:
        return len(self.start)


def _log_log_linear(x: Array, a: Array, b: Array) -> Array:
    return np.asarray(np.log(np.maximum(a * np.log(x) + b, 1e-6)))


#: The eleven curves of Domhan's table 1.
MODELS: Sequence[Model] = (
    Model(
        *("vapor_pressure", (-0.6, -0.6, 0.1), (-6, -6, -0.5), (1, 4, 1.5)),
        lambda x, a, b, c: np.exp(a + b / x + c * np.log(x)),
    ),
    Model(
        *("pow3", (0.8, 0.5, 0.5), (0, -1, 0.01), (1.5, 1.5, 4)),
        lambda x, c, a, alpha: c - a * x**-alpha,
    ),
    Model("log_log_linear", (0.3, 1.3), (-0.5, 0.5), (2, 3), _log_log_linear),
    Model(
        *("hill3", (0.7, 1.0, 3.0), (0, 0.05, 0.01), (1.5, 6, 300)),
        lambda x, top, eta, kappa: top / (1.0 + (kappa / x) ** eta),
    ),
    Model(
        *("log_power", (0.8, 1.0, -0.8), (0, -6, -6), (1.5, 7, 0)),
        lambda x, a, b, c: a / (1.0 + (x / np.exp(b)) ** c),
    ),
    Model(
        *("pow4", (0.9, 1.0, 1.0, 0.7), (0, 0, 0.01, 0.01), (1.5, 30, 30, 5)),
        lambda x, c, a, b, alpha: c - (a * x + b) ** -alpha,
    ),
    Model(
        *("mmf", (0.7, 0.1, 0.2, 1.5), (0, -0.5, 0.001, 0.05), (1.5, 1.2, 10, 8)),
        lambda x, top, bottom, kappa, delta: top - (top - bottom) / (1.0 + (kappa * x) ** delta),
    ),
    Model(
        *("exp4", (0.8, 0.5, -0.3, 0.7), (0, 0, -6, 0.05), (1.5, 6, 3, 3)),
        lambda x, c, a, b, alpha: c - np.exp(b - a * x**alpha),
    ),
    Model(
        *("janoschek", (0.7, 0.1, 0.2, 0.9), (0, -0.5, 0, 0.05), (1.5, 1.2, 5, 4)),
        lambda x, top, bottom, kappa, delta: top - (top - bottom) * np.exp(-kappa * x**delta),
    ),
    Model(
        *("weibull", (0.7, 0.1, 0.2, 1.0), (0, -0.5, 0.001, 0.05), (1.5, 1.2, 10, 6)),
        lambda x, top, bottom, kappa, delta: top - (top - bottom) * np.exp(-((kappa * x) ** delta)),
    ),
    Model("ilog2", (0.8, 0.4), (0, -1), (1.5, 1.5), lambda x, c, a: c - a / np.log(x + 1.0)),
)
LOWS = np.array([value for model in MODELS for value in model.low], dtype=np.float64)
HIGHS = np.array([value for model in MODELS for value in model.high], dtype=np.float64)
SIZE = len(LOWS)


def evaluate(parameters: Array, x: Array) -> Array:
    """Every model for every walker: (models, walkers, n) from parameters of shape (walkers, SIZE)."""
    ends = np.cumsum([model.size for model in MODELS])
    each = np.split(parameters, ends[:-1], axis=1)
    return np.stack([model.curves(own, x) for model, own in zip(MODELS, each, strict=True)])


WALKERS = 100
SAMPLES = 700
BURN_IN = 400
#: Posterior draws that the prediction is made of.
DRAWS = 400
#: Longer curves are thinned to this many values.
MAX_POINTS = 100
NOISE_LOW, NOISE_HIGH = 0.001, 0.3
SLACK = 0.02
#: Power of the likelihood. Neighbouring steps err alike, and no curve is quite like those fitted: n steps tell less
#: than n times as much. 1 is the paper's and too sure of itself.
TEMPER = 0.3


class McmcPredictor:
    """Implements ``CurvePredictor``."""

    def __init__(self, walkers: int = WALKERS, samples: int = SAMPLES) -> None:
        self._walkers, self._samples = walkers, samples
        self._burn_in = samples * BURN_IN // SAMPLES

    def predict(self, curve: Array, steps: Array, seed: Sequence[int]) -> Prediction:
        """See ``CurvePredictor.predict``."""
        words = np.random.SeedSequence(list(seed)).generate_state(8)
        random = np.random.RandomState(words)  # the only kind that emcee takes
        kept = np.unique(np.round(np.linspace(0, len(curve) - 1, MAX_POINTS)).astype(int))
        posterior = Posterior(kept + 1.0, curve[kept], float(steps[-1]))
        with np.errstate(all="ignore"):
            begin = posterior.start(self._walkers, random)
            sampler = emcee.EnsembleSampler(
                self._walkers,
                posterior.size,
                posterior.log_probability,
                vectorize=True,
                moves=[(emcee.moves.DEMove(), 0.8), (emcee.moves.StretchMove(), 0.2)],
            )
            sampler.random_state = random.get_state()
            sampler.run_mcmc(begin, self._samples, skip_initial_state_check=True)
            chain = sampler.get_chain(discard=self._burn_in, flat=True)
            chosen = chain[np.linspace(0, len(chain) - 1, DRAWS).astype(int)]
            means = posterior.curves(chosen, steps)
        noise = np.exp(chosen[:, -1])[:, None]
        usable = np.isfinite(means).all(axis=1)
        means, noise = means[usable], noise[usable]
        weights = np.full(len(means), 1.0 / max(1, len(means)))
        return Prediction(steps, means, np.broadcast_to(noise, means.shape), weights)


class McmcPop(Pop):
    """POP with the paper's own predictor."""

    predictor = McmcPredictor()


class Posterior:
    """The log-probability of parameters, weights and log sigma (in this order) given a curve, for many walkers."""

    def __init__(self, x: Array, y: Array, horizon: float) -> None:
        self._x, self._y = x, y
        #: Observed steps, then the first step and the horizon, which the prior looks at.
        self._grid = np.concatenate([x, [1.0, horizon]])
        self._low = np.concatenate([LOWS, np.zeros(self.weights), [np.log(NOISE_LOW)]])
        self._high = np.concatenate([HIGHS, np.ones(self.weights), [np.log(NOISE_HIGH)]])

    weights = len(MODELS)
    size = SIZE + weights + 1

    def curves(self, theta: Array, x: Array) -> Array:
        """The combined curve of every walker: (walkers, n)."""
        each = evaluate(theta[:, :SIZE], x)
        weights = theta[:, SIZE:-1]
        shares = weights / weights.sum(axis=1, keepdims=True)
        return np.asarray(np.einsum("wk,kwn->wn", shares, each))

    def log_probability(self, theta: Array) -> Array:
        """Log prior plus log likelihood, up to a constant; minus infinity outside the prior."""
        inside = ((theta >= self._low) & (theta <= self._high)).all(axis=1)
        found = np.full(len(theta), -np.inf)
        if not inside.any():
            return found
        chosen = theta[inside]
        curves = self.curves(chosen, self._grid)
        first, last = curves[:, -2], curves[:, -1]
        log_sigma = chosen[:, -1]
        squares = ((curves[:, :-2] - self._y) ** 2).sum(axis=1)
        likelihood = -0.5 * squares * np.exp(-2.0 * log_sigma) - len(self._y) * log_sigma
        beyond = np.stack([first - last, last - 1.0, -first])
        limits = -0.5 * ((np.maximum(beyond, 0.0) / SLACK) ** 2).sum(axis=0)
        value = TEMPER * likelihood + limits
        found[inside] = np.where(np.isfinite(value), value, -np.inf)
        return found

    # ------------------------------------------------------------ where the walkers begin

    def start(self, walkers: int, random: np.random.RandomState) -> Array:
        """Around the least-squares fits, each walker inside the prior."""
        centre = self._least_squares()
        width = self._high - self._low
        begin = np.tile(centre, (walkers, 1))
        missing = np.ones(walkers, dtype=bool)
        spread = 0.05
        while missing.any() and spread > 1e-6:
            count = int(missing.sum())
            tried = centre + spread * width * random.standard_normal((count, self.size))
            begin[missing] = np.clip(tried, self._low + 1e-9, self._high - 1e-9)
            missing = ~np.isfinite(self.log_probability(begin))
            spread *= 0.7
        if missing.any() and not missing.all():
            begin[missing] = begin[random.choice(np.flatnonzero(~missing), int(missing.sum()))]
        return begin

    def _least_squares(self) -> Array:
        """Every curve fitted alone; equal weights; sigma from what the fits leave over."""
        fitted: list[float] = []
        left_over = []
        for model in MODELS:
            low, high = np.array(model.low, float), np.array(model.high, float)

            def residuals(p: Array, model: Model = model) -> Array:
                value = model.curves(p[None, :], self._x)[0] - self._y
                return np.asarray(np.nan_to_num(value, nan=1e3, posinf=1e3, neginf=-1e3))

            fit = optimize.least_squares(
                residuals, np.array(model.start, float), bounds=(low, high), max_nfev=60
            )
            fitted += list(np.clip(fit.x, low + 1e-6, high - 1e-6))
            left_over.append(float(np.sqrt(np.mean(fit.fun**2))))
        sigma = float(np.clip(np.median(left_over), 2 * NOISE_LOW, 0.5 * NOISE_HIGH))
        return np.array([*fitted, *([0.5] * self.weights), np.log(sigma)])
