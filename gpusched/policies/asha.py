"""``asha``: asynchronous successive halving, by promotion (ASHA paper, Algorithm 1; HyperSched, Algorithms 1 and 2).

A trial that is among the best floor(n/eta) of the rung it comes to goes straight on, as in Algorithm 2 and Ray Tune (in
Algorithm 1 of ASHA it queues for a worker); the others pause. Free atoms promote the furthest trained of those that
have come to be among them, else draw a new configuration. Bracket s of the paper, with its first rung at
``r * eta**s``, is a larger ``r``. ASHA knows no deadline. ``R`` may be left out: there is then no last rung.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from gpusched.core.decisions import Decision, Pause, Resume, Start, TrialView, View
from gpusched.core.rung import Ladder, Rung
from gpusched.core.trial import TrialState
from gpusched.policies import base
from gpusched.text import ordinal, show_metric


class Asha(base.Policy):
    """Promotion-based asynchronous successive halving."""

    options_type = base.HalvingOptions
    options: base.HalvingOptions

    def __init__(self, options: base.HalvingOptions) -> None:
        super().__init__(options)
        self.ladder = Ladder(options.r, options.eta)

    def on_report(self, view: View, trial: TrialView) -> Sequence[Decision]:
        options = self.options
        done = base.ended(trial, options.R)
        if done:
            return done
        rung = self._arrival(trial)
        if rung is None:
            return base.NOTHING
        # Algorithm 2, lines 10 to 12: on arrival, against floor(n/eta).
        rank = rung.rank(trial.id)
        if rank < rung.places:
            return base.NOTHING
        why = f"pauses at rung {rung.milestone}: {ordinal(rank)} of {len(rung)} there"
        return (Pause(trial.id, why),)

    def _arrival(self, trial: TrialView) -> Rung | None:
        """Return the rung that the trial has just come to (Algorithm 2, line 8), its score recorded there, once."""
        rung = self.ladder.at(trial.step, trial.stride)
        return rung if rung is not None and rung.record(trial.id, trial.score) else None

    def on_capacity(self, view: View) -> Sequence[Decision]:
        # ASHA paper, get_job(): the furthest trained promotable configuration first ..
        for rung in reversed(self.ladder.rungs):
            for trial_id in rung.promotable(view.paused):
                if view.trials[trial_id].may_resume:
                    return (Resume(trial_id, 1, f"promoted from rung {rung.milestone}"),)
        # .. else a new configuration in the bottom rung (Algorithm 2's trivial entrance policy).
        if view.can_draw:
            return (Start(1, "a new configuration"),)
        # Ours: where none will come any more, floor(n/eta) may keep all that are left waiting for good.
        best = next(iter(view.paused_by_score()), None)
        is_one_complete = any(t.state is TrialState.COMPLETED for t in view.trials.values())
        if best is None or view.may_draw or is_one_complete:
            return base.NOTHING
        return (Resume(best.id, 1, "the best that waits continues: no configuration is left"),)

    def explain(self, view: View, trial: TrialView) -> Sequence[str]:
        return explain_rungs(self.ladder.rungs, trial, view.rules.sign)


def promoted(rung: Rung) -> str:
    """Word how many of the trials at a rung are promoted."""
    best = rung.places
    if best == 0:
        return f"promotion begins when {math.ceil(rung.eta)} trials have come"
    return "the best is promoted" if best == 1 else f"the best {best} are promoted"


def explain_rungs(rungs: Sequence[Rung], trial: TrialView, sign: float) -> list[str]:
    """Return a sentence for each rung in which the trial was recorded: its place, and the metric it had there."""
    return [
        f"rung {rung.milestone}: {ordinal(rung.rank(trial.id))} of {len(rung)}"
        f" with {show_metric(rung.score(trial.id) * sign)}"
        + ("" if trial.state.is_final else f"; {promoted(rung)}")
        for rung in rungs
        if trial.id in rung
    ]
