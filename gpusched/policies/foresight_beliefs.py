"""Beliefs of ``foresight`` about the deadline: where each trial would be, who is ahead, what more atoms would bring."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gpusched.core.decisions import TrialView, View
from gpusched.core.trial import NEVER
from gpusched.policies.foresight_curves import Belief, Curves

#: Share of the time left that is kept back when it is asked how far a trial can come.
MARGIN = 0.05
#: Paused trials that are forecast each time: the best ones.
CONSIDERED = 128
#: Numbers of atoms for which the incumbent is forecast, where the recipe allows any.
SIZES = 32


@dataclass(frozen=True, slots=True)
class Prospect:
    """The incumbent on some atoms from now on: its forecast, and the atom-seconds until then."""

    score: float
    atom_s: float


class Beliefs:
    """Forecasts of the deadline, by trial."""

    def __init__(self, most_steps: int | None) -> None:
        self.curves = Curves()
        #: The forecast of each trial when it was last made.
        self.of: dict[int, Belief] = {}
        #: The trial with the best forecast, and the forecast to beat.
        self.incumbent: int | None = None
        self.to_beat = NEVER
        #: The incumbent's prospects by atoms: as it is (0), on what it has, and on the larger sizes.
        self.on: dict[int, Prospect] = {}
        #: The best score of a trial that is over.
        self.over = NEVER
        self.most_steps: float = math.inf if most_steps is None else most_steps

    def step_s(self, view: View, trial: TrialView | None = None) -> float:
        """Return Ta, of this trial where it is known."""
        if trial is not None and trial.step_time_s is not None and trial.atoms:
            return trial.step_time_s * view.speedup(trial.atoms)
        return view.step_on_one_atom_s or 1.0

    def _reach(self, view: View, trial: TrialView | None, atoms: int) -> float:
        """Return the step that a trial, or a new one, comes to on so many atoms from now on.

        Some time is kept back: a growth takes effect some reports later.
        """
        left_s = view.time_left_s * (1 - MARGIN) - 3 * self.step_s(view)
        if trial is None:
            left_s -= 2 * view.overhead_s  # it starts on one atom, and grows
        elif not trial.is_live or atoms != trial.atoms:
            left_s -= view.overhead_s
        steps = view.speedup(atoms) * max(0.0, left_s) / self.step_s(view, trial)
        return min((0 if trial is None else trial.step) + steps, self.most_steps)

    def horizon(self, view: View, trial: TrialView | None = None) -> float:
        """Return the step that a trial, or a new one, comes to on all atoms, or on those it has."""
        furthest = self._reach(view, trial, view.rules.fit(view.atoms_total))
        if trial is not None and trial.atoms:
            furthest = max(furthest, self._reach(view, trial, trial.atoms))
        return furthest

    def believe(self, view: View, trial: TrialView) -> Belief | None:
        """Forecast one trial; None before its first look, or if its metric is not finite."""
        found = self.curves.believe({trial.id: self.horizon(view, trial)})
        self.of.update(found)
        return found.get(trial.id)

    def refresh(self, view: View) -> list[int]:
        """Forecast the live trials and the best paused ones anew; return which."""
        self.curves.rescale(view.trials)
        self.curves.learn()
        paused = [i for i in view.paused if i in self.of and not view.trials[i].held_by_user]
        paused.sort(key=lambda i: (-self.of[i].mean, i))
        among = (*view.live, *paused[:CONSIDERED])
        fresh = self.curves.believe({i: self.horizon(view, view.trials[i]) for i in among})
        self.of.update(fresh)
        self._choose_incumbent(view, list(fresh))
        return list(fresh)

    def _choose_incumbent(self, view: View, among: list[int]) -> None:
        """Take the best forecast, less half its deviation; in doubt an incumbent that trains stays."""
        before = self.incumbent if self.incumbent in view.live else None

        def merit(i: int) -> tuple[float, int]:
            belief = self.of[i]
            return belief.mean - (0.0 if i == before else 0.5 * belief.deviation), -i

        self.incumbent = max(among, key=merit, default=None)
        self.to_beat, self.on = self.over, {}
        if self.incumbent is not None:
            self.to_beat = max(self.over, self.of[self.incumbent].mean)
            self.on = self._prospects(view, self.incumbent)

    def _prospects(self, view: View, number: int) -> dict[int, Prospect]:
        trial, belief, top = view.trials[number], self.of[number], view.rules.fit(view.atoms_total)
        held = trial.atoms if trial.is_live else 0
        allowed = view.rules.sizes or range(1, top, 1 + top // SIZES)
        sizes = sorted({held, top, *(size for size in allowed if held < size <= top)} - {0})
        steps = [self._reach(view, trial, size) for size in sizes]
        step_s = self.step_s(view, trial)
        found = {0: Prospect(max(self.over, belief.mean - belief.rise), 0.0)}
        beliefs = self.curves.forecast([self.curves.seen[number]] * len(sizes), steps)
        for size, end, then in zip(sizes, steps, beliefs, strict=True):
            seconds = (end - trial.step) * step_s / view.speedup(size)
            seconds += 0.0 if size == held else view.overhead_s
            found[size] = Prospect(max(self.over, then.mean), size * seconds)
        return found

    def in_words(self, trial: int) -> str:
        """Return a forecast for people."""
        belief = self.of[trial]
        return f"{belief.mean * self.curves.sign:.4g} +- {belief.deviation:.2g} at the deadline"

    def a_minute(self, bid: float) -> str:
        """Return a bid for people: in the metric, near the score to beat, a minute."""
        if not math.isfinite(bid) or self.to_beat == NEVER:
            return "an unknown amount"
        return f"{max(0.0, bid) * 60:.2g}"
