"""Learning curves of one search, continued: what its trials, and trials like them, may do next.

Scores count as ``level = -log(what is missing to the best possible score)``, in which power laws are straight, over
``x = log2(step)``. What half an octave (a factor of 1.4 in steps) brings is fitted to the trials that were near x:
their mean, how much of a trial's lead in gain lasts, and residuals, one of which is drawn. Where no trial has been,
the mean goes on as it changed. A future draws the trials' weights anew (Bayesian bootstrap), so that the error of the
fit is in it, too. A new configuration is one seen, its whole curve moved a little: as far as its neighbours in rank
were apart. Reports are scattered as the trial's were.

``Curves.widen`` holds forecasts of the search's own curves, each made without that curve, against what came, and
scales residuals until eight of ten lie within the interval of 80% (conformal).
"""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gpusched.sim.workload import SimulatedCurve

Array = NDArray[np.float64]

HALF = 0.5
#: Least part of the range of scores that counts as missing.
FINEST = 0.003
#: A share (an accuracy) may be so far below nought by noise; where nobody knows the best score, it lies so many
#: ranges beyond the best so far.
STRAY, FAR = 0.2, 5.0
#: Octaves over which the weight of an earlier or later look falls to 1/e; weight of the worse half of trials.
REACH, WORSE = 0.35, 0.3
#: Before anything is known: the share of a trial's lead in gain that lasts, and how unsure that is.
LASTING, SPREAD = 0.6, 0.4
#: Where no trial has been: half an octave brings this share of the one before, how unsure that is at first and at
#: last. Residuals count in what the half octave before brought, and this share of the usual residual at least.
RATIO, RATIO_SPREAD, RATIO_FLOOR, CALM = 0.8, 0.25, 0.08, 0.3
#: Looks whose forecasts are held against what came, at most; what the scale is drawn towards 1 with.
CHECKS, CAUTION = 60, 8.0


@dataclass(frozen=True, slots=True)
class Seen:
    """One trial so far. ``scores``: more is better, NaN where the metric was not finite; ``step_s``: on one atom."""

    trial: int
    steps: Array
    scores: Array
    step_s: float
    ending: Literal["finished", "failed"] | None = None


@dataclass(slots=True)
class _Looks:
    """Levels and gains of one trial at x = 0, 0.5, 1, .. and, last, at its latest step."""

    x: list[float] = field(default_factory=list)
    level: list[float] = field(default_factory=list)
    gain: list[float] = field(default_factory=list)


class Scale:
    """Scores as levels, and back."""

    def __init__(self, scores: Array, first: Array, best: float | None) -> None:
        high, low = float(scores.max()), float(scores.min())
        usual = float(np.median(first))
        if best is not None and best >= high:
            self.ceiling = best
        elif low >= -STRAY and high <= 1:
            self.ceiling = 1.0
        elif high <= 0:
            self.ceiling = 0.0
        else:  # far away, where levels are nearly scores
            self.ceiling = high + FAR * max(high - usual, 0.1 * abs(high))
        self.range = self.ceiling - usual if self.ceiling > usual else 1.0

    def level(self, score: float) -> float:
        return -math.log(max(FINEST, (self.ceiling - score) / self.range + FINEST))

    def missing(self, score: float) -> float:
        """Return what is missing to the best possible score, as a share of the range."""
        return max(FINEST, (self.ceiling - score) / self.range)

    def score(self, level: float) -> float:
        return min(self.ceiling, self.ceiling - self.range * (math.exp(-level) - FINEST))


