"""Devices that are FREE, HELD, DRAINING or QUARANTINED, and the trials that hold or await them.

    FREE ──take──▶ HELD ──drain──▶ DRAINING ──released──▶ FREE, or HELD if a trial awaits it (resize)
                                       └──quarantine──▶ QUARANTINED ──readmit──▶ FREE

Only a confirmed release makes a DRAINING device usable. A device is *held* from the moment a trial is given it; a
launch is allowed once all of a trial's devices are clean.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


class DeviceState(enum.Enum):
    FREE = "free"
    HELD = "held"
    DRAINING = "draining"
    QUARANTINED = "quarantined"


#: Members of an Enum are slow to look up; these are compared for every device of every launch and release.
FREE, HELD, DRAINING = DeviceState.FREE, DeviceState.HELD, DeviceState.DRAINING


@dataclass(slots=True)
class DeviceSlot:
    """One device. ``trial``: who holds it, or, while it is DRAINING, who used it last."""

    id: str
    #: The name for people.
    label: str
    island: int = 0
    state: DeviceState = DeviceState.FREE
    trial: int | None = None
    #: While DRAINING: the trial that gets it next; None: it becomes free.
    awaited_by: int | None = None
    reason: str = ""


class DeviceTable:
    """All devices of the search, in a fixed order."""

    def __init__(self, *, apart: bool = False) -> None:
        """``apart``: a trial's devices are on one island."""
        self._apart = apart
        self.slots: dict[str, DeviceSlot] = {}
        #: Names of the devices in each state; kept so that "how many are free" costs nothing.
        self.by_state: dict[DeviceState, set[str]] = {state: set() for state in DeviceState}
        self.free, self.draining = self.by_state[FREE], self.by_state[DRAINING]
        self.quarantined = self.by_state[DeviceState.QUARANTINED]

    def join(
        self, ids: Sequence[str], islands: Mapping[str, int], labels: Mapping[str, str]
    ) -> None:
        """Add FREE devices; those that are known already stay as they are."""
        for name in ids:
            if name not in self.slots:
                self.slots[name] = DeviceSlot(name, labels.get(name, name), islands.get(name, 0))
                self.free.add(name)

    @property
    def total(self) -> int:
        return len(self.slots)

    def named(self, ids: Sequence[str]) -> str:
        """Name devices for people."""
        return ", ".join(self.slots[name].label for name in ids)

    def counts(self) -> dict[str, int]:
        """Count the devices in each state."""
        return {state.value: len(names) for state, names in self.by_state.items()}

    def _free_by_island(self) -> dict[int, list[str]]:
        """Return the free devices of each island that has some, in the fixed order."""
        found: dict[int, list[str]] = {}
        for slot in self.slots.values():
            if slot.state is FREE:
                found.setdefault(slot.island, []).append(slot.id)
        return found

    def room(self, near: Sequence[str] = ()) -> int:
        """Return the most free devices that one trial could have; ``near``: those that it has already."""
        if not self._apart:
            return len(self.free)
        by_island = self._free_by_island()
        if near:
            return len(by_island.get(self.slots[near[0]].island, ()))
        return max(map(len, by_island.values()), default=0)

    def choose(self, count: int, near: Iterable[str] = ()) -> tuple[str, ...]:
        """Choose ``count`` free devices: on the island of ``near`` first, else on the island that they fill best."""
        if count > len(self.free):
            raise AssertionError(f"{count} devices wanted, {len(self.free)} free")
        by_island = self._free_by_island()
        home = {self.slots[name].island for name in near}
        chosen: list[str] = []

        def merit(island: int) -> tuple[bool, bool, int, int]:
            # Home first; then an island that holds them all, the tightest; else the largest.
            more = len(by_island[island]) - (count - len(chosen))
            return island not in home, more < 0, abs(more), island

        while len(chosen) < count:
            chosen += by_island.pop(min(by_island, key=merit))[: count - len(chosen)]
        return tuple(chosen)

    def take(self, names: Sequence[str], trial: int) -> None:
        """FREE -> HELD."""
        for name in names:
            slot = self.slots[name]
            if slot.state is not FREE:
                raise AssertionError(
                    f"device {name} is {slot.state.value}, trial {trial} may not take it"
                )
            self._move(slot, HELD)
            slot.trial = trial

    def drain(self, names: Sequence[str], awaited_by: int | None) -> None:
        """HELD -> DRAINING; ``awaited_by`` gets the devices once they are released."""
        for name in names:
            slot = self.slots[name]
            if slot.state is HELD:
                self._move(slot, DRAINING)
                slot.awaited_by = awaited_by

    def give_back(self, names: Iterable[str]) -> None:
        """HELD but not used since the last release -> FREE; what is DRAINING becomes free when it is released."""
        for name in names:
            slot = self.slots[name]
            if slot.state is HELD:
                self._set_free(slot)
            else:
                slot.awaited_by = None

    def released(self, names: Sequence[str]) -> set[int]:
        """DRAINING -> HELD by the trial that awaits it, or FREE. Returns the trials that awaited some of them."""
        waiting = set[int]()
        for name in names:
            slot = self.slots[name]
            if slot.state is not DRAINING:
                continue
            if slot.awaited_by is None:
                self._set_free(slot)
                continue
            waiting.add(slot.awaited_by)
            self._move(slot, HELD)
            slot.trial, slot.awaited_by = slot.awaited_by, None
        return waiting

    def quarantine(self, name: str, reason: str) -> None:
        slot = self.slots[name]
        self._move(slot, DeviceState.QUARANTINED)
        slot.trial, slot.awaited_by, slot.reason = None, None, reason

    def readmit(self, name: str) -> None:
        slot = self.slots[name]
        if slot.state is DeviceState.QUARANTINED:
            self._set_free(slot)

    def _set_free(self, slot: DeviceSlot) -> None:
        self._move(slot, FREE)
        slot.trial, slot.awaited_by, slot.reason = None, None, ""

    def _move(self, slot: DeviceSlot, to: DeviceState) -> None:
        self.by_state[slot.state].remove(slot.id)
        self.by_state[to].add(slot.id)
        slot.state = to
