"""Wishes of people: to stop, pause, try, give more time, or go on after the end."""

from __future__ import annotations

from dataclasses import replace

from gpusched.core.events import DeadlineMoved, Reopened, Tried, UserAsked
from gpusched.core.state import DEADLINE, LAST_CALL, WAKE, State
from gpusched.core.transitions import STOPPED_BY_USER, Transitions
from gpusched.core.trial import After, TrialRecord, TrialState
from gpusched.text import show_duration, show_hparams

S = TrialState


def asked(state: State, do: Transitions, event: UserAsked) -> None:
    """Stop the search or a trial, or pause one; a wish that no longer fits is dropped."""
    trial = state.trials.get(event.trial) if event.trial is not None else None
    match event.verb:
        case "stop":
            do.end(STOPPED_BY_USER)
        case "cancel" | "kill":
            do.end("cancelled by the user")
            grace_s = 0.0 if event.verb == "kill" else None
            for live in state.live.values():
                do.kill(live, grace_s=grace_s)
        case "pause" if trial is not None and not trial.is_final:
            trial.held_by_user = True
            state.unwant(trial)
            do.leave(trial.id, After(S.PAUSED, "paused by the user"))
        case "unpause" if trial is not None:
            trial.held_by_user = False
            goes_to = trial.after.state if trial.after is not None else trial.state
            if goes_to is S.PAUSED:
                state.want(trial)
        case "stop_trial" if trial is not None and not trial.is_final:
            do.leave(trial.id, After(S.STOPPED, "stopped by the user"))
        case _:
            pass


def tried(state: State, event: Tried) -> None:
    """Queue a configuration."""
    if state.stopping is None:
        state.configurations.given.append((event.hparams, event.seed))
        state.say(None, f"asked to try {show_hparams(event.hparams)}")


def move_deadline(state: State, do: Transitions, event: DeadlineMoved) -> None:
    """Move the deadline of a search that is not ending; not before now."""
    if state.stopping is not None:
        return
    before_s, to_s = state.rules.deadline_s, max(event.deadline_s, state.now)
    state.rules = replace(state.rules, deadline_s=to_s)
    by_s, how = abs(to_s - before_s), "later" if to_s > before_s else "earlier"
    state.say(None, f"the deadline is {show_duration(by_s)} {how}")
    do.set_timer(DEADLINE, to_s)


def reopen(state: State, do: Transitions, event: Reopened) -> bool:
    """Go on after the end, or before it with other limits; tell whether it was over.

    Trials that only the end stopped are paused again.
    """
    was_over = state.finished
    if state.stopping is not None and not was_over:
        return False  # trials are leaving still
    state.rules = replace(
        state.rules,
        deadline_s=max(event.deadline_s, state.now),
        target=event.target,
        max_trials=event.max_trials,
    )
    if was_over:
        state.stopping, state.finished = None, False
        state.watched_since, state.failures = state.now, 0
    state.say(None, f"the search goes on; {show_duration(state.time_left_s)} left")
    do.set_timer(DEADLINE, state.rules.deadline_s)
    if not was_over:
        return False
    state.timers.pop(LAST_CALL, None)
    if state.missed_wake_at is not None:
        do.set_timer(WAKE, state.missed_wake_at)
        state.missed_wake_at = None
    if state.rules.watch:
        do.watch()
    untold, state.untold = state.untold, {}
    for trial in list(state.trials.values()):
        step = event.checkpoints.get(str(trial.id), 0)
        if trial.cut_atoms is not None and (step or not trial.seq):
            _pause_again(state, trial, step)
            continue
        trial.cut_atoms = None
        if trial.id in untold:
            state.rested.append(trial)
    return True


def _pause_again(state: State, trial: TrialRecord, step: int) -> None:
    """Pause a trial again that the end of the search stopped; it goes on from step ``step`` (0: it had none)."""
    was_training = bool(trial.cut_atoms)
    trial.saved_step = step
    where = f"its checkpoint is of step {step}" if step else "it had not begun to train"
    state.move(trial, S.PAUSED, f"the search goes on; {where}")
    if was_training and not trial.held_by_user:
        state.want(trial)
    else:
        trial.cut_atoms = None
