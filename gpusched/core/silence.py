"""Trials that are silent for too long: the watch, and how long a launch, a step or a save may take.

A trial that reports no step may hang in a collective, a loader or a file system, which nothing else tells.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpusched.core.state import WATCH, State
from gpusched.core.trial import TrialRecord

#: Period at which silent trials are looked for (reliability F13).
WATCH_EVERY_S = 10.0

#: So many of the longest times between two reports may pass in silence, and at least this share of the deadline within
#: these bounds: a rare evaluation is no hang, and a short search has no time for one.
STEPS_SILENT = 5
SILENT_SHARE, LEAST_SILENT_S, MOST_SILENT_S = 1 / 20, 60.0, 600.0
#: While nobody knows what a step takes, a first report may take an eighth of the deadline, or half of it up to so long:
#: to end trials whose steps take so long would be to end all.
UNKNOWN_S = 7200.0
#: A configuration that has not reported may have so many times as long steps as others.
LARGER = 4


def watch(state: State) -> None:
    """Have the timer of the watch fire, if silent trials are looked for in this search."""
    if state.rules.watch:
        state.timers[WATCH] = state.now + WATCH_EVERY_S


def leave_out(state: State, since: float) -> None:
    """Leave out of what is measured the time in which no trial could be heard, nor perhaps train."""
    for trial in state.live.values():
        trial.heard_at = state.now
        trial.decided_at = None
        if trial.up_at is not None:
            trial.up_at = min(state.now, trial.up_at + max(0.0, state.now - since))


def silent(state: State, due: float) -> Iterator[tuple[TrialRecord, str]]:
    """Yield trials that have not reported for too long, each with the reason; the timer was due at ``due``."""
    if state.now - due > WATCH_EVERY_S:
        leave_out(state, due)  # the machine, or the daemon, was suspended
    for trial in state.live.values():
        if not trial.has_processes or trial.doom:
            continue
        silent_s, limit_s = state.now - trial.heard_at, _limit_s(state, trial)
        if trial.step and not state.rules.hang_limit_s:
            # Killed at one step in each launch, it may evaluate there, and not hang.
            limit_s *= 2**trial.infrastructure_faults
        if silent_s > limit_s:
            why = f"no report for {silent_s:.0f} s (limit {limit_s:.0f} s; hang_limit in the recipe allows more)"
            yield trial, why


def _limit_s(state: State, trial: TrialRecord) -> float:
    """Return how long a trial may be silent: now and then it evaluates, or saves, for longer."""
    rules = state.rules
    if not trial.steps_since_launch:
        return _startup_limit_s(state, trial)
    if rules.hang_limit_s:
        return rules.hang_limit_s
    least_s = min(MOST_SILENT_S, max(LEAST_SILENT_S, rules.deadline_s * SILENT_SHARE))
    usual_s = max((trial.report_s, *trial.intervals_s))
    return max(least_s, STEPS_SILENT * usual_s) + 2 * max(trial.save_s, state.longest_save_s)


def _startup_limit_s(state: State, trial: TrialRecord) -> float:
    """Return how long a launch may take to its first report: a step may be an epoch of hours."""
    rules = state.rules
    first_s = rules.hang_limit_s or max(rules.deadline_s / 8, min(rules.deadline_s / 2, UNKNOWN_S))
    # A trial that has not reported will do so every so many steps, as the others.
    stride = max(other.stride for other in state.trials.values())
    steps = STEPS_SILENT * stride / state.speedup(max(1, trial.atoms))
    if (step_s := state.step_s(trial)) is not None:
        most_s = 0.0 if trial.step_time_s is not None else min(LARGER * steps * step_s, first_s)
        first_s = max(steps * step_s, most_s)
    return max(rules.startup_limit_s, rules.hang_limit_s or 0.0, first_s)
