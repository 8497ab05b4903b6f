"""The policy of ``gpusched validate --rehearse``: no search, and named by no recipe.

Its trials come in pairs. The first is led through a list of sizes, some steps at each, where the same size twice in a
row stands for a pause; the second has the same configuration and is left alone for as many steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpusched.core.decisions import (
    Complete,
    Decision,
    Pause,
    Resize,
    Resume,
    Start,
    TrialView,
    View,
)
from gpusched.policies import base

REHEARSAL = f"{__file__}:Rehearsal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(base.Options):
    """``sizes`` in atoms, in order; ``steps`` at each."""

    sizes: tuple[int, ...] = (1, 2)
    steps: int = 5


class Rehearsal(base.Policy):
    """Leads every other trial through the sizes."""

    options_type = Options
    options: Options

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._place = 0

    def on_report(self, view: View, trial: TrialView) -> Sequence[Decision]:
        if trial.id % 2:
            if trial.step < view.trials[trial.id - 1].step:
                return base.NOTHING
            return (Complete(trial.id, "as many steps as the trial that was moved"),)
        # Atoms that are not yet released after the pause are needed for the larger size.
        if view.atoms_coming or trial.steps_since_launch < self.options.steps:
            return base.NOTHING
        sizes = self.options.sizes
        while self._place + 1 < len(sizes):
            self._place += 1
            atoms = view.rules.fit(sizes[self._place])
            if sizes[self._place] == sizes[self._place - 1]:
                return (Pause(trial.id, "a pause"),)
            if atoms != trial.atoms and atoms - trial.atoms <= view.atoms_free:
                why = f"measured on {trial.size_in_words}, next on {atoms}"
                return (Resize(trial.id, atoms, why),)
        return (Complete(trial.id, "every size has been measured"),)

    def on_capacity(self, view: View) -> Sequence[Decision]:
        if view.live:
            return base.NOTHING
        sizes = self.options.sizes
        if view.paused:
            return (Resume(min(view.paused), sizes[self._place], "after the pause"),)
        if not view.can_draw:
            return base.NOTHING
        self._place = 0
        return (Start(sizes[0], "left alone" if len(view.trials) % 2 else "to be moved"),)
