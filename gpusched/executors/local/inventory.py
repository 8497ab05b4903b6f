"""The devices of this experiment as the executor has them: its requests go in, their events become the core's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpusched.core.events import DeviceQuarantined, DeviceReadmitted, DevicesReleased
from gpusched.devices.base import (
    Device,
    DeviceEvent,
    DeviceRemark,
    Devices,
    Quarantined,
    Readmitted,
    Released,
    Strangers,
)
from gpusched.executors.live import Timers

Happening = DevicesReleased | DeviceQuarantined | DeviceReadmitted


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
        self._strangers: dict[str, tuple[str, ...]] = {}
        #: As ``devices.base.Host``.
        self.after = timers.after

    def open(self) -> tuple[Device, ...]:
        """List the devices there are, in a fixed order; the first call takes them. Raises DeviceError."""
        if self._listed is None:
            self._listed = self._devices.open(self)
        return self._listed

    # ------------------------------------------------------------------ requests

    def drain(self, devices: Sequence[str]) -> None:
        """Note that nothing is left of a trial that had these."""
        self._devices.drain(devices)

    def confirm_release(self, devices: Sequence[str]) -> None:
        """Release a trial's devices, or give them up."""
        self._devices.confirm_release(devices, self._limit_s)

    def strangers(self, devices: Sequence[str]) -> tuple[str, ...]:
        """Other people's processes seen on these devices since they were taken, in words."""
        return tuple(who for name in devices for who in self._strangers.get(name, ()))

    # ------------------------------------------------------------------ events

    def emit(self, event: DeviceEvent) -> None:
        """Take an event of the devices."""
        now = self._now()
        match event:
            case Released(devices):
                self._emit(DevicesReleased(at=now, devices=devices))
            case Quarantined(device, reason):
                self._emit(DeviceQuarantined(at=now, device=device, reason=reason))
            case Readmitted(device):
                self._emit(DeviceReadmitted(at=now, device=device))
            case Strangers(device, who):
                self._strangers[device] = who
            case DeviceRemark(text):
                self._say(text)
