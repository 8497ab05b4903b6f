"""Learning curves of one search, continued: what its trials, and trials like them, may do next.

``foresight``'s forecaster (``policies/foresight_curves.py``) says which shapes a curve may have, where it starts and
how high it rises, and how sure that is. A future draws how usual each shape is in this search, and then for each trial
one shape, start and height. A new configuration is one seen, its whole curve moved a little: as far as its neighbours
in rank were apart. Reports are scattered as they were.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gpusched.policies import foresight_curves
from gpusched.policies.foresight_shapes import shape_at
from gpusched.sim.workload import SimulatedCurve

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Seen:
    """One trial so far. ``scores``: more is better, NaN where the metric was not finite; ``step_s``: on one atom."""

    trial: int
    steps: Array
    scores: Array
    step_s: float
    ending: Literal["finished", "failed"] | None = None


class Curves:
    """The curves of one search. ``best``: the best possible score, where it is known."""

    def __init__(self, seen: Sequence[Seen], best: float | None = None) -> None:
        self.seen = {one.trial: one for one in seen}
        self.model = foresight_curves.Curves()
        curves = {
            one.trial: list(zip(one.steps.astype(int).tolist(), one.scores.tolist(), strict=True))
            for one in seen
        }
        self.model.read(curves, best)
        self.fits = {trial: known for trial, known in self.model.seen.items() if known.is_fitted}

    @property
    def bound(self) -> float:
        """The best possible score, infinite where it is unknown."""
        return self.model.bound

    @property
    def range(self) -> float:
        """Distance from a usual first score to the ceiling."""
        return self.model.range


class Future:
    """One way in which the curves may go on."""

    def __init__(self, curves: Curves, key: Sequence[int]) -> None:
        """``key``: the seed of all that is drawn."""
        self.curves, self._key = curves, key
        shares = np.random.default_rng(key).standard_gamma(curves.model.counts)
        self._likely = np.log(np.maximum(1e-300, shares))

    def curve(self, trial: int) -> SimulatedCurve:
        """Return the curve of a trial: continued, or for one not seen yet that of a new configuration.

        It is drawn from the key and the trial alone, so that two questions meet the same curves.
        """
        seen = self.curves.seen
        random = np.random.default_rng([*self._key, trial])
        if trial in seen:
            return self._continued(seen[trial], 0.0, random)
        donor = list(seen.values())[int(random.integers(len(seen)))]
        return self._continued(donor, self._shift(donor, random), random)

    def _shift(self, donor: Seen, random: np.random.Generator) -> float:
        """Return by how much a newcomer's scores differ from its donor's: a part of the way to the next in rank."""
        if donor.trial not in self.curves.fits or not math.isfinite(donor.scores[-1]):
            return 0.0
        last, score = donor.steps[-1], float(donor.scores[-1])
        others = sorted(
            float(other.scores[place])
            for other in self.curves.seen.values()
            if other.trial != donor.trial
            and (place := int(other.steps.searchsorted(last))) < len(other.steps)
            and math.isfinite(other.scores[place])
        )
        u = random.random() - 0.5
        place = bisect.bisect_left(others, score)
        below = score - others[place - 1] if place > 0 else None
        above = others[place] - score if place < len(others) else None
        if u < 0:
            gap = below if below is not None else above
            return u * (gap or 0.0)
        if above is None:
            return float(random.standard_exponential()) * 0.5 * (below or 0.0)
        return u * above

    def _continued(self, donor: Seen, shift: float, random: np.random.Generator) -> SimulatedCurve:
        """Return the donor's curve, moved by ``shift``, and how it goes on."""
        ending = donor.ending or "finished"
        length = len(donor.steps) and int(donor.steps[-1]) if donor.ending else None
        if donor.trial not in self.curves.fits:
            return SimulatedCurve(lambda step: math.nan, lambda step: donor.step_s, length, ending)
        path = _Path(self.curves, donor, shift, self._likely, random)
        return SimulatedCurve(path.score, lambda step: donor.step_s, length, ending)


class _Path:
    """One curve in one future, made step by step."""

    def __init__(
        self,
        curves: Curves,
        donor: Seen,
        shift: float,
        likely: Array,
        random: np.random.Generator,
    ) -> None:
        model = curves.model
        self._bound, self._noise = model.bound, math.sqrt(model.noise_var)
        self._random = random
        self._shift, self._end = shift, int(donor.steps[-1])
        self._known: dict[float, float] = dict(
            zip(donor.steps.tolist(), donor.scores.tolist(), strict=True)
        )
        fit = curves.fits[donor.trial].fit
        weight = np.exp(fit[5] + likely - (fit[5] + likely).max())
        self._shape = int(random.choice(len(weight), p=weight / weight.sum()))
        start, height, start_var, height_var, cov, _ = fit[:, self._shape]
        spread = model.doubt**2 * np.array([[start_var, cov], [cov, height_var]])
        drawn = random.multivariate_normal((start, height), spread)
        self._start, self._height = float(drawn[0]), float(drawn[1])
        self._diverged = not math.isfinite(donor.scores[-1])
        self._drawn: dict[int, float] = {}
        #: How far the curve was off this shape at the last look; the distance fades as steps double.
        level = curves.fits[donor.trial].level
        self._off = 0.0 if self._diverged else level - self._smooth(self._end)

    def _smooth(self, step: int) -> float:
        return self._start + self._height * shape_at(self._shape, step)

    def score(self, step: int) -> float:
        """Return the score of a step; one that was seen, as it was."""
        known = self._known.get(step)
        if known is not None:
            return min(known + self._shift, self._bound)  # NaN stays NaN in this order alone
        if self._diverged and step > self._end:
            return math.nan
        if step not in self._drawn:
            value = self._smooth(step) + self._shift
            value += self._off * min(1.0, self._end / step)
            self._drawn[step] = value + self._noise * float(self._random.standard_normal())
        return min(self._bound, self._drawn[step])


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
