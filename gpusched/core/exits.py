"""Consequences of an incarnation's end: where its trial goes, and whose fault the end was.

A script that fails has failed; what the machine did to a trial is made good by a relaunch. What was told to die was
killed, whatever it says with its last breath: a script may catch SIGTERM and exit as if it were done.
"""

from __future__ import annotations

from gpusched.core.events import TrialExited
from gpusched.core.state import State
from gpusched.core.trial import After, TrialRecord, TrialState

S = TrialState

NO_REPORT = (
    "the script ended without a report: it must call trial = gpusched.init(), and trial.report(..) once "
    "an epoch"
)
_CAUSES = {
    "yielded": "left on its own",
    "finished": "ended when it was killed",
    "failed": "failed when it was killed",
    "killed": "was killed",
    "lost": "its processes vanished",
}


def after_exit(state: State, trial: TrialRecord, event: TrialExited) -> After:
    """Return where a trial goes now that nothing of its incarnation is left."""
    return (
        _forgive(state, trial, event)
        or _go_back(state, trial, event)
        or _outgrow(state, trial, event)
        or _planned(state, trial, event)
        or _relaunch(state, trial, event)
    )


def _is_told_to_end(state: State, trial: TrialRecord) -> bool:
    """Tell whether the search is ending, or the trial was to leave for another reason than a resize."""
    return bool(state.stopping) or (trial.after is not None and not trial.after.is_resize)


def _forgive(state: State, trial: TrialRecord, event: TrialExited) -> After | None:
    """Relaunch a trial, once, that ran out of memory beside others on its GPU: the memory may have been theirs."""
    if not event.beside or trial.is_forgiven or trial.doom or _is_told_to_end(state, trial):
        return None
    trial.is_forgiven = True
    return _relaunch(state, trial, event)


def _go_back(state: State, trial: TrialRecord, event: TrialExited) -> After | None:
    """Return a trial that failed on more atoms than it has trained on, before a report from there, to those."""
    fewer = trial.trained_atoms
    failed = event.outcome == "failed" and not trial.doom and not event.barred
    if state.rules.version < 3 or not failed or _is_told_to_end(state, trial):
        return None
    if trial.steps_of_incarnation or not 0 < fewer < trial.atoms:
        return None
    trial.most_atoms, trial.decided_at = fewer, state.now
    trial.least_atoms = min(trial.least_atoms, fewer)  # the trial has trained on so few
    why = f"failed on {trial.size_in_words}, goes back to {fewer} and grows no more: {event.error}"
    return After(S.STARTING, why, fewer)


def _outgrow(state: State, trial: TrialRecord, event: TrialExited) -> After | None:
    """Send a trial that ran out of memory to the next larger size, where its batch is split over more atoms.

    With the free atoms at once if they do; else it gives its own up, and what comes free is kept for it.
    A trial that was to pause does, and has that size when it is resumed.
    """
    if not (event.outgrew and state.rules.splits_batch):
        return None
    pauses = trial.after is not None and trial.after.state is S.PAUSED and not state.stopping
    if trial.doom or (_is_told_to_end(state, trial) and not (pauses and state.rules.version >= 8)):
        return None
    most = min(state.devices.most, trial.most_atoms or state.devices.most)
    larger = state.rules.next_size(trial.atoms, most)
    if larger is None:
        return None
    trial.least_atoms, trial.decided_at = larger, state.now
    first = (event.error or "out of memory").partition("\n")[0]
    why = f"tried again on {larger} atoms, since it needs more than {trial.atoms}: {first}"
    if pauses:
        return After(S.PAUSED, why)
    more = larger - trial.atoms - len(trial.reserved)
    if more > state.room(trial.devices):
        return After(S.STARTING, why)
    if more > 0:
        reserved = state.devices.choose(more, near=trial.devices)
        state.devices.take(reserved, trial.id)
        trial.reserved += reserved
    return After(S.STARTING, why, larger)


def _planned(state: State, trial: TrialRecord, event: TrialExited) -> After | None:
    """Return what follows an exit that is the trial's own doing or was wanted; None: it is to be relaunched."""
    told = trial.after
    is_final = told is not None and told.state.is_final
    told_to_end = told if is_final else After(S.STOPPED, state.stopping) if state.stopping else None
    match "killed" if trial.doom else event.outcome:
        case "finished" if trial.step > 0:
            return After(S.COMPLETED, f"finished at step {trial.step}")
        case "finished":
            return told_to_end or After(S.FAILED, event.error or NO_REPORT)
        case "failed":
            return told_to_end or After(S.FAILED, event.error or "failed")
        case "yielded" if told is not None:
            return told
        case _:
            return told if told is not None and not told.is_resize else told_to_end


def _relaunch(state: State, trial: TrialRecord, event: TrialExited) -> After:
    """Count a fault of the machine; the trial goes on from its checkpoint, a few times without progress."""
    if not event.unbegun:
        trial.infrastructure_faults += 1
    why = trial.doom.why if trial.doom else ""
    first = (event.error or "").partition("\n")[0]
    cause = why or first or _CAUSES[event.outcome]
    if trial.doom and trial.doom.hung and event.error:
        cause = f"{cause}: {event.error}"
    if trial.infrastructure_faults > state.rules.max_infrastructure_faults:
        reason = f"{cause}; {trial.infrastructure_faults} times without progress"
        return After(S.FAILED, reason)
    trial.decided_at = state.now
    atoms = trial.after.atoms if trial.after is not None else trial.atoms
    return After(S.STARTING, f"{cause}; goes on from step {trial.saved_step}", atoms)
