"""The progress watchdog: a trial that has not reported for too long is killed and relaunched (reliability F13)."""

from __future__ import annotations

from gpusched.core import transitions as moves
from gpusched.core.decisions import Command
from gpusched.core.state import State
from gpusched.core.trial import Trial

TIMER = "watch"
EVERY_S = 10.0


def begin(state: State, out: list[Command]) -> None:
    """Look from now on, every ``EVERY_S``."""
    moves.set_timer(state, TIMER, state.now + EVERY_S, out)


def look(state: State, due: float, out: list[Command]) -> None:
    """The timer, which was due at ``due``, has fired."""
    if state.now - due > EVERY_S:
        # Nobody was heard: the machine, or the daemon, was suspended.
        state.watched_since = state.now
    for trial in state.live.values():
        if trial.has_processes and not trial.is_doomed and (why := _silence(state, trial)):
            moves.kill(state, trial, out, why=why, stacks=True)
    begin(state, out)


def _silence(state: State, trial: Trial) -> str:
    """In words, where it has lasted for too long; else empty."""
    rules = state.rules
    if trial.steps_of_incarnation == 0:
        since, limit_s = trial.launched_at, rules.startup_limit_s
    else:
        since = trial.last_report_at or 0.0
        usual_s = max(trial.usual_interval_s, trial.step_time_s or 0.0)
        limit_s = rules.hang_limit_s or max(60.0, 5 * usual_s)
    silent_s = state.now - max(since, state.watched_since)
    return f"no report for {silent_s:.0f} s (limit {limit_s:.0f} s)" if silent_s > limit_s else ""
