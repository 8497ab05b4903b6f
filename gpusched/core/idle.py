"""Idle atoms: which of them train nobody, since when and why, and how many atom-seconds each reason has cost.

An atom is idle while it is free, is being released, is quarantined, or is held by a trial that is not up yet. A free
atom's reason is the policy's (``LeaveFree``), where no fact about the search comes first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpusched.core import exits
from gpusched.core.allocation import DeviceSlot, DeviceState
from gpusched.core.state import State
from gpusched.core.trial import TrialRecord, TrialState
from gpusched.text import count

STARTING = "a trial is starting"
IMPORTING = "the script's libraries are imported, once for all trials"
RELEASING = "the release is being confirmed"
QUARANTINED = "quarantined"
RESERVED = "reserved for a trial that grows at its next report"


@dataclass(frozen=True, slots=True)
class Idle:
    """Atoms that are idle for one reason. ``since``: seconds since the search began; ``detail``: who, or what."""

    devices: tuple[str, ...]
    since: float
    reason: str
    detail: str = ""


class IdleTime:
    """Atom-seconds by reason, up to the last event, and the reasons that hold now."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.by_reason: dict[str, float] = {}
        #: By reason: the number of atoms, and since when there have been any.
        self.now: dict[str, tuple[int, float]] = {}
        self._counted_to = 0.0

    def count_to(self, at: float) -> None:
        """Count the time since the last event for the reasons that have held."""
        passed_s = at - self._counted_to
        if passed_s > 0.0:
            self._counted_to = at
            for reason, (atoms, _) in self.now.items():
                self.by_reason[reason] = self.by_reason.get(reason, 0.0) + atoms * passed_s

    def recount(self) -> None:
        """Take in the reasons that hold after an event."""
        atoms = _counts(self._state)
        if atoms or self.now:
            self.now = {reason: (n, self._since(reason)) for reason, n in atoms.items()}

    def _since(self, reason: str) -> float:
        return self.now[reason][1] if reason in self.now else self._state.now

    def waited_for_imports(self, trial: TrialRecord, waited_s: float) -> None:
        """Count the part of a launch in which it waited for the warm server for what it was."""
        idle_s = min(trial.atoms * waited_s, self.by_reason.get(STARTING, 0.0))
        if idle_s > 0.0:
            self.by_reason[STARTING] -= idle_s
            self.by_reason[IMPORTING] = self.by_reason.get(IMPORTING, 0.0) + idle_s


def _counts(state: State) -> dict[str, int]:
    """Count the idle atoms by reason."""
    devices = state.devices
    atoms = {}
    if devices.free:
        atoms[why_free(state)] = len(devices.free)
    if devices.draining:
        atoms[RELEASING] = devices.draining
    if devices.quarantined:
        atoms[QUARANTINED] = devices.quarantined
    for trial in state.moving.values():
        if trial.after is not None and (reserved := len(trial.after.reserved)):
            atoms[RESERVED] = atoms.get(RESERVED, 0) + reserved
        if trial.state is TrialState.STARTING and trial.has_processes:
            atoms[STARTING] = atoms.get(STARTING, 0) + trial.atoms
    return atoms


def why_free(state: State) -> str:
    """Return why the free atoms are given to nobody; without figures that change."""
    if state.stopping is not None:
        return "the search is ending"
    if state.storage_low:
        return "the disk has too little room to begin a trial"
    if not state.can_draw and state.awaits_configuration:
        return "the sampler has not answered yet"
    smallest = state.rules.smallest
    if len(state.devices.free) < smallest:
        return f"fewer than {count(smallest, 'atom')}, the smallest size"
    declined = state.declined or "the policy starts and resumes no trial now"
    return f"{declined}; {capped}" if (capped := _why_none_grows(state)) else declined


def _why_none_grows(state: State) -> str:
    """Return why no live trial may have one of the free atoms as well; nothing where one may."""
    capped = "it has the most atoms that the recipe allows"
    for trial in state.live.values():
        room = trial.atoms + state.devices.room(trial.devices)
        if exits.fit(state, trial, room) > trial.atoms:
            return ""
        if trial.cap is not None:
            capped = "it has failed or slowed down on more atoms and grows no more"
    return f"each live trial stays at its size: {capped}" if state.live else ""


# ---------------------------------------------------------------- for people


def idle_now(idle: IdleTime, state: State) -> Iterator[Idle]:
    """Yield the idle atoms, those of one reason and detail together, in the order of the devices."""
    groups: dict[tuple[str, str], list[str]] = {}
    for slot in state.devices.slots.values():
        if (why := _why(state, slot)) is not None:
            groups.setdefault(why, []).append(slot.id)
    for (reason, detail), devices in groups.items():
        _, since = idle.now.get(reason, (0, state.now))
        yield Idle(tuple(devices), since, reason, detail)


def _why(state: State, slot: DeviceSlot) -> tuple[str, str] | None:
    """Return the reason and the detail for which an atom is idle; None: it is not."""
    match slot.state:
        case DeviceState.FREE:
            return why_free(state), _refusal(state)
        case DeviceState.QUARANTINED:
            return QUARANTINED, slot.reason
        case DeviceState.DRAINING:
            return RELEASING, "" if slot.trial is None else f"trial {slot.trial} has left"
        case DeviceState.HELD:
            return _why_held(state, slot)


def _why_held(state: State, slot: DeviceSlot) -> tuple[str, str] | None:
    trial = state.moving.get(-1 if slot.trial is None else slot.trial)
    if trial is not None and slot.id in trial.reserved:
        return RESERVED, f"trial {trial.id}"
    if trial is not None and trial.state is TrialState.STARTING and trial.has_processes:
        return STARTING, f"trial {trial.id}"
    return None


def _refusal(state: State) -> str:
    """Say what happened on more atoms to the first live trial that grows no more."""
    capped = ((trial.id, trial.cap.why) for trial in state.live.values() if trial.cap is not None)
    return next((f"trial {number}: {why}" for number, why in capped), "")
