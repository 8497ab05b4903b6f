"""Beliefs of ``foresight`` about the deadline: where each trial would be, who is ahead, who may still win."""

from __future__ import annotations

import math
from random import Random

from gpusched.core.policy import TrialView, View
from gpusched.core.trial import NEVER
from gpusched.policies.foresight_curves import VOTERS, Belief, Curves

#: Share of the time left that is kept back when it is asked how far a trial can come.
MARGIN = 0.05
#: Paused trials that are forecast each time: the best ones.
CONSIDERED = 128


class Beliefs:
    """Forecasts of the deadline, by trial."""

    def __init__(self, most_steps: int | None) -> None:
        self.curves = Curves()
        self.of: dict[int, Belief] = {}
        #: The trial with the best forecast, and that forecast.
        self.incumbent: int | None = None
        self.to_beat = NEVER
        #: The incumbent's forecast by the atoms that it has from now on.
        self.at: dict[int, float] = {}
        #: The best score of a trial that is over.
        self.over = NEVER
        #: The forecast of each trial when it was last made.
        self._last: dict[int, float] = {}
        self._most_steps = math.inf if most_steps is None else most_steps
        self._random = Random(0)

    def step_s(self, view: View, trial: TrialView | None = None) -> float:
        """Return Ta, of this trial where it is known."""
        if trial is not None and trial.step_time_s is not None and trial.atoms:
            return trial.step_time_s * view.speedup(trial.atoms)
        return view.step_on_one_atom_s or 1.0

    def horizon(
        self,
        view: View,
        trial: TrialView | None = None,
        spent_s: float = 0.0,
        atoms: int | None = None,
    ) -> float:
        """Return the steps a trial, or a new one, would have if so many atoms (None: all) were its own from now on.

        Some time is kept back: a growth takes effect some reports later.
        """
        left_s = max(0.0, view.time_left_s * (1 - MARGIN) - 3 * self.step_s(view)) - spent_s
        held, steps = (0, 0) if trial is None else (trial.atoms, trial.step)
        size = view.rules.fit(view.atoms_total) if atoms is None else atoms
        seconds = view.speedup(size) * max(0.0, left_s - view.overhead_s)
        if held and (atoms is None or atoms == held):
            seconds = max(seconds, view.speedup(held) * left_s)
        return min(steps + seconds / self.step_s(view, trial), self._most_steps)

    def believe(self, view: View, trial: TrialView) -> Belief | None:
        """Forecast one trial; None before its first look, or if its metric is not finite."""
        found = self.curves.believe({trial.id: self.horizon(view, trial)})
        self.of.update(found)
        return found.get(trial.id)

    def refresh(self, view: View) -> None:
        """Forecast every trial anew."""
        self.curves.rescale(view.trials)
        seen = self.curves.seen
        paused = [i for i in view.paused if i in seen and not view.trials[i].held_by_user]
        if len(paused) > CONSIDERED:
            paused.sort(key=lambda i: (-self._last.get(i, seen[i].level), i))
        known = list(seen) if len(seen) <= VOTERS else self._random.sample(list(seen), VOTERS)
        self.curves.learn(known)
        among = (*view.live, *paused[:CONSIDERED])
        self.of = self.curves.believe({i: self.horizon(view, view.trials[i]) for i in among})
        self._last.update((i, belief.mean) for i, belief in self.of.items())
        self._choose_incumbent(view)

    def _choose_incumbent(self, view: View) -> None:
        """Take the best forecast, less half its deviation; in doubt the incumbent stays, longer if trials are alike."""
        before, doubt = self.incumbent, 0.5 / self.curves.unlike

        def merit(i: int) -> tuple[float, int]:
            belief = self.of[i]
            return belief.mean - (0.0 if i == before else doubt * belief.deviation), -i

        self.incumbent = max(self.of, key=merit, default=None)
        self.to_beat, self.at = self.over, {}
        if self.incumbent is not None and self.of[self.incumbent].mean > self.over:
            self.to_beat = self.of[self.incumbent].mean
            self.at = self._by_atoms(view, self.incumbent)

    def _by_atoms(self, view: View, number: int) -> dict[int, float]:
        """Return a trial's forecast by the atoms that it has from now on: what it has, and the larger sizes."""
        trial, belief, top = view.trials[number], self.of[number], view.rules.fit(view.atoms_total)
        held = trial.atoms if trial.is_live else 0
        doubled = (2**power for power in range(top.bit_length()))
        sizes = sorted({top, *(a for a in view.rules.sizes or doubled if held < a <= top)} - {held})
        ends = [self.horizon(view, trial, atoms=atoms) for atoms in (held, *sizes) if atoms]
        scores = [one.mean for one in self.curves.believe_at(number, ends)]
        if not held:
            scores.insert(0, belief.mean - belief.rise)
        return dict(zip((held, *sizes), scores, strict=True))

    def best(self, view: View) -> TrialView | None:
        """Return the incumbent."""
        return view.trials[self.incumbent] if self.incumbent is not None else None

    def in_words(self, trial: int) -> str:
        """Return a forecast for people."""
        belief = self.of[trial]
        return f"{belief.mean * self.curves.sign:.4g} +- {belief.deviation:.2g} at the deadline"

    def a_minute(self, bid: float) -> str:
        """Return a bid for people: in the metric, near the score to beat, a minute."""
        if not math.isfinite(bid) or self.to_beat == NEVER:
            return "an unknown amount"
        return f"{max(0.0, bid) * 60:.2g}"


def may_resume(view: View, trial: TrialView) -> bool:
    """Tell whether the trial is paused, and not by a person."""
    return trial.id in view.paused and not trial.held_by_user


def pays(view: View, held: int, atoms: int) -> bool:
    """Tell whether more steps fit before the deadline on more atoms, the launch taken off."""
    left_s = view.time_left_s
    return (left_s - view.overhead_s) * view.speedup(atoms) > left_s * view.speedup(held)
