"""An executor for tests of the driver, and what a journal looks like from outside."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpusched.core.commands import Command
from gpusched.core.events import Event, Reported
from gpusched.devices.base import Device
from gpusched.executors.base import LiveTrial
from gpusched.journal.rows import commands_from
from tests.events import reported


@dataclass
class Notebook:
    """An executor that writes down what it is told and says what it was given to say."""

    to_say: list[list[Event]] = field(default_factory=list)
    found: list[Event] = field(default_factory=list)
    told: list[object] = field(default_factory=list)
    waited_until: list[float] = field(default_factory=list)
    live: list[LiveTrial] = field(default_factory=list)
    clock: float = 0.0

    def now(self) -> float:
        return self.clock

    def inventory(self) -> tuple[Device, ...]:
        return ()

    def execute(self, command: Command) -> None:
        self.told.append(command)

    def acknowledge(self, report: Reported) -> None:
        self.told.append(("go on", report.trial, report.seq))

    def poll(self, until: float) -> Sequence[Event]:
        self.waited_until.append(until)
        if self.to_say:
            events = self.to_say.pop(0)
            self.clock = max([self.clock, *(event.at for event in events)])
            return events
        assert until < float("inf"), "it would wait for ever"
        self.clock = max(self.clock, until)
        return []

    def reconcile(self, live: Sequence[LiveTrial]) -> Sequence[Event]:
        self.live = list(live)
        return self.found

    def close(self) -> None:
        pass


def on_disk(path: Path) -> list[tuple[str, list[Command]]]:
    """Return what another reader finds in the journal now: kinds of events, and their commands."""
    other = sqlite3.connect(path)
    rows = other.execute("SELECT kind, commands FROM events ORDER BY seq").fetchall()
    other.close()
    return [(kind, commands_from(commands)) for kind, commands in rows]


def report(trial: int = 0, seq: int = 2, *, at: float = 2.0, metric: float = 0.4) -> Reported:
    return reported(
        at=at, trial=trial, incarnation=1, seq=seq, step=seq, metric=metric, step_time_s=1.0
    )
