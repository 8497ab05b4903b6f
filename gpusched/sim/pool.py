"""The simulated devices: who is on one, from when it is clean again, and which are broken."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpusched.devices.base import Device
from gpusched.sim.physics import Faults
from gpusched.sim.run import Run


class Pool:
    """``atoms`` devices; groups of ``island_size`` of them talk to each other fast."""

    def __init__(
        self, atoms: int, island_size: int | None, release_s: float, faults: Faults, seed: int
    ) -> None:
        self.devices = tuple(
            Device(f"sim:{n}", f"simulated atom {n}", n // island_size if island_size else 0)
            for n in range(atoms)
        )
        #: Device-seconds used: from launch to the end of the release, times devices.
        self.used_s = 0.0
        self._release_s = release_s
        self._faults = faults
        self._seed = seed
        self._on: dict[str, Run] = {}
        self._clean_at = dict.fromkeys((device.id for device in self.devices), 0.0)
        self._releases = dict.fromkeys(self._clean_at, 0)
        self._broken: set[str] = set()

    def occupy(self, run: Run, now: float) -> None:
        """Raises AssertionError if one of the run's devices is in use, dirty or broken."""
        names, on = run.devices, self._on
        if not on.keys().isdisjoint(names):
            name = next(name for name in names if name in on)
            raise AssertionError(f"{run}: {name} is in use by {on[name]}")
        if self.clean_at(names) > now:
            name = next(name for name in names if self._clean_at[name] > now)
            raise AssertionError(f"{run}: {name} is not clean yet")
        broken = self._broken.intersection(names)
        assert not broken, f"{run}: {min(broken)} is broken"
        on.update(dict.fromkeys(names, run))

    def vacate(self, run: Run, now: float) -> None:
        """Its processes are gone; the devices become clean a little later."""
        clean_at, on = now + self._release_s, self._on
        for name in run.devices:
            del on[name]
        self._clean_at.update(dict.fromkeys(run.devices, clean_at))
        self.used_s += (clean_at - run.launched_at) * len(run.devices)

    def clean(self, names: tuple[str, ...], now: float) -> tuple[str, ...]:
        """Those that nobody is on and that are clean."""
        if self._on.keys().isdisjoint(names) and self.clean_at(names) <= now:
            return names
        return tuple(name for name in names if self.is_clean(name, now))

    def is_clean(self, name: str, now: float) -> bool:
        return name not in self._on and self._clean_at[name] <= now

    def clean_at(self, names: Sequence[str]) -> float:
        """When all of them will be clean, as far as that is known."""
        return max(map(self._clean_at.__getitem__, names), default=0.0)

    def stuck(self, names: Sequence[str]) -> Iterator[str]:
        """Those of the released that do not come back; they are broken from here on."""
        if not self._faults.quarantine:
            return
        for name in names:
            self._releases[name] += 1
            if self._faults.is_stuck(self._seed, name, self._releases[name]):
                self._broken.add(name)
                yield name

    def break_down(self, name: str) -> bool:
        """False if it is broken already. Raises KeyError for a device that does not exist."""
        fresh = self._clean_at[name] >= 0 and name not in self._broken
        self._broken.add(name)
        return fresh

    def mend(self, name: str) -> bool:
        """False if it is not broken."""
        was_broken = name in self._broken
        self._broken.discard(name)
        return was_broken
