"""The memory of the simulated machine: trials on disk, their launches, devices, rented instances."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from gpusched.core.events import TrialExited
from gpusched.devices.base import Device
from gpusched.sim.physics import NEVER_STEP, Faults
from gpusched.sim.workload import SimulatedCurve

Trouble = Literal["crash", "lost", "hang"]


@dataclass(slots=True, eq=False)
class Story:
    """A trial on disk, between its launches."""

    trial: int
    curve: SimulatedCurve
    crash_step: int
    seq: int = 0
    #: Steps of the two newest checkpoints, the newest last.
    saved: tuple[int, ...] = ()
    run: Run | None = None
    #: Of each report, in order: incarnation, step, step time, as ``reports.jsonl`` would hold it.
    log: list[tuple[int, int, float]] = field(default_factory=list)
    #: End of the latest launch, as a new daemon finds it.
    exit: TrialExited | None = None
    end_step: int = field(init=False)

    def __post_init__(self) -> None:
        self.end_step = NEVER_STEP if self.curve.length is None else self.curve.length

    @property
    def saved_step(self) -> int:
        return self.saved[-1] if self.saved else 0

    def save(self, step: int) -> None:
        if step != self.saved_step:
            self.saved = (*self.saved[-1:], step)


@dataclass(slots=True, eq=False, repr=False)
class Run:
    """One incarnation: its processes.

    It trains a step, or ``waiting`` for an answer; it is ``hung``; or it is ``leaving``: how it ends is decided.
    ``cut``: the end is not the trial's own doing, so that a checkpoint half written does not count.
    """

    story: Story
    incarnation: int
    devices: tuple[str, ...]
    launched_at: float
    speedup: float
    #: Step reached so far; a run begins behind the newest checkpoint.
    step: int = field(init=False)
    step_time_s: float = 0.0
    waiting: bool = False
    #: The answer to its next report.
    save: bool = False
    leave: bool = False
    leaving: bool = False
    hung: bool = False
    cut: bool = False
    gone: bool = False
    trouble: Trouble = "crash"
    trouble_step: int = field(init=False)

    def __post_init__(self) -> None:
        self.step, self.trouble_step = self.story.saved_step, self.story.crash_step

    def meet(self, faults: Faults, seed: int) -> None:
        """Find the step in which the run crashes, is lost or hangs, if it does."""
        lost, hang = faults.fault_steps(seed, self.story.trial, self.incarnation)
        if self.step + lost < self.trouble_step:
            self.trouble, self.trouble_step = "lost", self.step + lost
        if self.step + hang < self.trouble_step:
            self.trouble, self.trouble_step = "hang", self.step + hang

    def __repr__(self) -> str:
        return f"trial {self.story.trial}, incarnation {self.incarnation}"


def simulated(atoms: int) -> tuple[Device, ...]:
    return tuple(Device(f"sim:{n}", f"simulated atom {n}") for n in range(atoms))


class Pool:
    """The devices, and who is on them."""

    def __init__(
        self, devices: Sequence[Device], release_s: float, faults: Faults, seed: int
    ) -> None:
        self.devices = tuple(devices)
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

    def soil(self, names: Sequence[str], until: float) -> None:
        """Have devices without a run become clean at a later time."""
        self._clean_at.update(dict.fromkeys(names, until))

    def vacate(self, run: Run, now: float) -> None:
        """Take a run off its devices, which become clean a little later."""
        clean_at, on = now + self._release_s, self._on
        for name in run.devices:
            del on[name]
        self._clean_at.update(dict.fromkeys(run.devices, clean_at))
        self.used_s += (clean_at - run.launched_at) * len(run.devices)

    def clean(self, names: tuple[str, ...], now: float) -> tuple[str, ...]:
        """Return the devices that are clean and unused."""
        if self._on.keys().isdisjoint(names) and self.clean_at(names) <= now:
            return names
        return tuple(name for name in names if self.is_clean(name, now))

    def is_clean(self, name: str, now: float) -> bool:
        return name not in self._on and self._clean_at[name] <= now

    def clean_at(self, names: Sequence[str]) -> float:
        """Return the time when all of them will be clean, as far as known."""
        return max(map(self._clean_at.__getitem__, names), default=0.0)

    def stuck(self, names: Sequence[str]) -> Iterator[str]:
        """Yield released devices that do not come back; they are broken from here on."""
        if not self._faults.quarantine:
            return
        for name in names:
            self._releases[name] += 1
            if self._faults.is_stuck(self._seed, name, self._releases[name]):
                self._broken.add(name)
                yield name

    def break_down(self, name: str) -> bool:
        """Break a device; False if it is broken already. Raises KeyError for a device that does not exist."""
        fresh = self._clean_at[name] >= 0 and name not in self._broken
        self._broken.add(name)
        return fresh

    def mend(self, name: str) -> bool:
        """Mend a device; False if it is not broken."""
        was_broken = name in self._broken
        self._broken.discard(name)
        return was_broken


class Instances:
    """Instances of an elastic pool: devices that are rented together, while a trial is on one of them."""

    def __init__(self, devices: Sequence[Device], size: int, provision_s: float) -> None:
        self._provision_s = provision_s
        self._of = {device.id: place // size for place, device in enumerate(devices)}
        self._size = Counter(self._of.values())
        self._in_use = Counter[int]()
        #: Since when each is rented, and when the last trial on it leaves.
        self._since: dict[int, float] = {}
        self._until: dict[int, float] = {}
        self._paid_s = 0.0

    def occupy(self, names: Sequence[str], now: float) -> float:
        """Rent the instances of these devices; return when all of them are there."""
        ready_at = now
        for instance, count in Counter(self._of[name] for name in names).items():
            if not self._in_use[instance] and self._until.get(instance, -1.0) < now:
                self._paid_s += self._paid_for(instance)
                self._since[instance] = now
            self._in_use[instance] += count
            ready_at = max(ready_at, self._since[instance] + self._provision_s)
        return ready_at

    def vacate(self, names: Sequence[str], clean_at: float) -> None:
        for name in names:
            self._in_use[self._of[name]] -= 1
            self._until[self._of[name]] = clean_at

    def _paid_for(self, instance: int) -> float:
        since = self._since.get(instance)
        return 0.0 if since is None else (self._until[instance] - since) * self._size[instance]

    @property
    def paid_s(self) -> float:
        """Device-seconds of all instances so far, when no trial is on them."""
        return self._paid_s + sum(map(self._paid_for, self._since))
