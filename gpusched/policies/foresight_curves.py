"""Forecasts for ``foresight``, ``pop``, ``earlyterm`` and ``whatif``: which known shapes a curve may have.

A trial's score is ``start + amplitude * shape(step)``, give or take the measured noise. Each shape is fitted by
Bayesian least squares (two unknowns, in closed form); a trial is the mixture of all shapes, weighted by how well they
explain its curve. A forecast is that mixture at a later step, and its deviation is wide where a curve does not tell yet
whether it levels off or continues.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise, takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpusched.core.decisions import TrialView
from gpusched.core.speed import RunningMedian
from gpusched.core.trial import NEVER

Array = NDArray[Any]

#: Scales of the shapes, in reports.
SCALES: Array = 2.0 ** np.arange(0, 13)
#: The logarithm of how likely each shape is; the scales of a family are equally likely.
LIKELY: Array = np.log(np.repeat([0.3 / 13, *[0.15 / 13] * 4, 0.1 / 9], [*[13] * 5, 9]))
#: Points of an octave at which shapes are tabulated.
FINE = 16


def shapes(steps: Array) -> Array:
    """Return each shape (a row) at each step (a column)."""
    x = steps[None, :] / SCALES[:, None]
    families = (
        1 - np.exp(-x),
        1 - np.exp(-np.sqrt(x)),
        1 - (1 + x) ** -0.5,
        x / (1 + x),
        1 / (1 + x**-3.0),
        np.exp(-0.12 * np.log(x[2:-2]) ** 2),
    )
    return np.concatenate(families)


#: Reports at which curves are looked at, two an octave; later looks count for more.
LOOKS: tuple[int, ...] = tuple(sorted({2**p for p in range(1, 40)} | {3 * 2**p for p in range(39)}))
#: What is expected of a curve, in shares of the scale: amplitude, its deviation, the start's deviation.
AMPLITUDE, WIDE, START = 0.5, 0.4, 0.3
#: Share of its weight that a look keeps at the next one: a misfit grows as a curve continues.
KEPT = 0.25
#: Share of the scale by which a shape may miss a curve without noise.
MISFIT = 0.02
#: The latest trials, which the promise of another one is taken from.
FRESH = 32
#: A score farther from 0 counts as this one, and no scale is finer than one over it: the squares are numbers still.
FARTHEST = 1e60


@dataclass(slots=True)
class SeenCurve:
    """A trial at its last look: step, and score (the mean of the reports since the look before)."""

    step: int = 0
    level: float = NEVER
    #: By shape: start, amplitude, their variances and covariance; and the logarithm of how well it explains the curve.
    fit: Array = field(default_factory=lambda: np.zeros((6, 0)))
    #: Fading sums over looks, by shape: of 1, s, s*s, y, s*y.
    sums: Array = field(default_factory=lambda: np.zeros((5, len(LIKELY))))

    @property
    def is_fitted(self) -> bool:
        return self.fit.size > 0


@dataclass(slots=True)
class Belief:
    """A trial at the deadline: its score, give or take. ``step`` of its last look, and ``steps`` from there."""

    mean: float
    deviation: float
    step: float
    steps: float
    bid: float = 0.0


class Curves:
    """The curves of all trials as scores (more is better), and forecasts.

    The best possible score is guessed: 1 for scores between 0 and 1, 0 for losses above 0, else as far above the best
    score as that is above a usual first one.
    """

    def __init__(self) -> None:
        self.sign = 1.0
        #: Steps that a report stands for: shapes are over reports, as a step may be an iteration.
        self.stride = 0
        self.seen: dict[int, SeenCurve] = {}
        #: The best possible score; a usual first score; and how far apart they are.
        self.ceiling, self.usual, self.range = math.inf, 0.0, 1.0
        #: The best possible score where it is 0 or 1: no forecast lies above.
        self.bound = math.inf
        self._low, self._high = math.inf, -math.inf
        self._first_scores: list[float] = []
        self._noise = RunningMedian()

    # ------------------------------------------------------------ looking

    def look(self, trial: TrialView, sign: float) -> bool:
        """Take in a report; True if the trial has come to its next look."""
        self.sign = sign
        self.stride = self.stride or trial.stride
        if trial.score > NEVER:
            score = _bounded(trial.score)
            self._low, self._high = min(self._low, score), max(self._high, score)
            if trial.id not in self.seen and len(self._first_scores) < 64:
                self._first_scores.append(score)
                self._guess()
        seen = self.seen.setdefault(trial.id, SeenCurve())
        if self._looks(trial.step) <= self._looks(seen.step):
            return False  # a relaunch begins before the last look
        # A step that was trained twice counts with both metrics.
        late = takewhile(lambda report: report[0] > seen.step, reversed(trial.curve))
        window = [metric * sign for step, metric in late if step <= trial.step]
        self._look(seen, trial.step, window[::-1])
        return True

    def _looks(self, step: int) -> int:
        """Count the looks up to a step."""
        return bisect_right(LOOKS, step / self.stride)

    def _guess(self) -> None:
        """Guess the best possible score, and the scale."""
        first = sorted(self._first_scores)
        self.usual = first[len(first) // 2]
        was_guessed = self.bound == math.inf
        if self._low >= 0 and self._high <= 1:
            self.bound = 1.0
        else:
            self.bound = 0.0 if self._high <= 0 else math.inf
        if self.bound < math.inf:
            self.ceiling = self.bound
        elif not was_guessed or not self._high <= self.ceiling < math.inf:
            self.ceiling = self._high + max(self._high - self.usual, 0.1 * abs(self._high))
        apart = self.ceiling - self.usual
        self.range = max(apart, 1 / FARTHEST) if apart > 0 else 1.0

    def rescale(self, trials: Mapping[int, TrialView]) -> None:
        """Look at every curve anew where scores have outgrown the scale they were fitted on."""
        if self._high > self.ceiling:
            curves = {i: trials[i].curve for i in self.seen}
            signed = {i: [(step, y * self.sign) for step, y in of] for i, of in curves.items()}
            self.read(signed)

    def read(self, curves: Mapping[int, Sequence[tuple[int, float]]]) -> None:
        """Look at whole curves of steps and scores, to their last steps."""
        self._first_scores = []
        self.stride = min(curve[0][0] for curve in curves.values() if curve)
        for curve in curves.values():
            scores = [_bounded(score) for _, score in curve if math.isfinite(score)]
            self._low, self._high = min([self._low, *scores]), max([self._high, *scores])
            self._first_scores += scores[:1]
        self._guess()
        for trial, curve in curves.items():
            self.seen[trial] = seen = SeenCurve()
            window: list[float] = []
            for n, (step, score) in enumerate(curve, 1):
                window.append(score)
                is_due = self._looks(step) > self._looks(seen.step)
                if is_due or (n == len(curve) and step > seen.step):
                    self._look(seen, step, window)
                    window = []

    def _look(self, seen: SeenCurve, step: int, window: Sequence[float]) -> None:
        """Add the mean of the reports since the last look to the trial's sums, and fit all shapes."""
        low, seen.step = seen.step, step
        values = [_bounded(value) for value in window if value == value]
        if not values or all(value != value for value in window[-2:]):
            seen.level = NEVER
            return
        for (a, b), (_, c) in pairwise(pairwise(values[-6:])):
            self._noise.add((b - 0.5 * (a + c)) ** 2 / 1.5)
        y = sum(values) / len(values)
        shape = shapes_between(low / self.stride, step / self.stride, len(window))
        variance = self.noise_var / len(values) + self.misfit_var
        seen.level, ones = y, np.ones_like(shape)
        seen.sums *= KEPT
        seen.sums += np.stack((ones, shape, shape * shape, ones * y, shape * y)) / variance
        self._fit(seen)

    @property
    def noise_var(self) -> float:
        """The variance of a report's noise; the median of its square is 0.455 of it."""
        return (self._noise.value or 0.0) / 0.455

    @property
    def misfit_var(self) -> float:
        """The variance of curves about their shapes."""
        return float((MISFIT * self.range) ** 2)

    # ------------------------------------------------------------ fitting

    def _fit(self, seen: SeenCurve) -> None:
        """Fit start and amplitude of every shape, and weigh the shapes."""
        start_weight = 1 / (START * self.range) ** 2
        height_weight = 1 / (WIDE * self.range) ** 2
        a, b, c, u, v = seen.sums
        a, c = a + start_weight, c + height_weight
        u, v = u + start_weight * self.usual, v + height_weight * AMPLITUDE * self.range
        det = a * c - b * b
        start, height = (c * u - b * v) / det, (a * v - b * u) / det
        explained = 0.5 * (start * u + height * v) - 0.5 * np.log(det)
        explained -= explained.max()
        seen.fit = np.stack((start, height, c / det, a / det, -b / det, explained))

    # ------------------------------------------------------------ forecasting

    def forecast(self, trials: Sequence[SeenCurve], horizons: Sequence[float]) -> list[Belief]:
        """Return what is believed of trials at later steps."""
        if not trials:
            return []
        fits = np.stack([seen.fit for seen in trials], axis=1)
        start, height, start_var, height_var, cov, explained = fits
        weight = weights(explained + LIKELY)
        ends = np.maximum(1.0, np.asarray(horizons, dtype=float))
        steps = np.array([seen.step for seen in trials], dtype=float)
        level = np.array([seen.level for seen in trials])

        def mixed(by_shape: Array) -> Array:
            found: Array = np.einsum("nm,...nm->...n", weight, by_shape)
            return found

        shape = shapes_at(ends / self.stride)
        score = np.minimum(start + height * shape, self.bound)
        mean = mixed(score)
        off = score - mean[:, None]
        variance = mixed(start_var + shape * (2 * cov + shape * height_var) + off * off)
        variance = np.maximum(1e-18 * self.range**2, variance)
        best = np.maximum(_rounded(mean, 30, self.range), level)
        columns = (
            best,
            np.where(ends > steps, _rounded(np.sqrt(variance), 20, self.range), 0.0),
            steps,
            np.maximum(1.0, ends - steps),
        )
        return [Belief(*one) for one in zip(*(column.tolist() for column in columns), strict=True)]

    def believe(self, horizons: Mapping[int, float]) -> dict[int, Belief]:
        """Return what is believed of each trial at a later step; none before its first look, or if it has diverged."""
        known = [i for i in horizons if i in self.seen and self.seen[i].level > NEVER]
        seen = [self.seen[i] for i in known]
        ends = [max(horizons[i], self.seen[i].step) for i in known]
        return dict(zip(known, self.forecast(seen, ends), strict=True))

    def newcomers(self, horizon: float) -> list[Belief]:
        """Return what is believed now of the latest trials, refuted ones too; none before there are three."""
        latest = [self.seen[i] for i in sorted(self.seen)[-FRESH:] if self.seen[i].is_fitted]
        if len(latest) < 3:
            return []
        return self.forecast(latest, [max(horizon, seen.step) for seen in latest])


