"""``profile``: one trial, so many steps at each of a list of sizes. For ``gpusched profile`` and for measurements.

HyperSched, section 4.3: "users can profile scaling before beginning the search by sampling different allocations on a
random trial, while monitoring the startup time of each trial".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpusched.core.decisions import Complete, Decision, Resize, Start
from gpusched.core.policy import TrialView, View
from gpusched.policies import base


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(base.Options):
    """``sizes`` in atoms, in order; ``steps`` at each."""

    sizes: tuple[int, ...] = (1, 2)
    steps: int = 5

    def problems(self) -> Iterator[base.BadOption]:
        yield from base.Options.problems(self)
        if not self.sizes or min(self.sizes) < 1:
            yield "sizes", "must be a list of at least one number of atoms, each at least 1"
        if any(a == b for a, b in zip(self.sizes, self.sizes[1:], strict=False)):
            yield "sizes", "the same size twice in a row is not a resize"
        if self.steps < 1:
            yield "steps", f"must be at least 1, not {self.steps}"


class Profile(base.Policy):
    """Walks one trial through the sizes."""

    name = "profile"
    options_type = Options
    options: Options

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._place = 0

    def on_report(self, view: View, trial: TrialView) -> Sequence[Decision]:
        if trial.is_resizing or trial.steps_since_resize < self.options.steps:
            return base.NOTHING
        while self._place + 1 < len(self.options.sizes):
            self._place += 1
            atoms = view.rules.fit(self.options.sizes[self._place])
            if atoms != trial.atoms and atoms - trial.atoms <= view.atoms_free:
                why = f"measured on {trial.size_in_words}, next on {atoms}"
                return (Resize(trial.id, atoms, why),)
        return (Complete(trial.id, "every size has been measured"),)

    def on_tried(self, view: View) -> Sequence[Decision]:
        return base.NOTHING

    def on_capacity(self, view: View) -> Sequence[Decision]:
        atoms = self.options.sizes[0]
        if view.trials or not view.can_draw or view.rules.fit(atoms) > view.atoms_free:
            return base.NOTHING
        return (Start(atoms, f"a random configuration at {atoms} atoms"),)
