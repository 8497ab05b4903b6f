"""What becomes of devices beside launches and releases: they go bad, come back, or somebody asks for one back.

Once a second the devices are asked what is new. What they say becomes events; what must be said once goes to the log
and the dashboard.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from gpusched.core.events import DeviceQuarantined, DeviceReadmitted
from gpusched.devices.base import Device, Devices, Release
from gpusched.executors.local.timers import Timers

EVERY_S = 1.0
READMIT_EVERY_S = 0.1
#: How long a device that somebody wants back may take to prove that it is clean and well.
READMIT_PATIENCE_S = 4.0

Answered = Callable[[Release], None]


class Inspection:
    """``emit`` takes the events, ``say`` remarks for people."""

    def __init__(
        self,
        devices: Devices,
        timers: Timers,
        now: Callable[[], float],
        emit: Callable[[DeviceQuarantined | DeviceReadmitted], None],
        say: Callable[[str], None],
    ) -> None:
        self._devices = devices
        self._timers = timers
        self._now = now
        self._emit = emit
        self._say = say
        self._said = 0
        self._asking: dict[str, list[Answered]] = {}
        self._known: dict[str, str] = {}
        timers.after(EVERY_S, self._look)

    def listed(self, inventory: Sequence[Device]) -> None:
        """What cannot be used from the beginning, and why, was told with the inventory: not once more."""
        self._known = {device.id: device.why_not for device in inventory if not device.usable}
        self.say_news()

    def _look(self) -> None:
        for fault in self._devices.faults():
            if self._known.pop(fault.device, None) == fault.reason:
                continue
            self._emit(
                DeviceQuarantined(
                    at=self._now(),
                    device=fault.device,
                    reason=fault.reason,
                    passing=fault.passing,
                )
            )
        for device in self._devices.recovered():
            self._emit(DeviceReadmitted(at=self._now(), device=device))
        self.say_news()
        self._timers.after(EVERY_S, self._look)

    def say_news(self) -> None:
        """What the devices have to say and have not said yet."""
        notes: Sequence[str] = self._devices.notes
        for note in notes[self._said :]:
            self._say(note)
        self._said = len(notes)

    def readmit(self, device: str, answered: Answered) -> None:
        """Ask until the device is clean and well again, or patience ends; ``answered`` gets the last answer.

        Who asks while somebody else's question is open gets the same answer.
        """
        if device in self._asking:
            self._asking[device].append(answered)
            return
        self._asking[device] = [answered]
        self._ask(device, self._now() + READMIT_PATIENCE_S, anew=True)

    def _ask(self, device: str, until: float, *, anew: bool = False) -> None:
        release = self._devices.readmit(device, anew=anew)
        if release.released:
            self._emit(DeviceReadmitted(at=self._now(), device=device))
        elif self._now() < until:
            self._timers.after(READMIT_EVERY_S, partial(self._ask, device, until))
            return
        for answered in self._asking.pop(device):
            answered(release)
