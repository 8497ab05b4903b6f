"""Consequences of an incarnation's end: where its trial goes, whose fault the end was, and which devices stay with it.
Whether the search is over with it, which nobody asked for, stands at the end.

What the machine did to a trial is made good by a relaunch. A script's error may be that of a network disk, or of NCCL:
the trial continues from its checkpoint, and has failed if an error comes before it has a newer one. What was told to
die was killed, whatever it says with its last breath: a script may catch SIGTERM and exit as if it were done.
"""

from __future__ import annotations

from gpusched.core.events import TrialExited
from gpusched.core.state import NOTHING_LEFT, TOO_LATE, State
from gpusched.core.trial import NEVER, After, Cap, TrialRecord, TrialState
from gpusched.protocol import OUT_OF_GPU_MEMORY
from gpusched.text import first_line

S = TrialState

#: A trial continues after so many errors of its script: one that comes in each launch, a step or two on, is its own.
MOST_RETRIES = 3
#: A trial that trains and has reported so often without a finite metric counts as one that has failed.
SENSELESS_REPORTS = 3

NO_REPORT = (
    "the script ended without a report: it must call trial = gpusched.init(), and trial.report(..) once "
    "an epoch"
)
_CAUSES = {"yielded": "left on its own", "killed": "was killed", "lost": "its processes vanished"}


def after_exit(state: State, trial: TrialRecord, event: TrialExited) -> After:
    """Return where a trial goes now that nothing of its incarnation is left."""
    after = _go_back(state, trial, event) or _retry(state, trial, event) or _planned(trial, event)
    return after or _relaunch(state, trial, event)


def _go_back(state: State, trial: TrialRecord, event: TrialExited) -> After | None:
    """Return a trial that ended on more atoms than it has trained on, before a report from there, to those.

    Out of memory too: where it ran on fewer atoms, those are enough. So is /dev/shm, which may have no room for nccl. A
    script whose batch the number of ranks must divide fails on 3 atoms, and on the 7 that a loss has left; where the
    recipe names no sizes, a power of two may do.
    """
    before, atoms, told = trial.trained_atoms, trial.atoms, trial.after
    error = ""
    if trial.doom is None and event.outcome in ("failed", "lost") and not event.unbegun:
        error = event.error or event.outcome
    elif trial.doom is not None and trial.doom.hung:
        error = trial.doom.why
    if not error or (told is not None and not told.is_resize):
        return None
    is_odd = event.outcome == "failed" and not state.rules.sizes and bool(atoms & (atoms - 1))
    if trial.steps_since_launch or not (0 < before < atoms or (is_odd and atoms < before)):
        return None
    state.powers_alone |= is_odd
    fewer = state.fit(trial, min(before, atoms))
    rest = "has powers of two from now on" if is_odd else "grows no more"
    why = f"failed on {trial.size_in_words}, goes back to {fewer} and {rest}: {error}"
    if not is_odd:
        trial.cap = Cap(fewer, why)
    trial.decided_at = state.now
    return After(S.STARTING, why, fewer)


def _retry(state: State, trial: TrialRecord, event: TrialExited) -> After | None:
    """Return a trial whose script failed to its newest checkpoint, which must be newer than its last such failure.

    A trial that is to pause does so. The same configuration would need as much memory of its GPU again.
    """
    error, told, retries = event.error or "failed", trial.after, trial.retries
    if event.outcome != "failed" or trial.doom or error.startswith(OUT_OF_GPU_MEMORY):
        return None
    is_new = trial.saved_step > max(retries, default=0) and len(retries) < MOST_RETRIES
    if not is_new or (told is not None and told.state.is_final):
        return None
    after = _again(state, trial, f"failed at step {trial.step}: {first_line(error)}")
    retries[trial.furthest_step] = after.reason
    return after


def _planned(trial: TrialRecord, event: TrialExited) -> After | None:
    """Return what follows an exit that is the trial's own doing or was wanted; None: it is to be relaunched."""
    told = trial.after
    told_to_end = told if told is not None and told.state.is_final else None
    match "killed" if trial.doom else event.outcome:
        case "finished" if trial.step > 0:
            return After(S.COMPLETED, f"finished at step {trial.step}")
        case "finished":
            return told_to_end or After(S.FAILED, event.error or NO_REPORT)
        case "failed":
            error, before = event.error or "failed", trial.error or ""
            if before and not trial.steps_since_launch and first_line(error) not in before:
                error = f"{before.partition(': ')[2]}, where it fails before a report: {error}"
            return told_to_end or After(S.FAILED, error)
        case "yielded":
            return told
        case _:
            return None if told is None or told.is_resize else told


