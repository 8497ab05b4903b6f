"""``fifo``: configurations in order, one after the other on each atom, each trained to R (HyperDrive's "Default").

The yardstick: no trial is ever paused or resized, and the deadline is not looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from gpusched.core.decisions import Decision, Start, TrialView, View
from gpusched.policies import base


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(base.Options):
    """``R`` steps a trial."""

    R: int | None = 81


class Fifo(base.Policy):
    """First in, first out."""

    name = "fifo"
    options_type: ClassVar[type[base.Options]] = Options
    options: base.Options

    def on_report(self, view: View, trial: TrialView) -> Sequence[Decision]:
        return base.complete_at(trial, self.options.R)

    def on_capacity(self, view: View) -> Sequence[Decision]:
        if view.can_draw and view.atoms_free >= view.rules.smallest:
            return (Start(1, "next in line"),)
        return base.NOTHING
