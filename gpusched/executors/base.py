"""The seam between the driver and the machine: ``Executor``, and ``LiveExecutor``, what a daemon needs beside it.

An executor carries out commands and turns what happens into events. The local executor does so with processes, the
simulated one with a heap of future events; the driver and the core cannot tell them apart.

A live executor is a package beside ``local/`` with a file ``executor.py`` that has ``make(setting) -> LiveExecutor``; a
daemon finds it by the package's name. The control socket is the daemon's: an executor registers what its trials speak
as (``hub.py``) and waits in ``hub.turn``, so that signals and clients end its ``poll``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from gpusched.core.commands import Command
from gpusched.core.events import Event, Reported
from gpusched.devices.base import Device, Reading
from gpusched.executors.hub import Hub
from gpusched.folder.paths import ExperimentPaths
from gpusched.recipe.recipe import Recipe

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


class Executor(Protocol):
    """Carries out commands, reports what happens. Its clock is the experiment's clock."""

    def now(self) -> float:
        """Return the seconds since the experiment began; never decreasing."""
        ...

    def inventory(self) -> tuple[Device, ...]:
        """List the devices there are, in a fixed order."""
        ...

    def execute(self, command: Command) -> None:
        """Begin to carry out a command; never waits for its outcome. Twice is as good as once."""
        ...

    def acknowledge(self, report: Reported) -> None:
        """Answer a report: go on, or what the ``Yield``/``Save`` executed for its trial says."""
        ...

    def poll(self, until: float) -> Sequence[Event]:
        """Wait until something happened or the clock says ``until``; return what happened, in order.

        An event is returned once. Within a trial they come in the order in which they happened.
        """
        ...

    def reconcile(self, live: Sequence[LiveTrial]) -> Sequence[Event]:
        """Find out, after a restart of the daemon, what happened to these trials while no daemon was there.

        Devices that cannot be used now come first; of each trial the reports that are in its own file but not in the
        journal, then a newer checkpoint on disk, if there is one; an incarnation that is gone yields a
        ``TrialExited``; one that still runs is adopted and yields nothing more.
        """
        ...

    def close(self) -> None:
        """Let go of sockets and helpers. Does not stop trials."""
        ...


class LiveExecutor(Executor, Protocol):
    """An executor on devices that exist."""

    def keep_out(self, device: str, reason: str) -> None:
        """Take up a quarantine that an earlier daemon ended with; it ends when the device is clean and well."""
        ...

    def readings(self) -> Sequence[Reading]:
        """Return what each device looks like now, for people."""
        ...


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
    #: Number of atoms that a trial's last report came from; None: not known.
    atoms_of: Callable[[int], int | None] = lambda _trial: None
    #: Gives back reserved room on a full disk; False: all is given.
    spare: Callable[[], bool] = lambda: False
    #: This machine's name in a cluster; empty: the daemon is on this machine.
    node: str = ""
    #: The experiment's devices where it goes on; empty at its beginning.
    devices: tuple[str, ...] = ()


def make(name: str, setting: Setting) -> LiveExecutor:
    """Make the executor of a package: one beside ``local/`` by its name, one elsewhere by its dotted name."""
    package = name if "." in name else f"gpusched.executors.{name}"
    made: LiveExecutor = importlib.import_module(f"{package}.executor").make(setting)
    return made
