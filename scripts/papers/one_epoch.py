"""The baseline of arXiv 2307.15422 as a policy: everything one step, then the best to the end, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpusched.policies import (
    Complete,
    Decision,
    Options,
    Pause,
    Policy,
    Resume,
    Start,
    TrialView,
    View,
    base,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OneEpochOptions(Options):
    """``configurations``: how many are looked at."""

    configurations: int = 64


class OneEpoch(Policy):
    """Everything one step, then the best to the end (arXiv 2307.15422)."""

    options_type = OneEpochOptions

    def on_report(self, view: View, trial: TrialView) -> Sequence[Decision]:
        if trial.step == 1:
            return [Pause(trial.id, "one step")]
        done = self.options.R is not None and trial.step >= self.options.R
        return [Complete(trial.id, "complete")] if done else base.NOTHING

    def _explores(self, view: View) -> bool:
        return view.can_draw and len(view.trials) < self.options.configurations

    def on_capacity(self, view: View) -> Sequence[Decision]:
        if self._explores(view):
            return [Start(1, "its first step")]
        best = next(iter(view.paused_by_score()), None)
        return base.NOTHING if best is None else [Resume(best.id, 1, "among the best at step 1")]
