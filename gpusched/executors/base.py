"""The seam between the driver and the machine: ``Executor``.

An executor carries out commands and turns what happens into events. The local executor does so with processes, the
simulated one with a heap of future events; the driver and the core cannot tell them apart. ``Helper`` is the part of
the seam that a sampler's process shares with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gpusched.core.events import Event, Reported
from gpusched.devices.base import Device

FOREVER = float("inf")


@dataclass(frozen=True, slots=True)
class LiveTrial:
    """An incarnation that the journal says should have processes: for ``Executor.reconcile``."""

    trial: int
    incarnation: int
    devices: tuple[str, ...]
    last_seq: int
    #: Step of the newest checkpoint that the journal knows; 0: none.
    saved_step: int = 0


class Helper(Protocol):
    """Carries out commands and tells what came of them."""

    def execute(self, command: Any) -> None:
        """Begin to carry out a command; never waits for its outcome. Twice is as good as once."""

    def poll(self, until: float) -> Sequence[Event]:
        """Return what happened, in order, each event once. ``until``: the time now, as nothing is waited for."""

    def close(self) -> None:
        """Let go of sockets and helpers. Does not stop trials."""


class Executor(Helper, Protocol):
    """Carries out commands, reports what happens. Its clock is the experiment's clock."""

    def now(self) -> float:
        """Return the seconds since the experiment began; never decreasing."""

    def inventory(self) -> tuple[Device, ...]:
        """List the devices there are, in a fixed order."""

    def acknowledge(self, report: Reported) -> None:
        """Answer a report: go on, or what the ``Yield``/``Save`` executed for its trial says."""

    def poll(self, until: float) -> Sequence[Event]:
        """Wait until something happened or the clock says ``until``; return what happened, in order.

        An event is returned once. Within a trial they come in the order in which they happened.
        """

    def reconcile(self, live: Sequence[LiveTrial]) -> Sequence[Event]:
        """Find out, after a restart of the daemon, what happened to these trials while no daemon was there.

        Devices that cannot be used now come first; of each trial the reports that are in its own file but not in the
        journal, then a newer checkpoint on disk, if there is one; an incarnation that is gone yields a
        ``TrialExited``; one that still runs is adopted and yields nothing more.
        """
