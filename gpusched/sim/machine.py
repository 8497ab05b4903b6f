"""The memory of the simulated machine: trials on disk, their launches, and the devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpusched.core.events import TrialExited
from gpusched.devices.base import Device
from gpusched.sim.physics import NEVER_STEP, SimulatedCurve


@dataclass(slots=True, eq=False)
class Story:
    """A trial on disk, between its launches."""

    trial: int
    curve: SimulatedCurve
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

    It trains a step, or is ``waiting`` for an answer, or ``leaving``: how it ends is decided.
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
    cut: bool = False
    gone: bool = False

    def __post_init__(self) -> None:
        self.step = self.story.saved_step

    def __repr__(self) -> str:
        return f"trial {self.story.trial}, incarnation {self.incarnation}"


class Pool:
    """The devices, and who is on them."""

    def __init__(self, devices: Sequence[Device], release_s: float) -> None:
        self.devices = tuple(devices)
        #: Device-seconds used: from launch to the end of the release, times devices.
        self.used_s = 0.0
        self._release_s = release_s
        self._on: dict[str, Run] = {}
        self._clean_at = dict.fromkeys((device.id for device in self.devices), 0.0)

    def occupy(self, run: Run, now: float) -> None:
        """Raises AssertionError if one of the run's devices is in use or not clean."""
        names, on = run.devices, self._on
        if not on.keys().isdisjoint(names):
            name = next(name for name in names if name in on)
            raise AssertionError(f"{run}: {name} is in use by {on[name]}")
        if self.clean_at(names) > now:
            name = next(name for name in names if self._clean_at[name] > now)
            raise AssertionError(f"{run}: {name} is not clean yet")
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
