"""Forecasts for ``foresight``: learn from this search's own curves what the next doubling of steps brings.

Scores count as ``y = -log(what is missing to the best possible score)``: power laws are straight there. A curve is
looked at as it passes step 2, 3, 4, 6, 8, 12, ..: its *level* y and its *gain* g an octave (doubling of steps) are
fitted to the last octave by least squares. For each look, ``gain of the next octave = c + rho * gain of the last one``,
give or take tau, is fitted to the trials that have been there, robustly, and drawn towards the fit of the look before.
What a trial gained beyond that is its *surprise*; a share of it comes again an octave later (``lasting``, measured).
A forecast chains octaves.

Forecasts made before the fact are compared with what came: ``doubt`` is the size of their errors in usual gains (0..1).
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from gpusched.core.policy import TrialView
from gpusched.core.speed import RunningMedian
from gpusched.core.trial import NEVER

#: Steps at which curves are looked at, two an octave.
LOOKS: tuple[int, ...] = tuple(sorted({2**p for p in range(1, 40)} | {3 * 2**p for p in range(39)}))
#: Trials that a look remembers: the best ones.
KEPT = 48
#: Before anything is known: the gain of an octave over the one before, and how many trials that counts for.
RHO, PRIOR = 0.8, 2.0
#: Trials that the promise of a new one is taken from.
SAMPLE = 256
#: Where few have been, levels may still change by this share of their spread.
CHANGE = 0.15
#: Share of the scale below which what is missing is not told apart.
FINEST = 0.003
#: Share of the rise still to come that a forecast may be wrong by, whatever earlier ones were.
ERROR = 0.1


@dataclass(slots=True)
class Seen:
    """A trial at its last look: ``bin`` of ``LOOKS``, step, level, gain; ``looks``: level and gain at each bin."""

    bin: int = -1
    step: int = 0
    level: float = NEVER
    gain: float = 0.0
    looks: dict[int, tuple[float, float]] = field(default_factory=dict)
    #: By how much the last octave brought more than forecast, at each bin.
    surprises: dict[int, float] = field(default_factory=dict)

    @property
    def surprise(self) -> float:
        """The surprise of the last octave."""
        return self.surprises.get(self.bin, 0.0)

    def level_at(self, step: float) -> float:
        """The level at the last look up to a step; NEVER before the first."""
        last = bisect_right(LOOKS, step) - 1
        return next((self.looks[i][0] for i in range(last, -1, -1) if i in self.looks), NEVER)


@dataclass(slots=True)
class Belief:
    """A trial at the deadline: its level, give or take, its gain a step there, and the steps it would have had."""

    mean: float
    deviation: float
    gain: float
    horizon: float
    #: How far it is from there: what is to come of level and steps.
    rise: float
    steps: float
    bid: float = 0.0


@dataclass(slots=True)
class _Bin:
    """What is known at one look, and what was fitted to it."""

    #: (level, gain, gain of the next octave) of those that have been there and an octave beyond; (level, gain) of all.
    pairs: list[tuple[float, float, float]] = field(default_factory=list)
    here: list[tuple[float, float]] = field(default_factory=list)
    c: float = 0.0
    rho: float = RHO
    tau: float = 0.0
    #: The usual gain of the next octave: in these units errors are measured.
    unit: float = 0.0
    #: Mean and variance of levels and of gains among the better half.
    level: float = math.nan
    level_var: float = 0.0
    gain: float = 0.0
    gain_var: float = 0.0


class Scale:
    """From scores (more is better) to levels, and back.

    Without a known best score it is guessed: 1 for scores between 0 and 1, 0 for losses above 0, else as far above the
    best score as that is above a usual first one. ``is_outgrown``: scores do not fit the guess any more.
    """

    def __init__(self, ceiling: float | None) -> None:
        self._given = ceiling
        self._low, self._high, self._best = math.inf, -math.inf, -math.inf
        self._first: list[float] = []
        self.ceiling = 1.0 if ceiling is None else ceiling
        self.range = 1.0
        self.is_outgrown = True

    def saw(self, score: float, *, is_first: bool) -> None:
        """Widen what is known of the scores; a trial's first one shows where training begins."""
        if is_first and len(self._first) < KEPT:
            insort(self._first, score)
            self.is_outgrown |= len(self._first) in (2, 4, 8, 16, 32)
        self._low, self._high = min(self._low, score), max(self._high, score)
        self.is_outgrown |= score > self.ceiling

    def fit(self) -> bool:
        """Guess again; True if levels have changed."""
        before = self.ceiling, self.range
        self.is_outgrown = False
        usual = self._first[len(self._first) // 2] if self._first else self._high
        if self._given is not None and self._high <= self._given:
            self.ceiling = self._given
        elif self._low >= 0 and self._high <= 1:
            self.ceiling = 1.0
        elif self._high <= 0:
            self.ceiling = 0.0
        elif self._high > self.ceiling or self.ceiling == 1.0:
            self.ceiling = self._high + max(self._high - usual, 0.1 * abs(self._high))
        span = self.ceiling - usual
        if not 0.5 * self.range < span < 2 * self.range:
            self.range = span if span > 0 else 1.0
        return (self.ceiling, self.range) != before

    def level(self, score: float) -> float:
        missing = (self.ceiling - score) / self.range
        return -math.log(max(FINEST, missing + FINEST))

    def in_words(self, level: float, deviation: float, sign: float) -> str:
        """Return a level as a metric, give or take."""
        return f"{self.score(level) * sign:.4g} +- {self.slope(level) * deviation:.2g}"

    def slope(self, level: float) -> float:
        """Return by how much the score changes with a small change of the level."""
        return self.range * math.exp(-level)

    def score(self, level: float) -> float:
        return self.ceiling - self.range * (math.exp(-level) - FINEST)


class Curves:
    """Levels of all trials, and forecasts."""

    def __init__(self) -> None:
        self.scale = Scale(None)
        self.sign = 1.0
        self.seen: dict[int, Seen] = {}
        #: How wrong forecasts of the next octave are, in usual gains: 0.03 to 1.
        self.doubt = 1.0
        self._misses = self._count = PRIOR
        #: How much of a surprise comes again an octave later, and the sums that this is fitted to.
        self.lasting = 0.0
        self._again, self._squares = 0.0, 0.0
        self._bins: list[_Bin] = []
        self._beyond = _Bin()
        self._noise = RunningMedian()
        self._is_stale = False

    # ------------------------------------------------------------ looking

    def look(self, trial: TrialView, sign: float, ceiling: float | None) -> bool:
        """Take in a report; True if the trial has come to its next look. ``ceiling``: the best possible score."""
        if not self.seen:
            self.scale, self.sign = Scale(ceiling), sign
        if trial.score > NEVER:
            self.scale.saw(trial.score, is_first=trial.id not in self.seen)
        seen = self.seen.setdefault(trial.id, Seen())
        at = bisect_right(LOOKS, trial.step) - 1
        if at <= seen.bin:
            return False
        self._look(seen, at, trial.step, [(s, m * self.sign) for s, m in _last_octave(trial)])
        return True

    def rescale(self, trials: Mapping[int, TrialView]) -> None:
        """Guess the best possible score again and look at every curve anew, if scores have outgrown the guess."""
        if not self.scale.is_outgrown or not self.scale.fit():
            return
        self._bins, self._noise, self._is_stale = [], RunningMedian(), True
        for trial in self.seen:
            self.seen[trial] = seen = Seen()
            points = [(step, metric * self.sign) for step, metric in trials[trial].curve]
            for step, _ in points:
                at = bisect_right(LOOKS, step) - 1
                if at > seen.bin:
                    octave = [p for p in points if _octave(step) <= p[0] <= step]
                    self._look(seen, at, step, octave[::-1])

    def _look(self, seen: Seen, at: int, step: int, points: Sequence[tuple[int, float]]) -> None:
        """Fit level and gain to the last octave, draw both towards the better trials' by the measured noise."""
        seen.bin, seen.step = at, step
        n = sx = sy = sxx = sxy = syy = 0.0
        level = self.scale.level
        for s, score in points:
            if score == score:
                x, y = math.log2(s / step), level(score)
                n += 1
                sx += x
                sy += y
                sxx += x * x
                sxy += x * y
                syy += y * y
        if not points or n < min(2, len(points)) or points[0][1] != points[0][1]:
            seen.level, seen.gain = NEVER, 0.0
            return
        while len(self._bins) <= at:
            self._bins.append(_Bin())
        spread = sxx - sx * sx / n
        gain = (sxy - sx * sy / n) / spread if spread > 1e-12 else 0.0
        raw = sy / n - gain * sx / n
        seen.level, seen.gain = raw, gain
        if spread > 1e-12:
            if n >= 3:
                rest = syy - sy * sy / n - gain * gain * spread
                self._noise.add(max(0.0, rest) / (n - 2))
            var = (self._noise.value or 0.0) / 0.6
            self._denoise(seen, var * (1 / n + (sx / n) ** 2 / spread), var / spread)
        self._keep(self._bins[at].here, (raw, gain))
        seen.looks[at] = (seen.level, seen.gain)
        if at - 2 in seen.looks:
            before, its_gain = seen.looks[at - 2]
            self._learn(self._bins[at - 2], seen, (before, its_gain, raw - before))

    def _denoise(self, seen: Seen, level_noise: float, gain_noise: float) -> None:
        if level_noise <= 0:
            return
        known = self._bins[seen.bin]
        if known.gain_var > 0:
            var = max(known.gain_var - gain_noise, 0.05 * known.gain_var)
            seen.gain = known.gain + (seen.gain - known.gain) * var / (var + gain_noise)
        if known.level_var > 0:
            var = max(known.level_var - level_noise, 0.05 * known.level_var)
            seen.level = known.level + (seen.level - known.level) * var / (var + level_noise)

    def _learn(self, known: _Bin, seen: Seen, pair: tuple[float, float, float]) -> None:
        """Remember what an octave brought, and how wrong a forecast of it would have been."""
        _, gain, came = pair
        if known.unit > 0:
            surprise = came - known.c - known.rho * gain
            before = seen.surprises.get(seen.bin - 2)
            if before is not None:
                limit = 2.0 * known.unit
                before, now = (max(-limit, min(limit, x)) for x in (before, surprise))
                self._again = 0.97 * self._again + before * now / (known.unit * known.unit)
                self._squares = 0.97 * self._squares + before * before / (known.unit * known.unit)
                self.lasting = max(0.0, min(1.0, self._again / (self._squares + PRIOR)))
            seen.surprises[seen.bin] = surprise
            miss = min(4.0, (surprise - self.lasting * (before or 0.0)) ** 2 / known.unit**2)
            self._misses = 0.95 * self._misses + miss
            self._count = 0.95 * self._count + 1.0
        self._keep(known.pairs, pair)

    def _keep(self, kept: list, entry: tuple) -> None:  # type: ignore[type-arg]
        if len(kept) >= KEPT:
            if entry <= kept[0]:
                return
            del kept[0]
        insort(kept, entry)
        self._is_stale = True

    # ------------------------------------------------------------ fitting

    def refit(self) -> None:
        """Fit every look again, from the first to the last, each drawn towards the one before."""
        if not self._is_stale:
            return
        self._is_stale = False
        self.doubt = min(1.0, max(0.03, math.sqrt(self._misses / self._count)))
        c, rho, size, spread, before = 0.0, RHO, 0.0, 0.0, _Bin()
        for known in self._bins:
            pairs = known.pairs
            if len(pairs) >= 6:
                pairs = sorted(pairs, key=lambda p: p[0] + rho * p[1])[len(pairs) // 2 :]
            here = known.here[len(known.here) // 2 :] if len(known.here) >= 8 else known.here
            if pairs:
                size = _median([abs(gain) for _, gain, _ in pairs])
            elif here:
                size = _median([abs(gain) for _, gain in here])
            else:
                size *= rho
            c, rho, misses = self._fit_line(pairs, c, rho, size)
            known.c, known.rho, known.unit = c, rho, max(1e-12, size * max(0.3, rho))
            _describe(known, here, before)
            spread = math.sqrt(known.level_var) if len(here) >= 4 else spread
            guess = max(self.doubt * known.unit, CHANGE * spread)
            known.tau = math.sqrt((misses + PRIOR * guess * guess) / (len(pairs) + PRIOR))
            c, rho, before = 0.9 * c, RHO + 0.8 * (rho - RHO), known
        tau = max(self.doubt * before.unit, CHANGE * spread)
        self._beyond = _Bin(c=c, rho=rho, tau=tau, unit=before.unit)

    def _fit_line(
        self, pairs: Sequence[tuple[float, float, float]], c0: float, rho0: float, size: float
    ) -> tuple[float, float, float]:
        """Return c, rho and the squared misses of a ridge regression, done twice: outliers are clipped in between."""
        n = len(pairs)
        if not n or size <= 0:
            return c0, rho0, 0.0
        weight = max(0.1, 2 * self.doubt) ** 2
        came = [p[2] for p in pairs]
        for is_last in (n < 4, True):
            scc, srr, scr = n + 25.0 * weight, weight * size * size, 0.0
            bc = br = 0.0
            for (_, gain, _), d in zip(pairs, came, strict=True):
                rest = d - c0 - rho0 * gain
                scr += gain
                srr += gain * gain
                bc += rest
                br += gain * rest
            det = scc * srr - scr * scr
            if det <= 0:
                return c0, rho0, 0.0
            c = c0 + (bc * srr - br * scr) / det
            rho = min(2.2, max(0.0, rho0 + (br * scc - bc * scr) / det))
            fit = [c + rho * gain for _, gain, _ in pairs]
            if is_last:
                break
            wide = 3.7 * _median([abs(p[2] - f) for p, f in zip(pairs, fit, strict=True)])
            came = [min(f + wide, max(f - wide, p[2])) for p, f in zip(pairs, fit, strict=True)]
        return c, rho, sum((d - f) ** 2 for d, f in zip(came, fit, strict=True))

    # ------------------------------------------------------------ forecasting

    def forecast(self, seen: Seen, step: float) -> tuple[float, float, float]:
        """Level at a later step as far as it is believed, its deviation, and the gain an octave there."""
        level, gain = seen.level, seen.gain
        if step <= seen.step or level == NEVER:
            return level, 0.0, max(0.0, gain)
        left, place = math.log2(step / seen.step), 2 * math.log2(seen.step) - 2.0
        var = cov = gain_var = 0.0
        more = seen.surprise
        last, known = len(self._bins) - 1, self._beyond
        c, rho, tau = known.c, known.rho, known.tau
        while left > 1e-9:
            octave = min(1.0, left)
            at = max(0, int(place + 0.5))
            if at <= last:
                c, rho, tau = self._bins[at].c, self._bins[at].rho, self._bins[at].tau
            elif at - 2 > last:
                c, rho = 0.7 * c, RHO + 0.64 * (rho - RHO)
                tau *= max(0.5, min(1.5, rho))
            else:
                c, rho, tau = known.c, known.rho, known.tau * max(0.5, min(1.5, known.rho))
            more *= self.lasting
            gain = c + rho * gain + more
            level += octave * gain
            gain_var = rho * rho * gain_var + tau * tau
            var += 2 * octave * rho * cov + octave * octave * gain_var
            cov = rho * cov + octave * gain_var
            left -= octave
            place += 2.0
        trust = 1.0 - 0.5 * self.doubt
        rise = trust * (level - seen.level)
        deviation = math.hypot(math.sqrt(max(0.0, var)), ERROR * rise)
        return seen.level + max(0.0, rise), deviation, trust * max(0.0, gain)

    def believe(self, trial: int, horizon: float) -> Belief | None:
        """Return what is believed of a trial at a later step; None before its first look, or if it has diverged."""
        seen = self.seen.get(trial)
        if seen is None or seen.level == NEVER:
            return None
        mean, deviation, gain = self.forecast(seen, horizon)
        steps = max(1.0, horizon - seen.step)
        gain_a_step = gain / (math.log(2) * max(1.0, horizon))
        return Belief(mean, deviation, gain_a_step, horizon, mean - seen.level, steps)

    def newcomers(self, horizon: float, to_beat: float, random: Random) -> float | None:
        """Return E[(X - to_beat)+] of a trial drawn now; None before three trials have been looked at.

        X is distributed as the levels that the trials so far have, or are forecast to have, at the horizon: an
        exponential tail beyond their best quarter.
        """
        known = list(self.seen.values())
        if len(known) > SAMPLE:
            known = random.sample(known, SAMPLE)
        levels = [
            seen.level_at(horizon)
            if horizon < seen.step and seen.level > NEVER
            else self.forecast(seen, horizon)[0]
            for seen in known
        ]
        n = len(levels)
        if n < 3:
            return None
        levels.sort(reverse=True)
        best = max(2, math.ceil(n / 4)) if n >= 8 else n // 2
        least = levels[best] if levels[best] > NEVER else levels[best - 1]
        tail = sum(level - least for level in levels[:best]) / best if least > NEVER else 0.0
        if not tail > 0:
            return 0.0
        return best / n * tail * math.exp(min(0.0, (least - to_beat) / tail))


def expected_excess(mean: float, deviation: float, over: float) -> float:
    """Return E[(X - over)+] of a normal X."""
    if deviation <= 0:
        return max(0.0, mean - over)
    z = (mean - over) / deviation
    if z < -8:
        return 0.0
    density = math.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    return deviation * (density + z * 0.5 * math.erfc(-z / math.sqrt(2)))


def _octave(step: int) -> float:
    return step / 2 if step > 3 else 1


def _last_octave(trial: TrialView) -> list[tuple[int, float]]:
    """(step, metric) of the last doubling of steps, latest first; a step that was trained twice counts with both."""
    found = []
    low = _octave(trial.step)
    for step, metric in reversed(trial.curve):
        if step < low:
            break
        if step <= trial.step:
            found.append((step, metric))
    return found


def _describe(known: _Bin, here: Sequence[tuple[float, float]], before: _Bin) -> None:
    """Mean and variance of the better trials here, or of the look before where too few have come."""
    n = len(here)
    if n >= 4:
        known.level, known.gain = sum(y for y, _ in here) / n, sum(g for _, g in here) / n
        known.level_var = sum((y - known.level) ** 2 for y, _ in here) / (n - 1)
        known.gain_var = sum((g - known.gain) ** 2 for _, g in here) / (n - 1)
    else:
        known.level, known.level_var = math.nan, 0.0
        known.gain = 0.5 * known.c + math.sqrt(known.rho) * before.gain
        known.gain_var = known.rho * before.gain_var


def _median(values: list[float]) -> float:
    values.sort()
    return values[len(values) // 2]
