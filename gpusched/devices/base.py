"""The seam to a kind of device: which devices exist, what a rank needs to use one, whether one is really free again.

What the core calls a *device* is one atom: a CPU slot, a GPU, or a bundle of ``gpus_per_atom`` GPUs under one name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol


@dataclass(frozen=True, slots=True)
class Device:
    """One atom. ``island`` numbers groups of devices that talk to each other fast."""

    id: str
    label: str
    island: int = 0
    usable: bool = True
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class Placement:
    """How the ranks of a trial use its devices; one entry of ``rank_env`` and ``rank_cpus`` a rank."""

    kind: Literal["cpu", "cuda"]
    rank_env: tuple[Mapping[str, str], ...]
    rank_cpus: tuple[tuple[int, ...], ...] | None
    threads_per_rank: int

    @property
    def ranks(self) -> int:
        return len(self.rank_env)


@dataclass(frozen=True, slots=True)
class Release:
    """Whether a device is free again; if not, who or what holds it, in words."""

    device: str
    released: bool
    holder: str = ""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a device looks like now, for people. None: not known for this kind of device.

    ``history``: its utilisation over the last minute, evenly spaced, the oldest first.
    """

    device: str
    label: str
    utilisation: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    holders: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    history: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Fault:
    """A device that must not be used any more, and why. ``passing``: that may end by itself (a stranger leaves)."""

    device: str
    reason: str
    passing: bool = False


class Devices(Protocol):
    """One kind of device. No method may block for longer than a few milliseconds."""

    kind: Literal["cpu", "cuda"]

    @property
    def notes(self) -> Sequence[str]:
        """What must be said once, the oldest first; only ever grows."""
        ...

    def check_sizes(self, atoms_max: int) -> None:
        """Raise DeviceError if a trial of so many atoms cannot be served (MIG slices). After ``inventory``."""
        ...

    def inventory(self) -> tuple[Device, ...]:
        """The devices this experiment may use, in a fixed order. Takes their leases.

        Raises DeviceError where none can be used.
        """
        ...

    def placement(self, devices: Sequence[str]) -> Placement:
        """How to use exactly these devices together."""
        ...

    def released(self, devices: Sequence[str]) -> tuple[Release, ...]:
        """Asked after the trial's process tree is empty, again and again until all are released."""
        ...

    def faults(self) -> tuple[Fault, ...]:
        """Devices that went bad since the last call.

        Those that nobody is on first, so that who has to leave another one is not sent there.
        """
        ...

    def recovered(self) -> tuple[str, ...]:
        """Devices that were out of use for a passing reason that has passed, proven clean: FREE again."""
        ...

    def readmit(self, device: str, *, anew: bool = False) -> Release:
        """Asked again and again when somebody wants a quarantined device back; released means: FREE again.

        ``anew``: this is the first time that this person asks; what the device did before counts no more.
        """
        ...

    def keep_out(self, device: str, reason: str) -> None:
        """It was out of use for a passing reason when the last daemon ended: ``recovered`` tells when that is over."""
        ...

    def strangers(self, devices: Sequence[str]) -> tuple[str, ...]:
        """Other people's processes seen on these devices since they were last given out, in words."""
        ...

    def blamed(self, devices: Sequence[str]) -> str | None:
        """Asked again and again after a trial failed on these: why one of them is to blame.

        Empty: none is. None: that is not known yet.
        """
        ...

    def readings(self) -> tuple[Reading, ...]:
        """For the dashboard and ``gpusched gpus``."""
        ...

    def close(self) -> None:
        """Give the leases back."""
        ...
