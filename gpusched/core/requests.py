"""Wishes of people: to stop, pause, try, give more time, or continue after the end."""

from __future__ import annotations

from dataclasses import replace

from msgspec import UNSET

from gpusched.core import silence
from gpusched.core.events import LimitsMoved, UserAsked
from gpusched.core.state import DEADLINE, LAST_CALL, State
from gpusched.core.transitions import STOPPED, Transitions
from gpusched.core.trial import After, TrialRecord, TrialState
from gpusched.text import show_hparams

S = TrialState


def asked(state: State, do: Transitions, event: UserAsked) -> None:
    """Stop the search or a trial, pause one, or queue a configuration; a wish that no longer fits is dropped."""
    trial = state.trials.get(event.trial) if event.trial is not None else None
    match event.verb:
        case "stop":
            do.end(f"{STOPPED}{event.by}")
        case "cancel" | "kill":
            do.end(f"cancelled by {event.by}")
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
        case "try" if state.stopping is None:
            state.configurations.given.append(event.hparams)
            state.said.append(f"asked to try {show_hparams(event.hparams)}")
        case _:
            pass


def move_limits(state: State, do: Transitions, event: LimitsMoved) -> bool:
    """Set other limits, or continue a search that is over; tell whether it was. A search that is ending ends first.

    Trials that only the end stopped are paused again; so are those that left as no step more would have ended in time.
    """
    was_over = state.finished
    if state.stopping is not None and not was_over:
        return False
    rules, to_s = state.rules, max(event.deadline_s, state.now)
    state.rules = replace(
        rules,
        deadline_s=to_s,
        target=rules.target if event.target is UNSET else event.target,
        max_trials=rules.max_trials if event.max_trials is UNSET else event.max_trials,
    )
    state.timers[DEADLINE] = to_s
    if not was_over:
        for trial in state.trials.values() if to_s > rules.deadline_s else ():
            if trial.cut_atoms is not None and trial.state is not S.PAUSED:
                _pause_again(state, trial, trial.saved_step)
        return False
    state.stopping, state.finished = None, False
    state.failures = 0
    state.last_errors.clear()
    state.timers.pop(LAST_CALL, None)
    silence.watch(state)
    untold, state.untold = state.untold, {}
    for trial in list(state.trials.values()):
        step = (event.checkpoints or {}).get(str(trial.id), 0)
        if trial.cut_atoms is not None and (step or not trial.saved_step):
            _pause_again(state, trial, step)
            continue
        trial.cut_atoms = None
        if trial.id in untold:
            state.rested.append(trial)
    return True


def _pause_again(state: State, trial: TrialRecord, step: int) -> None:
    """Pause a trial that has left, or leaves, with the search or for want of time; from step ``step`` (0: anew)."""
    trial.saved_step = step
    where = f"its checkpoint is of step {step}" if step else "it had saved nothing and begins again"
    if trial.after is not None:
        trial.after = replace(trial.after, state=S.PAUSED, reason="there is more time")
    else:
        state.move(trial, S.PAUSED, f"the search continues; {where}")
    if trial.cut_atoms and not trial.held_by_user:
        state.want(trial)
    else:
        trial.cut_atoms = None
