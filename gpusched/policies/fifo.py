"""``fifo``: configurations in order, one after the other on an atom, each trained to its end (HyperDrive's "Default").

The yardstick: no trial is ever paused or resized, and the deadline is not looked at.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpusched.core.decisions import Decision, Start, TrialView, View
from gpusched.policies import base


class Fifo(base.Policy):
    """First in, first out."""

    options: base.Options

    def on_report(self, view: View, trial: TrialView) -> Sequence[Decision]:
        return base.complete_at(trial, self.options.R)

    def on_capacity(self, view: View) -> Sequence[Decision]:
        if view.can_draw:
            return (Start(1, "next in line"),)
        return base.NOTHING
