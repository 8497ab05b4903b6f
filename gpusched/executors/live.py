"""Executors on devices that exist: what a daemon gives to one, and what all of them share.

A live executor is a package beside ``local/`` with a file ``executor.py`` that has ``make(setting) -> LiveExecutor``; a
daemon finds it by the package's name. The control socket is the daemon's: an executor registers what its trials speak
as (``hub.py``) and waits in ``hub.turn``, so that signals and clients end its ``poll``.
"""

from __future__ import annotations

import heapq
import importlib
import itertools
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpusched.core.commands import KeepBest
from gpusched.core.events import DevicesJoined, DevicesReleased, Event, QuarantineChanged
from gpusched.devices.base import Device, Quarantined, Reading, Readmitted, Released
from gpusched.executors.base import Executor
from gpusched.executors.best import keep_best
from gpusched.executors.hub import Hub
from gpusched.folder.files import FULL
from gpusched.folder.paths import ExperimentPaths
from gpusched.recipe.recipe import Recipe

_TURN_LIMIT_S = 3600.0
_KEEP_AGAIN_S = 2.0
LOST_LAUNCH_S = 5.0
"""Time from a launch to the end that is told of it where it is lost: another launch of the trial follows at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """All that a daemon makes its executor from."""

    paths: ExperimentPaths
    recipe: Recipe
    hub: Hub
    #: The experiment's time.
    clock: Callable[[], float]
    #: Of this daemon; 1 for the experiment's first.
    epoch: int = 1
    #: Takes remarks for the log and the dashboard.
    say: Callable[[str], None] = lambda _text: None
    #: The number of the last report of a trial that the search knows.
    seq_of: Callable[[int], int] = lambda _trial: 0
    #: Gives back reserved room on a full disk; False: all is given.
    spare: Callable[[], bool] = lambda: False
    #: Notes that a disk, or a quota, had no room for a checkpoint.
    refused: Callable[[], None] = lambda: None
    #: This machine's name in a cluster; empty: the daemon is on this machine.
    node: str = ""
    #: The experiment's devices where it continues; empty at its beginning.
    devices: tuple[str, ...] = ()


def make(name: str, setting: Setting) -> LiveExecutor:
    """Make the executor of a package beside ``local/``: no other is imported."""
    package = importlib.import_module(f"gpusched.executors.{name}.executor")
    made: LiveExecutor = package.make(setting)
    return made


def joined(devices: Sequence[Device], at: float) -> DevicesJoined:
    """Return the event with which devices become the search's."""
    return DevicesJoined(
        at=at,
        devices=tuple(device.id for device in devices),
        islands={device.id: device.island for device in devices},
        unusable={device.id: device.why_not for device in devices if not device.usable},
        labels={one.id: one.label for one in devices if one.label not in ("", one.id)},
    )


def as_event(event: Released | Quarantined | Readmitted, at: float) -> Event:
    """Return an event of the devices as the core's."""
    match event:
        case Released(devices):
            return DevicesReleased(at=at, devices=devices)
        case Quarantined(device, reason):
            return QuarantineChanged(at=at, device=device, reason=reason)
        case Readmitted(device):
            return QuarantineChanged(at=at, device=device)


class Timers:
    """Actions due at a time of the clock ``now``; those due at the same time run in the order they were asked for.

    An action is cancelled by finding nothing to do.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()

    @property
    def next_at(self) -> float:
        return self._heap[0][0] if self._heap else float("inf")

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (self.now() + delay_s, next(self._count), action))

    def run_due(self) -> None:
        """Run what is due; an action asked for meanwhile runs in a later round, even with no delay."""
        now, due = self.now(), []
        while self._heap and self._heap[0][0] <= now:
            due.append(heapq.heappop(self._heap)[2])
        for action in due:
            action()


class LiveExecutor(Executor):
    """Base of executors on devices that exist: ``poll``, timers and ``best/``."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._paths = setting.paths
        self._hub = setting.hub
        self._timers = Timers(setting.clock)
        #: Events that no ``poll`` has returned yet.
        self._events: list[Event] = []
        #: The model that ``best/`` is to hold.
        self._best: KeepBest | None = None
        self._best_is_late = False

    def now(self) -> float:
        return self._setting.clock()

    @abstractmethod
    def keep_out(self, device: str, reason: str) -> None:
        """Take up a quarantine that an earlier daemon ended with; it ends when the device is clean and well."""

    @abstractmethod
    def readings(self) -> Sequence[Reading]:
        """Return what each device looks like now, for people."""

    def poll(self, until: float) -> Sequence[Event]:
        """See ``Executor.poll``. Also returns when somebody rang at the hub."""
        while not self._events:
            if self._turn(until) or self.now() >= until:
                break
        return self._told()

    def _turn(self, until: float) -> bool:
        """Wait for one thing to happen; True if somebody rang."""
        next_at = min(until, self._timers.next_at)
        rung = self._hub.turn(min(max(0.0, next_at - self.now()), _TURN_LIMIT_S))
        self._timers.run_due()
        return rung

    def _wait(self, limit_s: float, is_over: Callable[[], bool]) -> None:
        """Serve until something is over, at most for ``limit_s``."""
        until = self.now() + limit_s
        while not is_over() and self.now() < until:
            self._turn(until)

    def _told(self) -> list[Event]:
        events = self._events[:]
        self._events.clear()
        return events

    # ------------------------------------------------------------------ the best model

    def _keep_best(self, command: KeepBest) -> None:
        """Make ``best/`` this; where the disk refuses, try until it does not, or something better is asked for."""
        is_waiting = self._best is not None
        self._best = command
        if not is_waiting:
            self._try_best()

    def _try_best(self) -> None:
        command = self._best
        assert command is not None
        try:
            kept = keep_best(self._paths, command, self._setting.recipe.metric)
        except OSError as problem:
            if problem.errno in FULL and self._setting.spare():
                self._try_best()
                return
            if not self._best_is_late:
                self._setting.say(f"best/ stays as it was: {problem}; trying again")
            self._best_is_late = True
            self._timers.after(_KEEP_AGAIN_S, self._try_best)
            return
        self._best, self._best_is_late = None, False
        if not kept:
            self._setting.say(
                f"best/ stays: trial {command.trial} has no checkpoint of step {command.step}"
            )