def _relaunch(state: State, trial: TrialRecord, event: TrialExited) -> After:
    """Count a fault of the machine; the trial continues from its checkpoint, a few times without progress."""
    if not event.unbegun:
        trial.infrastructure_faults += 1
    why = trial.doom.why if trial.doom else ""
    cause = why or first_line(event.error or "") or _CAUSES[event.outcome]
    if trial.doom and trial.doom.hung and event.error:
        cause = f"{cause}: {event.error}"
    if (faults := trial.infrastructure_faults) > state.rules.max_infrastructure_faults:
        return After(S.FAILED, f"{cause}; {faults} times without progress")
    return _again(state, trial, cause)


def _again(state: State, trial: TrialRecord, cause: str) -> After:
    """Have a trial continue from its newest checkpoint, at once if there is room for the next."""
    told, why = trial.after, f"{cause}; continues from step {trial.saved_step}"
    if told is not None and not told.is_resize:
        return After(told.state, why)
    if state.storage_low:
        state.want(trial)
        return After(S.PAUSED, f"{cause}; continues when there is room on the disk")
    trial.decided_at = state.now
    return After(S.STARTING, why, trial.atoms if told is None else told.atoms)


# ---------------------------------------------------------------- how many atoms


def within_room(state: State, trial: TrialRecord | None, atoms: int) -> int:
    """Return the size that fits now, 0: none. Less than was asked for where no island has room for that."""
    atoms, room = state.fit(trial, atoms), state.devices.room()
    if atoms > room and state.rules.islands_apart and atoms <= state.atoms_free:
        atoms = state.fit(trial, room)
    return atoms if atoms <= room else 0


def _size_within(state: State, trial: TrialRecord, atoms: int) -> int:
    """Return the largest size of at most ``atoms`` that a trial may have; 0: none."""
    size = state.fit(trial, atoms)
    return 0 if size > atoms else size


# ---------------------------------------------------------------- which devices
#
# Devices reserved for a resize have not been used: they are clean, and stay with the trial or are free at once.


def drain(state: State, trial: TrialRecord, keep: int) -> tuple[str, ...]:
    """Let the devices of an incarnation that is gone drain, and return them.

    ``keep`` atoms come back to the trial when they are released, those reserved first. Where devices were lost: the
    largest allowed size that is left, or nothing.
    """
    devices, used, reserved = state.devices, trial.devices, trial.reserved
    if keep:
        keep = _size_within(state, trial, min(keep, len(used) + len(reserved)))
    clean = reserved[:keep]
    kept = used[: keep - len(clean)]
    devices.drain(kept, trial.id)
    devices.drain(used[len(kept) :], None)
    devices.give_back(reserved[len(clean) :])
    trial.devices = kept + clean
    return used


def settle_for_less(state: State, trial: TrialRecord) -> None:
    """Keep an allowed size of what a waiting trial has left after losing a device; give back the rest."""
    atoms = _size_within(state, trial, len(trial.devices))
    state.devices.give_back(trial.devices[atoms:])
    trial.devices = trial.devices[:atoms]


# ---------------------------------------------------------------- whether the search is over


def why_hopeless(state: State) -> str:
    """Return why a search is given up of which no trial trains; empty while one may yet."""
    if any(trial.best_score > NEVER for trial in state.trials.values()):
        return "" if any(trial.curve for trial in state.live.values()) else state.why_all_fail
    reported = sum(
        len(trial.curve) >= SENSELESS_REPORTS or not trial.is_live
        for trial in state.trials.values()
        if trial.curve and trial.state is not TrialState.FAILED
    )
    failed = state.failures + reported
    # Several GPUs begin with as many configurations, of which some may be too large: the others may yet report.
    hopes = (t.up_at is not None and len(t.curve) < SENSELESS_REPORTS for t in state.live.values())
    if failed < max(state.rules.max_failures, 2 * sum(hopes)):
        return ""
    if reported:
        return f"no finite metric after {failed} trials: NaN or infinite in every report"
    return f"the first {failed} trials failed"


def why_over(state: State) -> str:
    """Return why a search without a live trial is over; empty where something can bring one back."""
    if state.may_go_on:
        return ""
    is_left = bool(state.can_draw or state.paused) and state.is_too_late
    is_cut = any(trial.cut_atoms is not None for trial in state.trials.values())
    return TOO_LATE if is_left or is_cut else NOTHING_LEFT
