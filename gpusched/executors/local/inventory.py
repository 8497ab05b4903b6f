"""The devices of this experiment as the executor has them: its requests go in, their events become the core's.

Beside ``Devices`` it knows one thing: processes of ours that even SIGKILL does not end. While such processes are left,
their devices are not free, whatever the devices say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from gpusched.core.events import DeviceQuarantined, DeviceReadmitted, DevicesReleased
from gpusched.devices.base import (
    Device,
    DeviceEvent,
    DeviceRemark,
    Devices,
    Quarantined,
    ReadmitRefused,
    Readmitted,
    Released,
    Strangers,
)
from gpusched.executors.live import Timers
from gpusched.processes.claim import Hunt

HUNT_EVERY_S = 0.5
LATE_HUNT_EVERY_S = 5.0

Happening = DevicesReleased | DeviceQuarantined | DeviceReadmitted
Answered = Callable[[str], None]
"""Gets why not, or an empty text."""


class Inventory:
    """``emit`` takes the core's events, ``say`` remarks for people; ``limit_s``: how long a release may take."""

    def __init__(
        self,
        devices: Devices,
        timers: Timers,
        emit: Callable[[Happening], None],
        say: Callable[[str], None],
        limit_s: float,
    ) -> None:
        self._devices = devices
        self._now = timers.now
        self._emit = emit
        self._say = say
        self._limit_s = limit_s
        self._listed: tuple[Device, ...] | None = None
        self._survivors: dict[str, Hunt] = {}
        self._blocked: dict[str, float] = {}
        self._strangers: dict[str, tuple[str, ...]] = {}
        self._asking: dict[str, list[Answered]] = {}
        #: As ``devices.base.Host``.
        self.after = timers.after

    def open(self) -> tuple[Device, ...]:
        """List the devices there are, in a fixed order; the first call takes them. Raises DeviceError."""
        if self._listed is None:
            self._listed = self._devices.open(self)
        return self._listed

    # ------------------------------------------------------------------ requests

    def drain(self, devices: Sequence[str]) -> None:
        """Note that nothing is left of a trial that had these, but perhaps survivors."""
        self._devices.drain([name for name in devices if name not in self._survivors])

    def confirm_release(self, devices: Sequence[str]) -> None:
        """Release a trial's devices, or give them up, once nothing of the trial is left but perhaps survivors."""
        held = [name for name in devices if name in self._survivors]
        if free := [name for name in devices if name not in held]:
            self._devices.confirm_release(free, self._limit_s)
        for name in held:
            if name not in self._blocked:
                self._blocked[name] = self._now() + self._limit_s
                self._hunt(name, self._blocked[name])

    def hold(self, devices: Sequence[str], survivors: Hunt) -> None:
        """Hold devices back: none is released while some of ``survivors`` are left."""
        self._survivors.update(dict.fromkeys(devices, survivors))

    def readmit(self, device: str, answered: Answered) -> None:
        """Ask for a quarantined device back; ``answered`` gets why it stays there, or an empty text."""
        if why := self._held_by(device):
            answered(why)
            return
        self._asking.setdefault(device, []).append(answered)
        self._devices.readmit(device)

    def strangers(self, devices: Sequence[str]) -> tuple[str, ...]:
        """Other people's processes seen on these devices since they were taken, in words."""
        return tuple(who for name in devices for who in self._strangers.get(name, ()))

    def _held_by(self, device: str) -> str:
        survivors = self._survivors.get(device)
        if survivors is None:
            return ""
        if survivors.round():
            return f"held by {survivors.describe()}"
        del self._survivors[device]
        self._devices.drain([device])
        return ""

    def _hunt(self, device: str, until: float) -> None:
        if self._blocked.get(device) != until:
            return
        why = self._held_by(device)
        if not why:
            del self._blocked[device]
            self._devices.confirm_release([device], max(0.0, until - self._now()))
        elif self._now() >= until:
            why = f"not released after {self._limit_s:.0f} s: {why}"
            self.emit(Quarantined(device, why, passing=True))
            self.after(LATE_HUNT_EVERY_S, partial(self._hunt_late, device, why))
        else:
            pause_s = max(0.01, min(HUNT_EVERY_S, until - self._now()))
            self.after(pause_s, partial(self._hunt, device, until))

    def _hunt_late(self, device: str, reason: str) -> None:
        """Have a device that was given up come back once those who hold it have ended after all."""
        if device not in self._survivors:
            return
        if self._held_by(device):
            self.after(LATE_HUNT_EVERY_S, partial(self._hunt_late, device, reason))
        else:
            self._devices.keep_out(device, reason)

    # ------------------------------------------------------------------ events

    def emit(self, event: DeviceEvent) -> None:
        """Take an event of the devices."""
        now = self._now()
        match event:
            case Released(devices):
                self._emit(DevicesReleased(at=now, devices=devices))
            case Quarantined(device, reason, passing):
                self._blocked.pop(device, None)
                self._emit(DeviceQuarantined(at=now, device=device, reason=reason, passing=passing))
            case Readmitted(device):
                self._blocked.pop(device, None)
                self._emit(DeviceReadmitted(at=now, device=device))
                self._answer(self._asking.pop(device, []), "")
            case ReadmitRefused(device, reason):
                self._answer(self._asking.pop(device, []), reason)
            case Strangers(device, who):
                self._strangers[device] = who
            case DeviceRemark(text):
                self._say(text)

    def _answer(self, waiting: Sequence[Answered], text: str) -> None:
        for answered in waiting:
            answered(text)
