"""What ``foresight`` believes of the deadline: where each trial would be, who is ahead, who may still win."""

from __future__ import annotations

import math
from random import Random

from gpusched.core.policy import TrialView, View
from gpusched.core.trial import NEVER
from gpusched.policies.foresight_curves import Belief, Curves

#: Share of the time left that is kept back when it is asked how far a trial can come.
MARGIN = 0.05
#: A leader may still win: its forecast is within so many deviations of the best.
CHANCE = 2.0
#: Paused trials that are forecast each time: the best ones.
CONSIDERED = 128
#: Share of what it still gains that a step is worth to an incumbent with time to spare: growing may fail.
HURRY = 0.05


class Beliefs:
    """Forecasts of the deadline, by trial."""

    def __init__(self, most_steps: int | None) -> None:
        self.curves = Curves()
        self.of: dict[int, Belief] = {}
        #: The trial with the best forecast, that forecast, and what a step more would bring it at the deadline.
        self.incumbent: int | None = None
        self.to_beat = NEVER
        self.slope = 0.0
        #: The best trials, as many as forecasts are wrong.
        self.leaders: set[int] = set()
        #: The best score of a trial that is over.
        self.over = NEVER
        #: By how much newcomers have raised the best forecast: a fading sum.
        self.brought = 0.0
        self._most_steps = math.inf if most_steps is None else most_steps
        self._random = Random(0)

    def step_s(self, view: View, trial: TrialView | None = None) -> float:
        """Return Ta, of this trial where it is known."""
        if trial is not None and trial.step_time_s is not None and trial.atoms:
            return trial.step_time_s * view.speedup(trial.atoms)
        return view.step_on_one_atom_s or 1.0

    def horizon(self, view: View, trial: TrialView | None = None, spent_s: float = 0.0) -> float:
        """Return the steps a trial, or a new one, would have if all atoms were its own from now on.

        Some time is kept back: a growth takes effect some reports later.
        """
        left_s = max(0.0, view.time_left_s * (1 - MARGIN) - 3 * self.step_s(view)) - spent_s
        top, steps = view.rules.fit(view.atoms_total), 0
        seconds = view.speedup(top) * max(0.0, left_s - view.overhead_s)
        if trial is not None:
            steps = trial.step
            seconds = max(seconds, view.speedup(trial.atoms) * left_s if trial.atoms else 0.0)
        return min(steps + seconds / self.step_s(view, trial), self._most_steps)

    def believe(self, view: View, trial: TrialView) -> Belief | None:
        """Forecast one trial; None before its first look, or if its metric is not finite."""
        belief = self.curves.believe(trial.id, self.horizon(view, trial))
        if belief is not None:
            self.of[trial.id] = belief
        return belief

    def promise(self, view: View, spent_s: float) -> float | None:
        """Return by how much a new configuration may be expected to beat the best forecast; None while unknown."""
        return self.curves.newcomers(self.horizon(view, None, spent_s), self.to_beat, self._random)

    def refresh(self, view: View, look_s: float) -> None:
        """Forecast every trial anew. ``look_s``: time that a newcomer has before it is judged."""
        self.curves.rescale(view.trials)
        self.curves.refit()
        seen = self.curves.seen
        paused = [i for i in view.paused if i in seen and not view.trials[i].held_by_user]
        if len(paused) > CONSIDERED:
            paused.sort(key=lambda i: (-seen[i].level - 4 * seen[i].gain, i))
        self.of = {}
        for i in (*view.live, *paused[:CONSIDERED]):
            self.believe(view, view.trials[i])
        self._choose_incumbent(view, look_s)
        count = max(1, round(0.5 * self.curves.doubt * view.atoms_total))
        best = sorted(self.of, key=lambda i: (-self.of[i].mean, i))[:count]
        self.leaders = {i for i in best if self._may_win(self.of[i])}

    def _may_win(self, belief: Belief) -> bool:
        return belief.mean + CHANCE * belief.deviation >= self.to_beat

    def _choose_incumbent(self, view: View, look_s: float) -> None:
        """Take the best forecast, less half its deviation; in doubt the incumbent stays."""
        before = self.incumbent

        def merit(i: int) -> tuple[float, int]:
            belief = self.of[i]
            return belief.mean - (0.0 if i == before else 0.5 * belief.deviation), -i

        self.incumbent = max(self.of, key=merit, default=None)
        over = self.curves.scale.level(self.over) if self.over > NEVER else NEVER
        self.to_beat, self.slope = over, 0.0
        if self.incumbent is None:
            return
        belief = self.of[self.incumbent]
        if before in self.of and self.incumbent > before:
            brought = merit(self.incumbent)[0] - max(self.of[before].mean, over)
            self.brought += max(0.0, brought)
        if belief.mean <= over:
            return
        self.to_beat, self.slope = belief.mean, belief.gain
        later = self.horizon(view, view.trials[self.incumbent], view.overhead_s + look_s)
        if later >= self._most_steps:
            self.slope = HURRY * belief.rise / belief.steps

    def best(self, view: View) -> TrialView | None:
        """Return the incumbent."""
        return view.trials[self.incumbent] if self.incumbent is not None else None

    def leader_that_waits(self, view: View) -> int | None:
        """Return a paused leader to go on with, where a launch costs less than it has been trained for."""
        usual_s = self.step_s(view)
        waiting = (
            i
            for i in self.leaders
            if i != self.incumbent
            and may_resume(view, view.trials[i])
            and view.overhead_s <= view.trials[i].step * usual_s
        )
        return min(waiting, key=lambda i: (-self.of[i].mean, i), default=None)

    def in_words(self, trial: int) -> str:
        """Return a forecast for people."""
        belief = self.of[trial]
        words = self.curves.scale.in_words(belief.mean, belief.deviation, self.curves.sign)
        return f"{words} at the deadline"

    def a_minute(self, bid: float) -> str:
        """Return a bid for people: in the metric, near the score to beat, a minute."""
        if not math.isfinite(bid) or self.to_beat == NEVER:
            return "an unknown amount"
        return f"{max(0.0, bid) * 60 * self.curves.scale.slope(self.to_beat):.2g}"


def may_resume(view: View, trial: TrialView) -> bool:
    """Tell whether the trial is paused, and not by a person."""
    return trial.id in view.paused and not trial.held_by_user


def pays(view: View, held: int, atoms: int) -> bool:
    """Tell whether more steps fit before the deadline on more atoms, the launch taken off."""
    left_s = view.time_left_s
    return (left_s - view.overhead_s) * view.speedup(atoms) > left_s * view.speedup(held)
