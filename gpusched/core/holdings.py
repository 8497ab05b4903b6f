"""Devices that a trial holds: how many it may have, and which stay its own through an exit, a loss, a resize.

Devices reserved for a resize have not been used: they are clean, and stay with the trial or are free at once.
"""

from __future__ import annotations

from gpusched.core.allocation import DeviceState
from gpusched.core.state import State
from gpusched.core.trial import TrialRecord

# ---------------------------------------------------------------- how many


def fit(state: State, trial: TrialRecord, atoms: int) -> int:
    """Return the largest size of at most ``atoms`` on which this trial has not failed."""
    most = trial.most_atoms
    return state.rules.fit(atoms if most is None else min(atoms, most))


def within_room(state: State, atoms: int) -> int:
    """Return the allowed size that fits now, 0: none. Less than was asked for where no island has room for that."""
    room = state.room()
    if atoms > room and state.rules.islands_apart and atoms <= state.atoms_free:
        atoms = state.rules.fit(room)
    return atoms if atoms <= room else 0


def _size_within(state: State, atoms: int) -> int:
    """Return the largest allowed size of at most ``atoms``; 0: none."""
    size = state.rules.fit(atoms)
    return 0 if size > atoms else size


# ---------------------------------------------------------------- which


def _kept(state: State, trial: TrialRecord, keep: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what a trial keeps of the devices it used and of those reserved, to go on with ``keep`` atoms.

    Where devices were lost: the largest allowed size that is left, or nothing.
    """
    used, reserved = trial.devices, trial.reserved
    if keep:
        keep = _size_within(state, min(keep, len(used) + len(reserved)))
    clean = reserved[:keep]
    return used[: keep - len(clean)], clean


def drain(state: State, trial: TrialRecord, keep: int) -> tuple[str, ...]:
    """Let the devices of an incarnation that is gone drain, and return them.

    ``keep`` atoms come back to the trial when they are released.
    """
    devices, used = state.devices, trial.devices
    kept, clean = _kept(state, trial, keep)
    devices.drain(kept, trial.id)
    devices.drain(used[len(kept) :], None)
    devices.give_back(trial.reserved[len(clean) :])
    trial.devices, trial.reserved = kept + clean, ()
    return used


def settle_for_less(state: State, trial: TrialRecord) -> None:
    """Keep an allowed size of what a waiting trial has left after losing a device; give back the rest."""
    slots = state.devices.slots
    atoms = _size_within(state, len(trial.devices))
    # Clean devices first: the trial need not wait for the others then.
    by_readiness = sorted(trial.devices, key=lambda name: slots[name].state is DeviceState.DRAINING)
    keep = by_readiness[:atoms]
    state.devices.give_back([name for name in trial.devices if name not in keep])
    trial.devices = tuple(keep)
