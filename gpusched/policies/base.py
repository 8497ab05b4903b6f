"""Parts that several policies share: options, the end at R steps, and metrics on a scale from 0 to 1."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpusched.core.decisions import (
    NOTHING,
    BadOption,
    Complete,
    Decision,
    Options,
    Policy,
    Stop,
    TrialView,
)
from gpusched.core.exits import SENSELESS_REPORTS
from gpusched.text import show_metric

__all__ = ["NOTHING", "BadOption", "HalvingOptions", "Options", "Policy", "TrialView"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HalvingOptions(Options):
    """``r`` steps to the first rung, a factor ``eta`` between rungs, ``R`` steps at most."""

    #: On curves of real training 2 and 4 halve the regret of 1 (docs/research/decisions.md); 2 serves short ones too.
    r: int = 2
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


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedOptions(Options):
    """``R`` steps at most; ``b`` steps between two judgements of a trial."""

    b: int = 10

    def problems(self) -> Iterator[BadOption]:
        yield from Options.problems(self)
        if self.b < 1:
            yield "b", f"must be at least 1 step, not {self.b}"

    def unjudged(self) -> Sequence[str]:
        """Say so where trials end before they are judged."""
        why = f"no trial is judged: each ends at step {self.R}, the first look is at {self.b}; give a smaller b"
        return () if self.R is None or self.b < self.R else (why,)


def complete_at(trial: TrialView, R: int | None) -> Sequence[Decision]:
    """Complete a trial that has had R steps (Algorithms 2, line 5, and 3, line 12)."""
    if R is not None and trial.step >= R:
        return (Complete(trial.id, f"complete: {trial.step} of {R} steps"),)
    return NOTHING


def ended(trial: TrialView, R: int | None) -> Sequence[Decision]:
    """Complete a trial that has had R steps; stop one that has diverged."""
    latest = trial.curve[-SENSELESS_REPORTS:] if trial.metric is None else ()
    is_lost = len(latest) == SENSELESS_REPORTS and all(y != y for _, y in latest)
    why = f"stops: no finite metric in {SENSELESS_REPORTS} reports"
    return complete_at(trial, R) or ((Stop(trial.id, why),) if is_lost else NOTHING)


# ---------------------------------------------------------------- metrics on a scale
#
# For policies that multiply metrics or predict them: neither makes sense without knowing where the metric can lie. For
# an accuracy the bounds are 0 and 1; for a loss 0 and, say, the loss of a model that has learnt nothing.


#: Reports of a curve that are looked at: the longest scale of the shapes that extrapolate it.
MOST = 4096


class Scale:
    """From scores (more is better, ``sign`` times the metric) to 0 (worst) .. 1 (best); beyond the bounds, the bound.

    Min-max normalisation as in HyperDrive (Middleware'17, 6.3, equation 4).
    """

    def __init__(self, metric_min: float, metric_max: float, sign: float) -> None:
        self._low, self._high, self._sign = metric_min, metric_max, sign

    def of_score(self, score: float) -> float:
        """Return 0..1 for a finite score; 0 for minus infinity (a metric that was not finite)."""
        return self.of_metric(score * self._sign) if score > float("-inf") else 0.0

    def of_metric(self, metric: float) -> float:
        """Return 0..1 for a finite metric."""
        share = (metric - self._low) / (self._high - self._low)
        share = min(1.0, max(0.0, share))
        return share if self._sign > 0 else 1.0 - share

    def metric(self, share: float) -> float:
        """Return the metric at this place of the scale."""
        if self._sign < 0:
            share = 1.0 - share
        return self._low + share * (self._high - self._low)


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundedOptions(JudgedOptions):
    """``R`` and ``b``, and the values that the metric can have."""

    metric_min: float | None = None
    metric_max: float | None = None

    def problems(self) -> Iterator[BadOption]:
        yield from JudgedOptions.problems(self)
        low, high = self.metric_min, self.metric_max
        if low is None and high is None:
            yield (
                "metric_min",
                "this policy needs a bounded metric: give metric_min and metric_max, the values it can have "
                "(0 and 1 for an accuracy)",
            )
        elif low is None or high is None:
            missing = "metric_min" if low is None else "metric_max"
            yield missing, "metric_min and metric_max go together: give both"
        elif not low < high:
            yield "metric_max", f"must be above metric_min = {low:g}, not {high:g}"

    def scale(self, sign: float) -> Scale:
        """Return the scale between the bounds, which have been given."""
        assert self.metric_min is not None
        assert self.metric_max is not None
        return Scale(self.metric_min, self.metric_max, sign)

    def doubts(self, best: float) -> Sequence[str]:
        """Say so where trials cannot be judged, or cannot be told apart: ``best`` is the best metric so far."""
        low, high = self.metric_min or 0.0, self.metric_max or 0.0
        why = f"{show_metric(best)} lies beyond metric_min = {low:g} or metric_max = {high:g}, where all are equal"
        return self.unjudged() or (() if low <= best <= high else (why,))


def curve_of(trial: TrialView, scale: Scale) -> tuple[tuple[float, ...], float]:
    """Return the trial's learning curve on the scale, a value a report that was finite, and the steps it stands for.

    A step that was trained twice counts with its later value. There is one that was finite. Of more than ``MOST`` every
    second counts, or third: it is asked for again and again as the curve grows.
    """
    values = [value for _, value in sorted(dict(trial.curve).items()) if value == value]
    values = values[:: -1 - (len(values) - 1) // MOST][::-1]  # the last counts
    return tuple(map(scale.of_metric, values)), trial.furthest_step / len(values)
