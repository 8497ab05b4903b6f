"""The seam to a kind of device: which devices exist, what ranks need to use them, whether they are free and well.

A *device* is one atom: a CPU slot, a GPU, or one of ``atoms_per_gpu`` shares of a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

REST_S = 600.0
"""A device on which a trial could not even begin is given to the next one after this."""
QUOTA = Path("/sys/fs/cgroup/cpu.max")


def quota_of_cores() -> float:
    """Return how many cores may run at a time in this container (``docker run --cpus``); infinite without a limit."""
    with suppress(OSError, ValueError):
        granted, period = QUOTA.read_text().split()
        return int(granted) / int(period)
    return math.inf


@dataclass(frozen=True, slots=True)
class Device:
    """An atom. ``island`` numbers groups of devices that talk to each other fast."""

    id: str
    label: str
    island: int = 0
    usable: bool = True
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class Placement:
    """The ranks' use of a trial's devices: variables that all have, and the cores of each (one entry a rank)."""

    environment: Mapping[str, str]
    rank_cpus: tuple[tuple[int, ...], ...]
    threads_per_rank: int


@dataclass(frozen=True, slots=True)
class Reading:
    """A device as it looks now, for people. None: not known for this kind of device.

    ``strangers``: other people's processes beside a trial's, in words.
    """

    device: str
    utilisation: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    holders: tuple[str, ...] = ()
    strangers: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Released:
    """Devices proven empty after ``confirm_release``: free again."""

    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A device that must not be used until it is ``Readmitted``."""

    device: str
    reason: str


@dataclass(frozen=True, slots=True)
class Readmitted:
    """A quarantined device proven clean and well: free again."""

    device: str


@dataclass(frozen=True, slots=True)
class DeviceRemark:
    """A fact about the devices to be said once, to the log and the dashboard."""

    text: str


DeviceEvent = Released | Quarantined | Readmitted | DeviceRemark


class Host(Protocol):
    """The event loop that devices live in. Both methods are called on its own thread alone."""

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Call ``action`` once, ``delay_s`` seconds from now."""

    def emit(self, event: DeviceEvent) -> None:
        """Take an event: from within a request, or from within an action."""


class NoHost:
    """A host for callers that want the list of devices alone."""

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Drop the action."""

    def emit(self, event: DeviceEvent) -> None:
        """Drop the event."""


class Devices(Protocol):
    """A kind of device: requests in, events out through the host; no request is made twice.

    Every method but ``open`` and ``close`` returns within a few milliseconds, whatever a driver does.
    """

    kind: Literal["cpu", "cuda"]

    def open(self, host: Host) -> tuple[Device, ...]:
        """Lease the devices this experiment may use and list them in a fixed order. Comes first; may take seconds.

        Raises DeviceError where none can be used.
        """

    def place(self, devices: Sequence[str]) -> Placement:
        """Return how a trial's ranks would use exactly these devices, whoever has them now. Raises DeviceError."""

    def take(self, devices: Sequence[str]) -> None:
        """Give exactly these devices to one trial. Raises DeviceError."""

    def drain(self, devices: Sequence[str]) -> None:
        """Note that nothing is left of the trial on these: until then none is readmitted, whatever a reading shows."""

    def confirm_release(self, devices: Sequence[str], limit_s: float) -> None:
        """Wait until each is really free: ``Released``; ``Quarantined`` with what holds it after ``limit_s``.

        The caller has made sure that the trial's process tree is empty. A wait that has begun continues as it was.
        """

    def keep_out(self, device: str, reason: str, rest_s: float = 0.0) -> None:
        """Keep a device out of use that the caller knows to be, for ``rest_s`` at least.

        ``Readmitted`` once it is clean and well.
        """

    def readings(self) -> tuple[Reading, ...]:
        """Return what each device looks like now, for the dashboard and ``gpusched gpus``."""

    def close(self) -> None:
        """Give the leases back. No event comes after that."""