TABLE: Array = shapes(2.0 ** (np.arange(0, 24 * FINE) / FINE)).T.copy()


def shapes_at(steps: Array) -> Array:
    """Return each shape (a column) at each step (a row), to a sixteenth of an octave."""
    place = np.rint(np.log2(np.maximum(1.0, steps)) * FINE).astype(int)
    found: Array = TABLE[np.minimum(place, len(TABLE) - 1)]
    return found


@cache
def shapes_between(low: float, high: float, reports: int) -> Array:
    """Return the mean of each shape over so many reports after ``low``, up to ``high``."""
    count = min(reports, 64)
    found: Array = shapes(high - (high - low) * np.arange(count) / count).mean(axis=1)
    return found


def _rounded(values: Array, bits: int, scale: float) -> Array:
    """Round to so many bits below ``scale``: NumPy's last bits differ between processors, and decisions must not."""
    grain = math.ldexp(1.0, math.frexp(scale)[1] - bits)
    found: Array = np.rint(values / grain) * grain
    return found


def _bounded(score: float) -> float:
    return min(max(score, -FARTHEST), FARTHEST)


def weights(logs: Array) -> Array:
    """Return weights that add up to 1 along the last axis."""
    weight: Array = np.exp(logs - logs.max(axis=-1, keepdims=True))
    weight /= weight.sum(axis=-1, keepdims=True)
    return weight


def expected_excess(mean: float, deviation: float, over: float) -> float:
    """Return E[(X - over)+] of a normal X."""
    if deviation <= 0:
        return max(0.0, mean - over)
    z = (mean - over) / deviation
    density = math.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    return deviation * max(0.0, density + z * 0.5 * math.erfc(-z / math.sqrt(2)))
