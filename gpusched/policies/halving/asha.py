"""``asha``: asynchronous successive halving, by promotion (ASHA paper, Algorithm 1; HyperSched, Algorithms 1 and 2).

A trial runs to the next rung and pauses there. Free atoms promote the furthest trained trial that is among the best
floor(n/eta) of its rung; without such a trial they draw a new configuration. Brackets: bracket s has its first rung at
``r * eta**s`` (ASHA paper: "a minimum resource of r*eta^s will be allocated to each configuration"); with several
brackets new configurations go to them in proportion to the steps each spends on a first rung, as in Hyperband.
ASHA knows no deadline. ``R`` may be left out: there is then no last rung.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpusched.core.decisions import Decision, Pause, Resume, Start, TrialView, View
from gpusched.core.rung import Ladder, Rung
from gpusched.policies import base
from gpusched.text import ordinal


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(base.HalvingOptions):
    """``brackets``: how many early-stopping rates s = 0, 1, .. to use."""

    brackets: int = 1

    def problems(self) -> Iterator[base.BadOption]:
        yield from base.HalvingOptions.problems(self)
        if self.brackets < 1:
            yield "brackets", f"must be at least 1, not {self.brackets}"
        elif self.R is not None and self.eta > 1 and self.brackets < 64:
            first = self.r * self.eta ** (self.brackets - 1)
            if first > self.R:
                yield (
                    "brackets",
                    f"the last bracket would have its first rung at {first:g} steps, beyond R = {self.R}",
                )


class Asha(base.Policy):
    """Promotion-based asynchronous successive halving."""

    name = "asha"
    options_type = Options
    options: Options

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        rates = range(options.brackets)
        self.ladders = [Ladder(options.r, options.R, options.eta, rate) for rate in rates]
        self._entered = [0] * len(self.ladders)
        self._bracket_of: dict[int, int] = {}
        self._rung_of: dict[int, Rung] = {}

    def on_report(self, view: View, trial: TrialView) -> Sequence[Decision]:
        options = self.options
        done = base.complete_at(trial, options.R)
        if done:
            return done
        rung = self._ladder(trial).at(trial.step, trial.stride)
        # Algorithm 2, line 8: only a trial that has just come to a rung is judged, and only once.
        if rung is None or not rung.record(trial.id, trial.score):
            return base.NOTHING
        self._rung_of[trial.id] = rung
        # Algorithm 2, lines 10 to 12: on arrival, against floor(n/eta).
        rank, count = rung.rank(trial.id), len(rung)
        if rank < int(count // options.eta):
            return base.NOTHING
        return (
            Pause(trial.id, f"pauses at rung {rung.milestone}: {ordinal(rank)} of {count} there"),
        )

    def on_exit(self, view: View, trial: TrialView) -> Sequence[Decision]:
        if trial.id in view.paused and trial.id in self._rung_of:
            self._rung_of[trial.id].wait(trial.id)
        return base.NOTHING

    def on_capacity(self, view: View) -> Sequence[Decision]:
        # ASHA paper, get_job(): the furthest trained promotable configuration first ..
        for rung in self._rungs_from_the_top():
            for trial_id in rung.promotable(self.options.eta, view.paused):
                if not view.trials[trial_id].held_by_user:
                    return (Resume(trial_id, 1, f"promoted from rung {rung.milestone}"),)
        # .. else a new configuration in the bottom rung (Algorithm 2's trivial entrance policy).
        return (Start(1, "a new configuration"),) if view.can_draw else base.NOTHING

    def _ladder(self, trial: TrialView) -> Ladder:
        bracket = self._bracket_of.get(trial.id)
        if bracket is None:
            bracket = self._bracket_of[trial.id] = self._next_bracket()
        return self.ladders[bracket]

    def _next_bracket(self) -> int:
        """Choose the bracket that has had the fewest steps on its first rung so far."""
        if len(self.ladders) == 1:
            return 0
        steps = [self.options.r * self.options.eta**s for s in range(len(self.ladders))]
        bracket = min(range(len(steps)), key=lambda s: (self._entered[s] * steps[s], s))
        self._entered[bracket] += 1
        return bracket

    def _rungs_from_the_top(self) -> Iterator[Rung]:
        if len(self.ladders) == 1:
            return reversed(self.ladders[0].rungs)
        rungs = (rung for ladder in self.ladders for rung in ladder.rungs)
        return iter(sorted(rungs, key=lambda rung: -rung.milestone))

    def rungs(self, view: View) -> Sequence[Rung]:
        return sorted(self._rungs_from_the_top(), key=lambda rung: rung.milestone)

    def explain(self, view: View, trial: TrialView) -> Sequence[str]:
        return explain_rungs(self.rungs(view), trial, self.options.eta)


def promoted(count: int, eta: float) -> str:
    """Word how many of ``count`` trials at a rung are promoted."""
    best = int(count // eta)
    if best == 0:
        return f"promotion begins when {math.ceil(eta)} trials have come"
    return "the best is promoted" if best == 1 else f"the best {best} are promoted"


def explain_rungs(rungs: Sequence[Rung], trial: TrialView, eta: float) -> list[str]:
    """Return a sentence for each rung in which the trial was recorded."""
    return [
        f"rung {rung.milestone}: {ordinal(rung.rank(trial.id))} of {len(rung)}; {promoted(len(rung), eta)}"
        for rung in rungs
        if trial.id in rung
    ]
