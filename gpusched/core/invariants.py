"""Invariants of a search, as code.

``check`` looks at everything, after every event of the tests; ``check_trial`` at the trial that an event was about,
which the daemon affords after every report. An AssertionError names what is broken; it is never caught and never
repaired, since what else is wrong is unknown then.
"""

from __future__ import annotations

from gpusched.core.allocation import HELD, DeviceState
from gpusched.core.state import State
from gpusched.core.trial import NEVER, YIELDING, TrialRecord, TrialState

S = TrialState


def check(state: State) -> None:
    """Assert every invariant of a search between two events."""
    for trial in state.trials.values():
        check_trial(state, trial)
    _check_devices(state)
    _check_indices(state)
    assert not state.rested, "the policy was not told of a trial that came to rest"
    if state.finished:
        assert not state.live, "finished with live trials"
        assert not state.paused, "finished with trials that may continue"
        assert state.stopping is not None, "finished without a reason"
    if state.best is not None:
        assert NEVER < state.best.score <= state.trials[state.best.trial].best_score, "best score"


def check_trial(state: State, trial: TrialRecord) -> None:
    """Assert what concerns one trial: its devices are its own, clean if it runs on them, and of an allowed number."""
    after, has_processes = trial.after, trial.incarnation > trial.gone
    assert (after is not None) == (trial.state is YIELDING), f"{_who(trial)}: after={after}"
    assert trial.score >= NEVER, f"{_who(trial)} has the score NaN"
    assert trial.gone <= trial.incarnation, f"{_who(trial)}: more incarnations gone than launched"
    slots, its = state.devices.slots, trial.devices
    if after is not None:
        its += after.reserved
    for name in its:
        slot = slots[name]
        mine = trial.id in (slot.trial, slot.awaited_by)
        assert mine, f"{name} is not the device of {_who(trial)}"
        if has_processes:
            assert slot.state is HELD, f"{_who(trial)} runs on unclean {name}"
    if state.rules.islands_apart:
        islands = {slots[name].island for name in its}
        assert len(islands) < 2, f"{_who(trial)} is on {len(islands)} islands"
    if has_processes:
        assert trial.state.is_live, f"{_who(trial)} has processes"
        atoms = len(trial.devices)
        is_allowed = atoms > 0 and state.rules.fit(atoms) == atoms
        assert trial.doom or is_allowed, f"{_who(trial)} runs on {its}, not an allowed size"
        return
    assert trial.up_at is None, f"{_who(trial)} trains without processes"
    assert not trial.doom, f"{_who(trial)} is to die and has no processes"
    if trial.state.is_live:
        assert trial.state is S.STARTING, f"{_who(trial)} has no processes"
        waits = any(slots[name].state is DeviceState.DRAINING for name in its)
        assert waits, f"{_who(trial)} has no processes and waits for nothing"
    else:
        assert not its, f"{_who(trial)} holds devices"


def _who(trial: TrialRecord) -> str:
    return f"trial {trial.id} ({trial.state.value})"


def _check_devices(state: State) -> None:
    """Assert that a device is in at most one allocation, and held + free + draining + quarantined = all."""
    devices, trials = state.devices, state.trials
    given = [name for trial in trials.values() for name in (*trial.devices, *trial.reserved)]
    assert len(given) == len(set(given)), "a device in two allocations"
    for name, slot in devices.slots.items():
        if slot.state is DeviceState.HELD:
            assert slot.trial in trials, f"{name} is held by nobody"
            assert name in given, f"{name} is held and nobody's"
        elif slot.awaited_by is not None:
            assert slot.state is DeviceState.DRAINING, f"{name} is {slot.state.value} and awaited"
            assert name in trials[slot.awaited_by].devices, f"{name} is awaited by nobody"
        else:
            assert name not in given, f"{name} is {slot.state.value} and somebody's"
        if slot.state is DeviceState.QUARANTINED:
            assert slot.reason, f"{name} is quarantined without a reason"
    for kind, names in devices.by_state.items():
        found = {name for name, slot in devices.slots.items() if slot.state is kind}
        assert names == found, f"the set of {kind.value} devices is wrong"


def _check_indices(state: State) -> None:
    trials = state.trials
    live = {trial.id for trial in trials.values() if trial.is_live}
    paused = {trial.id for trial in trials.values() if trial.state is S.PAUSED}
    assert set(state.live) == live, "live index"
    assert set(state.paused) == paused, "paused index"
    longest_s = max((trial.training_s(state.now) for trial in trials.values()), default=0.0)
    assert abs(state.longest_training_s - longest_s) < 1e-6 * max(1.0, longest_s), (
        "longest training"
    )
    for wanted in state.wanted:
        trial = trials[wanted]
        goes_to = trial.after.state if trial.after is not None else trial.state
        assert goes_to is S.PAUSED, f"trial {wanted} is wanted and not paused"
        assert not trial.held_by_user, f"trial {wanted} is wanted and held by the user"
