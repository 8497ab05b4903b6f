"""``fifo``: configurations in order, one after the other on each atom, each trained to R (HyperDrive's "Default").

The yardstick: no trial is ever paused or resized, and the deadline is not looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpusched.core.decisions import Decision, Start, TrialView, View
from gpusched.policies import base


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(base.Options):
    """``R`` steps a trial; ``atoms`` a trial."""

    R: int | None = 81
    atoms: int = 1

    def problems(self) -> Iterator[base.BadOption]:
        yield from base.Options.problems(self)
        if self.atoms < 1:
            yield "atoms", f"must be at least 1, not {self.atoms}"


class Fifo(base.Policy):
    """First in, first out."""

    name = "fifo"
    options_type = Options
    options: Options

    def on_report(self, view: View, trial: TrialView) -> Sequence[Decision]:
        return base.complete_at(trial, self.options.R)

    def on_tried(self, view: View) -> Sequence[Decision]:
        return (Start(self.options.atoms, "a person asked for it"),)

    def on_capacity(self, view: View) -> Sequence[Decision]:
        if view.can_draw and view.atoms_free >= view.rules.fit(self.options.atoms):
            return (Start(self.options.atoms, "next in line"),)
        return base.NOTHING
