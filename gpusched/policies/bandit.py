"""``bandit``: action elimination as in TuPAQ, the way HyperDrive (Middleware'17, 5.3) compares against it.

Trials are started in order, one after the other on each atom (``fifo``). At every b-th step of a trial:

    "if jobBest * (1 + eps) > globalBest" the trial goes on, else it is stopped.     ``_goes_on``

The rule multiplies metrics: if one below 0 turns up they are normalised to 0..1 between the lowest and highest so far
(HyperDrive 6.3, equation 4). For a loss it is the mirror image. The trial with the best metric of all always continues.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpusched.core.decisions import Decision, Stop, TrialView, View
from gpusched.core.trial import NEVER
from gpusched.policies import base, fifo
from gpusched.text import show_metric


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(base.JudgedOptions):
    """``b``: steps between two judgements; ``eps``: how far below the best a trial may be."""

    eps: float = 0.5

    def problems(self) -> Iterator[base.BadOption]:
        yield from base.JudgedOptions.problems(self)
        if not 0 <= self.eps < math.inf:
            yield "eps", f"must be 0 or more, not {self.eps:g}"


class Bandit(fifo.Fifo):
    """First in, first out, until somebody is much better."""

    options_type = Options
    options: Options

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._best = NEVER
        self._lowest, self._highest = math.inf, -math.inf

    def on_report(self, view: View, trial: TrialView) -> Sequence[Decision]:
        if trial.metric is not None:
            self._best = max(self._best, trial.score)
            self._lowest = min(self._lowest, trial.metric)
            self._highest = max(self._highest, trial.metric)
        done = base.ended(trial, self.options.R)
        if done:
            return done
        if not trial.has_passed(self.options.b) or self._best == NEVER:
            return base.NOTHING
        if self._goes_on(trial.best_score, view.rules.sign):
            return base.NOTHING
        sign = view.rules.sign
        why = (
            f"stops at step {trial.step}: its best is {show_metric(trial.best_score * sign)}, the best of all "
            f"{show_metric(self._best * sign)} (more than {self.options.eps:.0%} apart)"
        )
        return (Stop(trial.id, why),)

    def _goes_on(self, score: float, sign: float) -> bool:
        """HyperDrive 5.3: jobBest * (1 + eps) > globalBest."""
        if score >= self._best:
            return True
        factor = 1.0 + self.options.eps
        if self._lowest < 0 and self._highest > self._lowest:
            scale = base.Scale(self._lowest, self._highest, sign)
            return scale.of_score(score) * factor > scale.of_score(self._best)
        job, best = score * sign, self._best * sign
        return job * factor > best if sign > 0 else best * factor > job

    def notes(self, view: View) -> Sequence[str]:
        return self.options.unjudged()