class Curves:
    """The curves of one search. ``best``: the best possible score, where it is known."""

    def __init__(self, seen: Sequence[Seen], best: float | None = None) -> None:
        self.seen = {one.trial: one for one in seen}
        good = [one for one in seen if np.isfinite(one.scores).any()]
        scores = np.concatenate([one.scores[np.isfinite(one.scores)] for one in good])
        firsts = np.array([one.scores[np.isfinite(one.scores)][0] for one in good])
        self.scale = Scale(scores, firsts, best)
        self.looks = {one.trial: self._looks(one) for one in good}
        self._pairs()
        self.noise = {one.trial: _noise(one) for one in good}
        known = sorted(value for value in self.noise.values() if value is not None)
        self.usual_noise = known[len(known) // 2] if known else 0.0
        self.width = 1.0

    def _looks(self, one: Seen) -> _Looks:
        """Fit level and gain to the octave before each look."""
        found = _Looks()
        fine = np.isfinite(one.scores)
        x = np.log2(one.steps[fine])
        y = np.array([self.scale.level(score) for score in one.scores[fine]])
        last = float(x[-1])
        grid = [HALF * n for n in range(math.ceil(float(x[0]) / HALF), math.floor(last / HALF) + 1)]
        for at in dict.fromkeys([*grid, last]):
            low, high = np.searchsorted(x, [at - 1.0 - 1e-9, at + 1e-9])
            if high == 0:
                continue
            level, gain = _line(x[low:high] - at, y[low:high])
            found.x.append(at)
            found.level.append(level)
            found.gain.append(gain)
        return found

    def _pairs(self) -> None:
        """Collect what half an octave brought: place, gain before, change, trial, and whether among the better."""
        by_look: dict[float, list[float]] = {}
        for looks in self.looks.values():
            for x, level in zip(looks.x, looks.level, strict=True):
                by_look.setdefault(x, []).append(level)
        medians = {x: float(np.median(levels)) for x, levels in by_look.items()}
        rows = []
        for trial, looks in self.looks.items():
            for n in range(1, len(looks.x)):
                if looks.x[n] - looks.x[n - 1] == HALF:
                    weight = 1.0 if looks.level[n - 1] >= medians[looks.x[n - 1]] else WORSE
                    change = looks.level[n] - looks.level[n - 1]
                    rows.append((looks.x[n - 1], looks.gain[n - 1], change, trial, weight))
        self.pairs = np.array(rows, dtype=float).reshape(-1, 5)
        self.last = float(self.pairs[:, 0].max()) if rows else 0.0

    # ------------------------------------------------------------ how wrong

    def widen(self, seed: int) -> None:
        """Scale what is drawn by how wrong forecasts of curves over an octave were, each without the curve itself."""
        random = np.random.default_rng(seed)
        ratios = list[float]()
        trials = [t for t, looks in self.looks.items() if len(looks.x) >= 4 and looks.x[-1] >= 1.5]
        trials.sort(key=lambda t: -self.looks[t].level[-1])
        for trial in trials[: max(4, len(trials) // 2)]:
            looks = self.looks[trial]
            for n in range(len(looks.x) - 2, 0, -2):
                if len(ratios) >= CHECKS:
                    break
                x, end = looks.x[n - 1], looks.x[min(n + 1, len(looks.x) - 1)]
                if end - x < HALF:
                    continue
                ends = np.array(
                    [
                        Future(self, [seed, m], without=trial).walk(
                            looks.level[n - 1], looks.gain[n - 1], x, end, random
                        )
                        for m in range(20)
                    ]
                )
                low, middle, high = np.quantile(ends, [0.1, 0.5, 0.9])
                miss = looks.level[min(n + 1, len(looks.x) - 1)] - middle
                half = (high - middle) if miss > 0 else (middle - low)
                ratios.append(abs(miss) / max(half, 1e-9))
        if len(ratios) >= 4:
            share = min(1.0, 0.8 * (len(ratios) + 1) / len(ratios))
            found = min(4.0, max(0.4, float(np.quantile(ratios, share))))
            self.width = math.exp(math.log(found) * len(ratios) / (len(ratios) + CAUTION))


@dataclass(frozen=True, slots=True)
class _Fit:
    """The gain of half an octave: ``mean + lasting * (before - usual) + residual * (|before| + least)``."""

    mean: float
    usual: float
    lasting: float
    residuals: Array
    summed: Array
    least: float
    #: Mean square of the residuals, and how many trials they are worth.
    rest: float
    count: float


class Future:
    """One way in which the curves may go on."""

    def __init__(self, curves: Curves, key: Sequence[int], without: int | None = None) -> None:
        """``key``: the seed of all that is drawn. ``without``: a trial whose curve is not known."""
        self.curves, self._key = curves, key
        random = np.random.default_rng(key)
        trials = list(curves.looks)
        weights = dict(zip(trials, random.standard_exponential(len(trials)), strict=True))
        if without is not None:
            weights[without] = 0.0
        pairs = curves.pairs
        own = np.array([weights[int(trial)] for trial in pairs[:, 3]])
        self._weights = own * pairs[:, 4]
        self._fits: dict[int, _Fit] = {}
        self._ratio = self._trend(random)

    def _fit(self, x: float) -> _Fit:
        """Return what half an octave from x brings: of the trials that were there, or else as it went on until then."""
        place = round(x / HALF)
        if place not in self._fits:
            last = round(self.curves.last / HALF)
            if place <= last:
                self._fits[place] = self._near(place * HALF)
            else:
                before, earlier = self._fit((place - 1) * HALF), self._fit((place - 2) * HALF)
                self._fits[place] = dataclasses.replace(
                    before,
                    mean=before.mean * self._ratio,
                    usual=(before.mean + earlier.mean) / 2,
                    least=before.least * min(1.0, self._ratio),
                )
        return self._fits[place]

    def _near(self, x: float) -> _Fit:
        """Fit the changes of the trials that were near x; those nearest count most."""
        pairs = self.curves.pairs
        weight = self._weights * np.exp(-np.abs(pairs[:, 0] - x) / REACH)
        total = max(1e-9, float(weight.sum()))
        before, change = pairs[:, 1] * HALF, pairs[:, 2]
        usual, mean = float(weight @ before) / total, float(weight @ change) / total
        dx, dy = before - usual, change - mean
        sxx, sxy = float(weight @ (dx * dx)), float(weight @ (dx * dy))
        lasting = sxy / sxx if sxx > 0 else LASTING
        rest = float(weight @ (dy - lasting * dx) ** 2) / total
        pull = rest / SPREAD**2
        lasting = (sxy + LASTING * pull) / (sxx + pull) if sxx + pull > 0 else LASTING
        lasting = min(1.4, max(0.0, lasting))
        count = total**2 / max(1e-9, float(weight @ weight))
        least = abs(usual) + CALM * math.sqrt(rest) + 1e-9
        residuals = (dy - lasting * dx) / (np.abs(before) + least)
        return _Fit(mean, usual, lasting, residuals, np.cumsum(weight), least, rest, count)

    def _trend(self, random: np.random.Generator) -> float:
        """Return by how much half an octave brings less than the one before, where nobody has been."""
        log, sure = math.log(RATIO), 1 / RATIO_SPREAD**2
        if len(self.curves.pairs):
            fits = [self._fit(self.curves.last - HALF * n) for n in range(3)]
            mean, usual = sum(fit.mean for fit in fits), sum(fit.usual for fit in fits)
            if mean > 0 and usual > 0:
                ratio = mean / usual
                ratio = (ratio + math.sqrt(ratio * ratio + 8 * ratio)) / 4
                noise = sum(fit.rest / fit.count for fit in fits)
                known = 1 / (noise / mean**2 + RATIO_FLOOR**2)
                log = (log * sure + math.log(ratio) * known) / (sure + known)
                sure += known
        log += self.curves.width * random.standard_normal() / math.sqrt(sure)
        return min(1.45, math.exp(log))

    def walk(
        self, level: float, gain: float, x: float, end: float, random: np.random.Generator
    ) -> float:
        """Return the level at ``end`` of a curve that has this level and gain at ``x``."""
        before = level - gain * HALF
        while x < end - 1e-9:
            part = min(1.0, (end - x) / HALF)
            level, before, gain = self.next(level, before, gain, x, random, part)
            x += part * HALF
        return level

    def next(
        self,
        level: float,
        before: float,
        gain: float,
        x: float,
        random: np.random.Generator,
        part: float = 1.0,
    ) -> tuple[float, float, float]:
        """Return level, the level half an octave before that, and the gain, half an octave (or a part) later."""
        fit = self._fit(x)
        change = fit.mean + fit.lasting * (gain * HALF - fit.usual)
        if len(fit.residuals):
            at = int(fit.summed.searchsorted(random.random() * fit.summed[-1]))
            residual = float(fit.residuals[min(at, len(fit.residuals) - 1)])
            change += self.curves.width * residual * (abs(gain * HALF) + fit.least)
        change *= part
        new = level + change
        return new, level, (level - before + change) / (HALF + HALF * part)

    # ------------------------------------------------------------ curves

    def curve(self, trial: int) -> SimulatedCurve:
        """Return the curve of a trial: continued, or for one not seen yet that of a new configuration.

        It is drawn from the key and the trial alone, so that two questions meet the same curves.
        """
        curves = self.curves
        random = np.random.default_rng([*self._key, trial])
        if trial in curves.seen:
            return self._continued(curves.seen[trial], 0.0, random)
        places = list(curves.seen)
        donor = curves.seen[places[int(random.integers(len(places)))]]
        return self._continued(donor, self._shift(donor, random), random)

    def _shift(self, donor: Seen, random: np.random.Generator) -> float:
        """Return by how much a newcomer's levels differ from its donor's: a part of the way to the next in rank."""
        looks = self.curves.looks.get(donor.trial)
        if looks is None:
            return 0.0
        x, level = looks.x[-1], looks.level[-1]
        others = []
        for trial, other in self.curves.looks.items():
            if trial != donor.trial and other.x[-1] >= x - 1e-9:
                place = min(bisect.bisect_left(other.x, x - 1e-9), len(other.x) - 1)
                others.append(other.level[place])
        others.sort()
        place = bisect.bisect_left(others, level)
        u = random.random() - 0.5
        below = level - others[place - 1] if place > 0 else None
        above = others[place] - level if place < len(others) else None
        if u < 0:
            gap = below if below is not None else above
            return u * (gap or 0.0)
        if above is None:
            return float(random.standard_exponential()) * 0.5 * (below or 0.0)
        return u * above

    def _continued(self, donor: Seen, shift: float, random: np.random.Generator) -> SimulatedCurve:
        """Return the donor's curve, moved by ``shift`` levels, and how it goes on."""
        ending = donor.ending or "finished"
        length = len(donor.steps) and int(donor.steps[-1]) if donor.ending else None
        if donor.trial not in self.curves.looks:
            return SimulatedCurve(lambda step: math.nan, lambda step: donor.step_s, length, ending)
        path = _Path(self, donor, shift, random)
        return SimulatedCurve(path.score, lambda step: donor.step_s, length, ending)


class _Path:
    """One curve in one future, made step by step."""

    def __init__(
        self, future: Future, donor: Seen, shift: float, random: np.random.Generator
    ) -> None:
        curves = future.curves
        looks, noise = curves.looks[donor.trial], curves.noise[donor.trial]
        self._future, self._random, self._scale = future, random, curves.scale
        self._shift, self._end = shift, int(donor.steps[-1])
        self._known: dict[float, float] = dict(
            zip(donor.steps.tolist(), donor.scores.tolist(), strict=True)
        )
        self._x, self._levels = list(looks.x), [level + shift for level in looks.level]
        self._gain = looks.gain[-1]
        self._before = self._levels[-1] - self._gain * HALF
        self._diverged = not math.isfinite(donor.scores[-1])
        missing = self._scale.missing(self._scale.score(looks.level[-1]))
        self._noise = (curves.usual_noise if noise is None else noise) / math.sqrt(missing)
        self._off: dict[int, float] = {}

    def score(self, step: int) -> float:
        """Return the score of a step; one that was seen, as it was."""
        if step <= self._end and (known := self._known.get(step)) is not None:
            if not self._shift or not math.isfinite(known):
                return known
            return self._scale.score(self._scale.level(known) + self._shift)
        if self._diverged and step > self._end:
            return math.nan
        value = self._scale.score(self._level(math.log2(step)))
        if self._noise:
            if step not in self._off:
                self._off[step] = self._noise * float(self._random.standard_normal())
            value += self._off[step] * math.sqrt(self._scale.missing(value))
        return min(value, self._scale.ceiling)

    def _level(self, x: float) -> float:
        xs, levels = self._x, self._levels
        while xs[-1] < x:
            level, self._before, self._gain = self._future.next(
                levels[-1], self._before, self._gain, xs[-1], self._random
            )
            levels.append(level)
            xs.append(xs[-1] + HALF)
        place = bisect.bisect_left(xs, x)
        if place == 0:
            return levels[0]
        share = (x - xs[place - 1]) / (xs[place] - xs[place - 1])
        return levels[place - 1] + share * (levels[place] - levels[place - 1])


class Resampled:
    """A workload of one future. Scores are turned back into metrics."""

    name = "resampled"
    defaults: Mapping[str, Any] = {}

    def __init__(self, metric: str, mode: Literal["max", "min"], future: Future) -> None:
        self.metric, self.mode, self._future = metric, mode, future

    def space(self, seed: int) -> Mapping[str, Any]:
        return {}

    def curve(self, trial: int, hparams: Mapping[str, Any], seed: int) -> SimulatedCurve:
        found = self._future.curve(trial)
        if self.mode == "min":
            score = found.metric
            found.metric = lambda step: -score(step)
        return found


def _line(x: Array, y: Array) -> tuple[float, float]:
    """Return a line's value and slope at x = 0."""
    if len(x) < 2:
        return float(y[-1]), 0.0
    dx, mean = x - x.mean(), float(y.mean())
    slope = float(dx @ y) / max(1e-12, float(dx @ dx))
    return mean - slope * float(x.mean()), slope


def _noise(one: Seen) -> float | None:
    """Return the deviation of a trial's later reports from the line between their neighbours; None for too few."""
    scores = one.scores[len(one.scores) // 2 :]
    scores = scores[np.isfinite(scores)]
    if len(scores) < 4:
        return None
    off = scores[1:-1] - (scores[:-2] + scores[2:]) / 2
    return float(np.sqrt((off @ off) / len(off) / 1.5))
