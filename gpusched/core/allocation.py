"""Which devices are FREE, HELD, DRAINING or QUARANTINED, and who holds or awaits them.

    FREE ──take──▶ HELD ──drain──▶ DRAINING ──released──▶ FREE, or HELD if a trial awaits it (resize)
                                       └──quarantine──▶ QUARANTINED ──readmit──▶ FREE

Only a confirmed release makes a DRAINING device usable. A device is *held* from the moment a trial is given it; a
launch is allowed once all of a trial's devices are clean.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sortedcontainers import SortedList


class DeviceState(enum.Enum):
    FREE = "free"
    HELD = "held"
    DRAINING = "draining"
    QUARANTINED = "quarantined"


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
    #: While QUARANTINED: the reason may pass by itself.
    passing: bool = False


class Devices:
    """All devices of the experiment, in a fixed order. Not to be confused with ``executors.base.Devices``."""

    def __init__(self, ids: Sequence[str], islands: Mapping[str, int]) -> None:
        self.slots = {name: DeviceSlot(name, islands.get(name, 0)) for name in ids}
        self._names = tuple(ids)
        self._order = {name: place for place, name in enumerate(ids)}
        #: Names of the FREE devices; kept so that "how many are free" costs nothing.
        self.free: set[str] = set(ids)
        #: The same by island, as places in the order, so that the first few are found without sorting all.
        self._free_on: dict[int, SortedList[int]] = {}
        for slot in self.slots.values():
            self._free_on.setdefault(slot.island, SortedList()).add(self._order[slot.id])
        self.quarantined = 0
        self.draining = 0
        #: Devices that changed since the invariants last looked, and who has held or awaited them meanwhile.
        self.changed: set[str] = set()
        self.concerned: set[int] = set()

    @property
    def total(self) -> int:
        return len(self.slots)

    @property
    def usable(self) -> int:
        return len(self.slots) - self.quarantined

    def counts(self) -> dict[str, int]:
        """How many are in each state."""
        found = dict.fromkeys((state.value for state in DeviceState), 0)
        for slot in self.slots.values():
            found[slot.state.value] += 1
        return found

    def free_by_island(self) -> set[str]:
        """What ``choose`` takes from: the same as ``free``, or an index is wrong."""
        return {self._names[place] for free in self._free_on.values() for place in free}

    def choose(self, count: int, near: Iterable[str] = ()) -> tuple[str, ...]:
        """``count`` free devices: on the island of ``near`` first, else on the island that they fill best."""
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
            chosen += [self._names[place] for place in by_island.pop(island)[:wanted]]
        return tuple(chosen)

    def take(self, names: Iterable[str], trial: int) -> None:
        """FREE -> HELD."""
        for name in names:
            slot = self.slots[name]
            if slot.state is not DeviceState.FREE:
                raise AssertionError(
                    f"device {name} is {slot.state.value}, trial {trial} may not take it"
                )
            slot.state, slot.trial = DeviceState.HELD, trial
            self._unset_free(slot)
            self._note(slot)

    def drain(self, names: Iterable[str], awaited_by: int | None) -> None:
        """HELD -> DRAINING; whoever awaits them gets them once they are released."""
        for name in names:
            slot = self.slots[name]
            if slot.state is DeviceState.HELD:
                slot.state, slot.awaited_by = DeviceState.DRAINING, awaited_by
                self.draining += 1
                self._note(slot)

    def unawait(self, names: Iterable[str]) -> None:
        """Who awaited them does not any more: they become free when they are released."""
        for name in names:
            slot = self.slots[name]
            self._note(slot)
            slot.awaited_by = None

    def give_back(self, names: Iterable[str]) -> None:
        """HELD but never used since it was clean -> FREE."""
        for name in names:
            slot = self.slots[name]
            if slot.state is DeviceState.HELD:
                self._set_free(slot)

    def released(self, name: str) -> int | None:
        """DRAINING -> HELD by the trial that awaits it (returned), or FREE."""
        slot = self.slots[name]
        if slot.state is not DeviceState.DRAINING:
            return None
        self.draining -= 1
        self._note(slot)
        awaited_by, slot.awaited_by = slot.awaited_by, None
        if awaited_by is None:
            self._set_free(slot)
        else:
            slot.state, slot.trial = DeviceState.HELD, awaited_by
        return awaited_by

    def quarantine(self, name: str, reason: str, *, passing: bool = False) -> None:
        slot = self.slots[name]
        if slot.state is not DeviceState.QUARANTINED:
            self.quarantined += 1
        if slot.state is DeviceState.DRAINING:
            self.draining -= 1
        self._unset_free(slot)
        slot.state, slot.trial, slot.awaited_by = DeviceState.QUARANTINED, None, None
        slot.reason, slot.passing = reason, passing

    def readmit(self, name: str) -> None:
        slot = self.slots[name]
        if slot.state is DeviceState.QUARANTINED:
            self.quarantined -= 1
            self._set_free(slot)

    def _set_free(self, slot: DeviceSlot) -> None:
        self._note(slot)
        slot.state, slot.trial, slot.awaited_by = DeviceState.FREE, None, None
        slot.reason, slot.passing = "", False
        assert slot.id not in self.free, f"{slot.id} is free twice"
        self.free.add(slot.id)
        self._free_on[slot.island].add(self._order[slot.id])

    def _unset_free(self, slot: DeviceSlot) -> None:
        if slot.id in self.free:
            self.free.remove(slot.id)
            self._free_on[slot.island].remove(self._order[slot.id])

    def _note(self, slot: DeviceSlot) -> None:
        """It changes: before it is given to nobody, or after it was given to somebody."""
        self.changed.add(slot.id)
        if slot.trial is not None:
            self.concerned.add(slot.trial)
        if slot.awaited_by is not None:
            self.concerned.add(slot.awaited_by)
