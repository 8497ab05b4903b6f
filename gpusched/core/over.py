"""Ends of a search that nobody asked for: nothing is left to run, no step fits in the time left, or no trial works."""

from __future__ import annotations

from gpusched.core.decisions import NO_STEP_FITS
from gpusched.core.state import NOTHING_LEFT, TOO_LATE, State
from gpusched.core.trial import TrialState

#: A trial that trains and has reported so often without a finite metric counts as one that has failed.
SENSELESS_REPORTS = 3


def why_hopeless(state: State) -> str:
    """Return why a search is given up of which no trial has reported a finite metric; empty while it may yet."""
    if state.has_finite:
        return ""
    reported = sum(
        len(trial.curve) >= SENSELESS_REPORTS or not trial.is_live
        for trial in state.trials.values()
        if trial.curve and trial.state is not TrialState.FAILED
    )
    failed = state.failures + reported
    if failed < state.rules.max_failures:
        return ""
    if reported:
        return f"no finite metric after {failed} trials: NaN or infinite in every report"
    return f"the first {failed} trials failed"


def why_over(state: State) -> str:
    """Return why a search without a live trial is over; empty where something can bring one back."""
    if state.may_go_on:
        return ""
    return TOO_LATE if _is_too_late(state) else NOTHING_LEFT


def _is_too_late(state: State) -> bool:
    """Tell whether something is left to train of which no step would end before the deadline."""
    step_s = state.speed.step_on_one_atom_s
    is_cut = any(
        trial.story and trial.story[-1][1].endswith(NO_STEP_FITS) for trial in state.trials.values()
    )
    if is_cut or step_s is None:
        return is_cut
    is_left = bool(state.can_draw or state.paused)
    return is_left and state.speed.overhead + step_s > state.time_left_s
