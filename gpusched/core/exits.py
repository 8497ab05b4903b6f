"""Where a trial goes when nothing of its incarnation is left.

Three things decide: what it was told (``Trial.after``), how it ended (``TrialExited.outcome``), and whether the
experiment is stopping. Whose fault it was matters: a script that fails has failed; what the machine did to a trial is
made good by a relaunch from its last checkpoint, a few times without progress in between.

What was told to die was killed, whatever it says with its last breath: a script may catch SIGTERM and exit as if it
were done, or fail because its device was lost.
"""

from __future__ import annotations

from gpusched.core.events import TrialExited
from gpusched.core.state import State
from gpusched.core.trial import After, Trial, TrialState

S = TrialState

NO_REPORT = (
    "the script ended without a report: it must call trial = gpusched.init(), and trial.report(..) once "
    "an epoch"
)


def after_exit(state: State, trial: Trial, event: TrialExited) -> After:
    """What follows. For a relaunch ``atoms`` is what it should have; there may be fewer left."""
    told_to_end = _told_to_end(state, trial)
    match "killed" if trial.is_doomed else event.outcome:
        case "finished" if trial.step > 0:
            return After(S.COMPLETED, f"finished at step {trial.step}")
        case "finished":
            why = event.error or NO_REPORT
            return told_to_end or After(S.FAILED, why)
        case "failed":
            return told_to_end or After(S.FAILED, event.error or "failed")
        case "yielded" if trial.after is not None:
            return trial.after
        case "yielded" | "killed" | "lost":
            if trial.after is not None and not trial.after.is_resize:
                return trial.after
            return told_to_end or _relaunch(state, trial, event)


def _told_to_end(state: State, trial: Trial) -> After | None:
    """It was to end for good anyway: how it did so is of no interest."""
    if trial.after is not None and trial.after.state.is_final:
        return trial.after
    return After(S.STOPPED, state.stopping) if state.stopping else None


def _relaunch(state: State, trial: Trial, event: TrialExited) -> After:
    if not event.unbegun:
        trial.infrastructure_faults += 1
    cause = trial.killed_because or event.error or _WORDS[event.outcome]
    if trial.hung and event.error:
        cause = f"{cause}: {event.error}"
    if trial.infrastructure_faults > state.rules.max_infrastructure_faults:
        return After(S.FAILED, f"{cause}; {trial.infrastructure_faults} times without progress")
    trial.decided_at = state.now
    atoms = trial.after.atoms if trial.after is not None else trial.atoms
    return After(S.STARTING, f"{cause}; goes on from step {trial.saved_step}", atoms)


_WORDS = {
    "yielded": "left on its own",
    "finished": "ended when it was killed",
    "failed": "failed when it was killed",
    "killed": "was killed",
    "lost": "its processes vanished",
}
