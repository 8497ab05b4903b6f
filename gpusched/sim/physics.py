"""The simulated machine: what it remembers of trials and devices, its delays and scaling; the seam to what is trained.

Times in (virtual) seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from gpusched.core import speed
from gpusched.core.speed import Scaling
from gpusched.devices.base import Device
from gpusched.errors import InputError

#: HyperSched (SoCC'19), Table 3: throughput on 1, 2, 4 and 8 V100s relative to one.
TABLE_3: Mapping[str, Mapping[int, float]] = {
    "resnet18": {1: 1.0, 2: 1.85, 4: 3.43, 8: 5.40},
    "resnet50": {1: 1.0, 2: 1.87, 4: 3.42, 8: 5.60},
    "resnet101": {1: 1.0, 2: 1.89, 4: 3.63, 8: 6.67},
    "shufflenet": {1: 1.0, 2: 1.92, 4: 3.61, 8: 6.08},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Delays:
    """Times of everything beside training."""

    #: From a launch to the first training step: processes, imports, process group.
    launch_s: float = 0.0
    #: The same for a trial that has run before: its checkpoint is loaded, too.
    resize_s: float = 0.0
    #: For each atom beyond the first.
    launch_per_atom_s: float = 0.0
    #: Training stands still for a checkpoint.
    save_s: float = 0.0
    #: From the last word of a trial to the end of its processes.
    exit_s: float = 0.0
    #: From the end of its processes until the devices are confirmed free.
    release_s: float = 0.0

    def launch(self, incarnation: int, atoms: int) -> float:
        """Return the time from the command to the first training step."""
        start_s = self.launch_s if incarnation <= 1 else self.resize_s
        return start_s + self.launch_per_atom_s * (atoms - 1)


@dataclass(slots=True, eq=False)
class SimulatedCurve:
    """A configuration's learning curve. ``step_time_s`` is on one atom.

    ``length``: steps after which its script ends by itself (None: it never does), with what ``ending``. A report stands
    for ``stride`` steps.
    """

    metric: Callable[[int], float]
    step_time_s: Callable[[int], float]
    length: int | None = None
    ending: Literal["finished", "failed"] = "finished"
    stride: int = 1

    def stride_at(self, step: int) -> int:
        """Return the steps from this one to the next report."""
        return self.stride if self.length is None else min(self.stride, self.length - step)


class Workload(Protocol):
    """A kind of training. ``space``: what is searched, in the words of a recipe.

    ``defaults``: options that suit it, for policies that have them.
    """

    metric: str
    mode: Literal["max", "min"]
    space: Mapping[str, Any]
    defaults: Mapping[str, Any]

    def curve(self, trial: int, hparams: Mapping[str, Any], seed: int) -> SimulatedCurve:
        """Return the curve of a configuration: the same for the same arguments, whatever the policy."""


def parse_scaling(text: str) -> tuple[str | Mapping[int, float], Scaling]:
    """Read how training scales: as a recipe says it, and as a function.

    ``linear``, ``sqrt``, ``none``, or a model of HyperSched's Table 3 (``resnet50``). Raises InputError.
    """
    if text in speed.NAMED:
        return text, speed.NAMED[text]
    if text not in TABLE_3:
        known = ", ".join([*speed.NAMED, *TABLE_3])
        raise InputError(f"scaling {text}: unknown; one of {known}")
    return TABLE_3[text], speed.table(TABLE_3[text])


# ---------------------------------------------------------------- trials and devices


@dataclass(slots=True, eq=False)
class Story:
    """A trial on disk, between its launches."""

    trial: int
    curve: SimulatedCurve
    seq: int = 0
    #: Steps of the two newest checkpoints, the newest last.
    saved: tuple[int, ...] = ()
    run: Run | None = None

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
        for name in run.devices:
            if name in self._on:
                raise AssertionError(f"{run}: {name} is in use by {self._on[name]}")
            if self._clean_at[name] > now:
                raise AssertionError(f"{run}: {name} is not clean yet")
            self._on[name] = run

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

    def is_clean(self, name: str, now: float) -> bool:
        """Tell whether a device is clean and unused."""
        return name not in self._on and self._clean_at[name] <= now

    def clean_at(self, names: Sequence[str]) -> float:
        """Return the time when all of them will be clean, as far as known."""
        return max(map(self._clean_at.__getitem__, names), default=0.0)
