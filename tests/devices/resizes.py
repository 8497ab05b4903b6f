"""One trial that walks through sizes on scripted GPUs, with pauses and deaths of its own and of daemons, from a seed.

What runs is the product's own but for the processes (``whole.py``); a daemon that dies is followed by one that replays
the events, finds the devices again, and reconciles. Every launch's first touch of a device comes after its release.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from gpusched.core.commands import Command, Launch
from gpusched.core.events import (
    DaemonResumed,
    DevicesReleased,
    Event,
    QuarantineChanged,
    TrialExited,
)
from gpusched.daemon.resuming import unusable
from gpusched.driver.loop import replay
from gpusched.errors import DeviceError
from gpusched.journal.rows import Entry
from gpusched.sim.physics import Delays
from gpusched.sim.setup import experiment, recipe
from tests.devices.whole import DEADLINE_S, Whole
from tests.faults import Faults, FaultySetup

WALK = Path(__file__).with_name("walk.py")
DEATH = 0.04
"""Chance of the daemon's death in each of its turns."""


class Resizes(Whole):
    """One trial, from its seed."""

    def __init__(self, seed: int, folder: Path) -> None:
        super().__init__(seed, folder)
        rng = random.Random(f"resizes {seed}")
        self.policy = "walk"
        for gpu in self.driver.gpus:  # more than that might be left of a trial of the daemon before
            gpu.idle = min(gpu.idle, 4 << 20)
        self.setup = FaultySetup(
            policy=f"{WALK}:Walk",
            options={"R": 400, "most": 4, "seed": seed + 1},
            workload="synthetic:0.4",
            deadline_s=DEADLINE_S,
            seed=seed,
            max_trials=1,
            max_failures=1000,
            delays=Delays(launch_s=rng.uniform(0, 0.3), save_s=0.05, exit_s=rng.uniform(0, 0.3)),
            faults=Faults(crash=0.0, lost=rng.choice([0.0, 0.05])),
        )
        self.entries: list[Entry] = []
        self.proven: set[str] = set()
        self.size = 0

    def _observe(self, event: Event, commands: Sequence[Command]) -> None:
        self.entries.append(Entry(len(self.entries) + 1, event, list(commands)))
        match event:
            case DevicesReleased():
                self.proven.update(event.devices)
            case QuarantineChanged(reason=""):
                self.proven.add(event.device)
            case QuarantineChanged():
                self.proven.discard(event.device)
            case DaemonResumed():
                self.proven -= set(event.unusable)
            case TrialExited():
                self.counts["deaths"] += event.outcome == "lost"
            case _:
                pass
        for command in commands:
            if isinstance(command, Launch):
                unproven = set(command.devices) - self.proven
                assert not unproven, f"launch {command.incarnation} on {unproven}"
                self.proven -= set(command.devices)
                self.counts["resizes"] += self.size not in (0, len(command.devices))
                self.size = len(command.devices)
        super()._observe(event, commands)

    def _started(self, inventory: Sequence[object]) -> Event:
        event = super()._started(inventory)
        self.proven = set(event.devices) - set(event.unusable)
        return event

    def _turn_of_the_driver(self) -> None:
        super()._turn_of_the_driver()
        if not self.experiment.state.finished and self.rng.random() < DEATH:
            self._die()
            self._resume()

    def _die(self) -> None:
        self.devices.close()
        self.counts["daemons"] += 1
        self.executor.live_on(self.rng.choice([0.0, 0.3, 3.0]))

    def _resume(self) -> None:
        """As a daemon that takes over."""
        executor, names = self.executor, list(self.atoms)
        self.experiment = experiment(self.setup, recipe(self.setup))
        replay(self.experiment, self.entries)
        while True:
            try:
                self.devices = self.find(names)
                executor.have(self.devices)
                inventory = self.devices.open(self)
                break
            except DeviceError:  # none can be used now: somebody mends them, and resumes later
                self.devices.close()
                self._leave()
                self._heal(everything=True)
                executor.catch_up()
                executor.live_on(5.0)
        executor.catch_up()
        slots = self.experiment.state.devices.slots.values()
        for slot in slots:
            if slot.reason:
                self.devices.keep_out(slot.id, slot.reason)
        bad = unusable(self.experiment.state, inventory)
        self.drained_at.clear()
        self.clean_since.clear()
        self.loop = self._driver_of(self.experiment)
        self.loop.resume(self.counts["daemons"] + 1, unusable=bad)
