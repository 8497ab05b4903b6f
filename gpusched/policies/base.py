"""Parts that several policies share: the options of halving, the end at R steps, a rank in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

from gpusched.core.decisions import (
    NOTHING,
    BadOption,
    Complete,
    Decision,
    Options,
    Policy,
    TrialView,
    View,
)

__all__ = ["NOTHING", "BadOption", "HalvingOptions", "Options", "Policy", "TrialView", "View"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HalvingOptions(Options):
    """``r`` steps to the first rung, a factor ``eta`` between rungs, ``R`` steps at most."""

    r: int = 1
    R: int | None = 81
    eta: float = 4.0

    def problems(self) -> Iterator[BadOption]:
        yield from Options.problems(self)
        if self.r < 1:
            yield "r", f"must be at least 1 step, not {self.r}"
        usual = type(self).__dataclass_fields__["r"].default
        if self.R is not None and self.r > self.R >= 1 and self.r != usual:
            yield (
                "r",
                f"the first rung at {self.r} steps lies beyond R = {self.R}; lower r or raise R",
            )
        if not self.eta > 1:
            yield "eta", f"must be more than 1, not {self.eta:g}; 4 is the usual choice"


def complete_at(trial: TrialView, R: int | None) -> Sequence[Decision]:
    """Complete a trial that has had R steps (Algorithms 2, line 5, and 3, line 12)."""
    if R is not None and trial.step >= R:
        return (Complete(trial.id, f"complete: {trial.step} of {R} steps"),)
    return NOTHING


def note_on_steps(options: object, view: View) -> Iterator[str]:
    """Yield a remark where R was left at its default although the script counts steps of its own, such as iterations.

    ``options``: of a user's policy anything.
    """
    if not isinstance(options, Options):
        return
    usual = {field.name: field.default for field in fields(options)}.get("R")
    stride = max((trial.stride for trial in view.trials.values()), default=1)
    if usual is not None and usual == options.R and stride > 1:
        yield (
            f"trials report every {stride} steps, and are complete at step {options.R}: where that is too early, set "
            "policy.R (and r) in the script's steps"
        )
