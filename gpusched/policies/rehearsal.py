"""The policy of a rehearsal (``gpusched validate --rehearse``): trials in pairs, one after the other.

The first of a pair is paused and resumed, grown and shrunk; the second has the same configuration and is left alone for
as many steps. It is no search, so no recipe names it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpusched.core.decisions import Complete, Decision, Pause, Resize, Resume, Start
from gpusched.core.policy import TrialView, View
from gpusched.policies import base


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(base.Options):
    """``sizes``: in atoms, in order; the same one twice in a row stands for a pause. ``steps``: at each of them."""

    sizes: tuple[int, ...] = (1, 1, 2, 1)
    steps: int = 2

    def problems(self) -> Iterator[base.BadOption]:
        yield from base.Options.problems(self)
        if not self.sizes or min(self.sizes) < 1:
            yield "sizes", "must be a list of at least one number of atoms, each at least 1"


class Rehearsal(base.Policy):
    """Leads every other trial through the sizes."""

    name = "rehearsal"
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
        if trial.is_resizing or trial.steps_since_resize < self.options.steps:
            return base.NOTHING
        sizes = self.options.sizes
        while self._place + 1 < len(sizes):
            self._place += 1
            if sizes[self._place] == sizes[self._place - 1]:
                return (Pause(trial.id, "a pause"),)
            if sizes[self._place] != trial.atoms:
                return (Resize(trial.id, sizes[self._place], "to another size"),)
        return (Complete(trial.id, "every size has been rehearsed"),)

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
