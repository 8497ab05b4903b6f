"""Idle atoms: which of them train nobody, since when and why, and how many atom-seconds each reason has cost.

An atom is idle while it is free, is being released, is quarantined, or is held by a trial that is not up yet. A free
atom's reason is the policy's (``LeaveFree``), where no fact about the search comes first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from gpusched.core.allocation import DeviceSlot, DeviceState
from gpusched.core.state import State
from gpusched.core.trial import TrialState
from gpusched.text import count

STARTING = "a trial is starting"
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
    """Atom-seconds by reason, up to the last event."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.by_reason: dict[str, float] = {}
        #: Since when each reason has held that held before the last event.
        self.since: dict[str, float] = {}

    def count_to(self, at: float) -> None:
        """Count the time since the last event. Call before the state takes in the next, which comes at ``at``."""
        began, atoms = self._state.now, dict[str, int]()
        for reason, devices in _by_reason(self._state):
            atoms[reason] = atoms.get(reason, 0) + len(devices)
        self.since = {reason: self.since.get(reason, began) for reason in atoms}
        for reason, number in atoms.items():
            self.by_reason[reason] = self.by_reason.get(reason, 0.0) + number * (at - began)


def _by_reason(state: State) -> Iterator[tuple[str, Collection[str]]]:
    """Yield each reason for which atoms are idle, with these atoms."""
    devices = state.devices
    if devices.free:
        yield why_free(state), devices.free
    if devices.draining:
        yield RELEASING, devices.draining
    if devices.quarantined:
        yield QUARANTINED, devices.quarantined
    for trial in state.live.values():
        if trial.after is not None and trial.after.reserved:
            yield RESERVED, trial.after.reserved
        if trial.state is TrialState.STARTING and trial.has_processes:
            yield STARTING, trial.devices


def why_free(state: State) -> str:
    """Return why the free atoms are given to nobody; without figures that change."""
    if state.stopping is not None:
        return "the search is ending"
    if state.storage_low:
        return "the disk has too little room to begin a trial"
    if state.configurations.asked_for is not None and not state.can_draw:
        return "the sampler has not answered yet"
    smallest = state.rules.smallest
    if len(state.devices.free) < smallest:
        return f"fewer than {count(smallest, 'atom')}, the smallest size"
    return state.declined or "the policy starts and resumes no trial now"


# ---------------------------------------------------------------- for people


def idle_now(idle: IdleTime, state: State) -> Iterator[Idle]:
    """Yield the idle atoms, those of one reason and detail together, in the order of the devices."""
    groups: dict[tuple[str, str], list[str]] = {}
    reasons = {name: reason for reason, devices in _by_reason(state) for name in devices}
    for slot in state.devices.slots.values():
        if (reason := reasons.get(slot.id)) is not None:
            groups.setdefault((reason, _detail(state, slot)), []).append(slot.id)
    for (reason, detail), devices in groups.items():
        since = idle.since.get(reason, state.now)
        if reason == STARTING and (number := state.devices.slots[devices[0]].trial) is not None:
            since = max(since, state.trials[number].heard_at)  # its launch
        yield Idle(tuple(devices), since, reason, detail)


def _detail(state: State, slot: DeviceSlot) -> str:
    """Say more about the reason for which an atom is idle."""
    match slot.state:
        case DeviceState.FREE:
            return _why_none_grows(state)
        case DeviceState.QUARANTINED:
            return slot.reason
        case DeviceState.DRAINING:
            return "" if slot.trial is None else f"trial {slot.trial} has left"
        case DeviceState.HELD:
            return f"trial {slot.trial}"


def _why_none_grows(state: State) -> str:
    """Say why no live trial may have one of the free atoms as well; nothing where one may."""
    capped = "the recipe allows no larger one that the free atoms make up"
    if state.powers_alone:
        capped = "numbers of atoms that are no power of two have failed"
    for trial in state.live.values():
        if state.fit(trial, trial.atoms + state.devices.room(trial.devices)) > trial.atoms:
            return ""
        if trial.cap is not None:
            capped = f"trial {trial.id}: {trial.cap.why}"
    return f"each live trial stays at its size: {capped}" if state.live else ""
