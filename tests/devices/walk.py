"""A policy that sends one trial through sizes, with pauses: by its seed, or 1, 2, 1, 2, .. without one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from gpusched.core.decisions import Decision, TrialView, View
from gpusched.policies import Complete, Options, Pause, Policy, Resize, Resume, Start


@dataclass(frozen=True, kw_only=True)
class WalkOptions(Options):
    """``most``: the largest size; ``seed`` 0: sizes 1 and 2 take turns, two steps each."""

    most: int = 2
    seed: int = 0


class Walk(Policy):
    options_type = WalkOptions

    def on_report(self, view: View, trial: TrialView) -> Sequence[Decision]:
        if trial.step >= self.options.R:
            return [Complete(trial.id, "it has walked")]
        if not self.options.seed:
            return [Resize(trial.id, 3 - trial.atoms)] if trial.step % 2 == 0 else []
        chance = Random(f"{self.options.seed}/{trial.step}/{trial.incarnation}")
        if chance.random() < 0.4:
            return [Resize(trial.id, chance.randint(1, self.options.most))]
        return [Pause(trial.id)] if chance.random() < 0.2 else []

    def on_capacity(self, view: View) -> Sequence[Decision]:
        for trial in view.paused.values():
            return [Resume(trial.id, 1, "next step")]
        return [Start(1, "the first")] if view.can_draw else []
