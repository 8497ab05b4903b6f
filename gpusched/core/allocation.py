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

from sortedcontainers import SortedKeyList


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
    island: int = 0
    state: DeviceState = DeviceState.FREE
    trial: int | None = None
    #: While DRAINING: the trial that gets it next; None: it becomes free.
    awaited_by: int | None = None
    reason: str = ""


class DeviceTable:
    """All devices of the search, in a fixed order."""

    def __init__(
        self, ids: Sequence[str], islands: Mapping[str, int], *, apart: bool = False
    ) -> None:
        """``apart``: a trial's devices are on one island."""
        self._apart = apart
        self.slots: dict[str, DeviceSlot] = {}
        self._place: dict[str, int] = {}
        #: Names of the FREE devices; kept so that "how many are free" costs nothing.
        self.free: set[str] = set()
        #: The same by island, in the fixed order: the first few are found without sorting all.
        self._free_on: dict[int, SortedKeyList[str, int]] = {}
        self.quarantined = 0
        self.draining = 0
        self.join(ids, islands)

    def join(self, ids: Sequence[str], islands: Mapping[str, int]) -> None:
        """Add FREE devices; those that are known already stay as they are."""
        for name in ids:
            if name not in self.slots:
                slot = self.slots[name] = DeviceSlot(name, islands.get(name, 0))
                self._place[name] = len(self._place)
                if slot.island not in self._free_on:
                    self._free_on[slot.island] = SortedKeyList(key=self._place.__getitem__)
                self._set_free(slot)

    @property
    def total(self) -> int:
        return len(self.slots)

    def counts(self) -> dict[str, int]:
        """Count the devices in each state."""
        found = dict.fromkeys((state.value for state in DeviceState), 0)
        for slot in self.slots.values():
            found[slot.state.value] += 1
        return found

    def free_by_island(self) -> set[str]:
        """Return what ``choose`` takes from: the same as ``free``, or an index is wrong."""
        return {name for free in self._free_on.values() for name in free}

    def room(self, near: Sequence[str] = ()) -> int:
        """Return the most free devices that one trial could have; ``near``: those that it has already."""
        if not self._apart:
            return len(self.free)
        if near:
            return len(self._free_on[self.slots[near[0]].island])
        return max(map(len, self._free_on.values()), default=0)

    def choose(self, count: int, near: Iterable[str] = ()) -> tuple[str, ...]:
        """Choose ``count`` free devices: on the island of ``near`` first, else on the island that they fill best."""
        if count > len(self.free):
            raise AssertionError(f"{count} devices wanted, {len(self.free)} free")
        by_island = {island: free for island, free in self._free_on.items() if free}
        home = {self.slots[name].island for name in near}
        chosen: list[str] = []
        while len(chosen) < count:
            wanted = count - len(chosen)

            def merit(island: int, wanted: int = wanted) -> tuple[bool, bool, int, int]:
                size = len(by_island[island])
                # Home first; then an island that holds them all, the tightest; else the largest.
                return (
                    island not in home,
                    size < wanted,
                    size if size >= wanted else -size,
                    island,
                )

            island = min(by_island, key=merit)
            chosen += by_island.pop(island)[:wanted]
        return tuple(chosen)

    def take(self, names: Sequence[str], trial: int) -> None:
        """FREE -> HELD."""
        for name in names:
            slot = self.slots[name]
            if slot.state is not FREE:
                raise AssertionError(
                    f"device {name} is {slot.state.value}, trial {trial} may not take it"
                )
            self._unset_free(slot)
            slot.state, slot.trial = HELD, trial

    def drain(self, names: Sequence[str], awaited_by: int | None) -> None:
        """HELD -> DRAINING; ``awaited_by`` gets the devices once they are released."""
        for name in names:
            slot = self.slots[name]
            if slot.state is HELD:
                slot.state, slot.awaited_by = DRAINING, awaited_by
                self.draining += 1

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
            self.draining -= 1
            if slot.awaited_by is None:
                self._set_free(slot)
                continue
            waiting.add(slot.awaited_by)
            slot.state, slot.trial, slot.awaited_by = HELD, slot.awaited_by, None
        return waiting

    def quarantine(self, name: str, reason: str) -> None:
        slot = self.slots[name]
        if slot.state is not DeviceState.QUARANTINED:
            self.quarantined += 1
        if slot.state is DeviceState.DRAINING:
            self.draining -= 1
        self._unset_free(slot)
        slot.state, slot.trial, slot.awaited_by = DeviceState.QUARANTINED, None, None
        slot.reason = reason

    def readmit(self, name: str) -> None:
        slot = self.slots[name]
        if slot.state is DeviceState.QUARANTINED:
            self.quarantined -= 1
            self._set_free(slot)

    def _set_free(self, slot: DeviceSlot) -> None:
        slot.state, slot.trial, slot.awaited_by = DeviceState.FREE, None, None
        slot.reason = ""
        assert slot.id not in self.free, f"{slot.id} is free twice"
        self.free.add(slot.id)
        self._free_on[slot.island].add(slot.id)

    def _unset_free(self, slot: DeviceSlot) -> None:
        if slot.id in self.free:
            self.free.remove(slot.id)
            self._free_on[slot.island].remove(slot.id)
