"""HyperSched with the switches of its ablations (SoCC'19, section 6.1): a policy of one's own, in a file.

``gpusched simulate --policy scripts/papers/ablations.py:Ablated --set speculation=false``
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpusched.policies import BadOption, Decision, Resize, TrialView, View, base, hypersched

#: The name of the policy, for a ``Setup`` or a recipe.
NAME = f"{__file__}:Ablated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(hypersched.Options):
    """HyperSched's parameters, and what can be switched. The defaults are HyperSched as it is printed."""

    #: Figure 5: off = judged once, on arrival at a rung, against floor(n/eta).
    speculation: bool = True
    #: Figure 7: new trials enter during this share of the deadline instead of by Algorithm 3.
    exploration_fraction: float | None = None
    #: Figure 8: off = every trial keeps one atom.
    resize: bool = True
    #: Figure 9: off = To counts as 0; on = s(a) counts as a.
    overhead_aware: bool = True
    assume_linear: bool = False
    #: gpusched's, beyond the paper: see ``gpusched.policies.hypersched``.
    never_idle: bool = False

    def problems(self) -> Iterator[BadOption]:
        yield from hypersched.Options.problems(self)
        fraction = self.exploration_fraction
        if fraction is not None and not 0 <= fraction <= 1:
            yield "exploration_fraction", f"must be between 0 and 1, not {fraction:g}"


class Ablated(hypersched.HyperSched):
    """HyperSched as printed, but for ties at the worst score of a rung, or without a part of it."""

    options_type = Options
    options: Options

    def _speculates(self, view: View) -> bool:
        return self.options.speculation

    def _may_enter(self, view: View) -> bool:
        fraction = self.options.exploration_fraction
        if fraction is None:
            return super()._may_enter(view)
        return view.now < fraction * view.rules.deadline_s

    def _grow(self, view: View, trial: TrialView) -> Sequence[Resize]:
        return super()._grow(view, trial) if self.options.resize else ()

    def _more_steps(self, view: View, trial: TrialView, atoms: int, in_s: float = 0.0) -> float:
        s = float if self.options.assume_linear else view.speedup
        overhead_s = view.overhead_s if self.options.overhead_aware else 0.0
        left_s, step_s = view.time_left_s - in_s, view.step_s(trial) or 1.0
        return ((left_s - overhead_s) * s(atoms) - left_s * s(trial.atoms)) / step_s

    def _fits(self, view: View, trial: TrialView, atoms: int) -> bool:
        return True

    def _waits_for_more(self, view: View, trial: TrialView, share: int, atoms: int) -> bool:
        return False

    def _wake_the_best(self, view: View) -> Sequence[Decision]:
        return super()._wake_the_best(view) if self.options.never_idle else base.NOTHING
