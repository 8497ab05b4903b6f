"""``earlyterm``: predictive termination (Domhan et al., IJCAI'15), as HyperDrive (Middleware'17, 5.3) states it.

Trials are started in order, one after the other on each atom (``fifo``). At every b-th step n of a trial its learning
curve is extrapolated to its last step m = R, while it trains on:

    p = P(y_m >= y_best | y_1..n);  "if p < delta then the job is immediately terminated".      ``on_report``

y_best is the best metric of any trial so far. The predictor works on a scale from 0 to 1, so the metric must have
bounds. A curve that ends with a metric that is not finite is not extrapolated; the trial is looked at again b steps on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from gpusched.core.decisions import Decision, Stop, TrialView, View
from gpusched.core.trial import NEVER
from gpusched.policies import base, fifo
from gpusched.policies.extrapolation import CurvePredictor, ShapesPredictor, extrapolate


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(base.BoundedOptions):
    """``b``: steps between two looks at a trial; ``delta``: the probability below which it is given up."""

    b: int = 30
    delta: float = 0.05

    def problems(self) -> Iterator[base.BadOption]:
        yield from base.BoundedOptions.problems(self)
        if self.R is not None and 1 <= self.R <= self.b:
            yield "b", f"a trial would end at R = {self.R} steps before the first look at {self.b}"
        if not 0 < self.delta < 1:
            yield "delta", f"must be between 0 and 1, not {self.delta:g}"


class EarlyTerm(fifo.Fifo):
    """First in, first out, until a curve has no chance any more."""

    options_type = Options
    options: Options
    predictor: ClassVar[CurvePredictor] = ShapesPredictor()

    def on_report(self, view: View, trial: TrialView) -> Sequence[Decision]:
        done = base.ended(trial, self.options.R)
        if done:
            return done
        R = self.options.R  # None: the script has not said how long its loop is
        if R is None or not trial.has_passed(self.options.b) or trial.metric is None:
            return base.NOTHING
        scale = self.options.scale(view.rules.sign)
        curve, stride = base.curve_of(trial, scale)
        ahead = max(1, round((R - trial.step) / stride))
        best = max(other.best_score for other in view.trials.values())
        outlook = extrapolate(
            curve,
            len(curve) + ahead,
            scale.of_score(best),
            predictor=self.predictor,
            seed=(trial.id, trial.step),
        )
        if outlook is None or outlook.reached_at_end >= self.options.delta:
            return base.NOTHING
        p = outlook.reached_at_end
        return (Stop(trial.id, f"given up: beats the best with a probability of {p:.2g}"),)

    def notes(self, view: View) -> Sequence[str]:
        if self.options.R is None:
            return ("nothing is extrapolated: the last step is not known, give R",)
        best = max((trial.best_score for trial in view.trials.values()), default=NEVER)
        return () if best == NEVER else self.options.doubts(best * view.rules.sign)
