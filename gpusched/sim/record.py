"""What a recorded experiment tells: each trial's steps, and what launches, saves and releases took.

Read from the journal alone, events and commands in order. Nothing is replayed, so the journal may have been written by
another version of a policy.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpusched.core.decisions import Launch
from gpusched.core.events import (
    CheckpointSaved,
    DevicesReleased,
    Event,
    Outcome,
    Reported,
    TrialExited,
)
from gpusched.core.speed import Speed
from gpusched.errors import DamagedState
from gpusched.folder.paths import ExperimentPaths
from gpusched.journal.log import Journal
from gpusched.recipe.recipe import Recipe
from gpusched.sim.physics import Delays


@dataclass(frozen=True, slots=True)
class Step:
    """``metric`` is None where it was not finite, ``time_s`` where it is not known."""

    metric: float | None
    time_s: float | None
    atoms: int


@dataclass(slots=True)
class Recorded:
    """One trial. ``steps``: by number; a step that was trained twice counts as it was the second time."""

    trial: int
    hparams: Mapping[str, Any]
    steps: dict[int, Step] = field(default_factory=dict)
    outcome: Outcome | None = None


@dataclass(slots=True)
class _Incarnation:
    """A launch under observation."""

    number: int
    devices: tuple[str, ...]
    launched_at: float
    last_report_at: float | None = None
    reports: int = 0
    saved_since_report_s: float = 0.0


class Record:
    """The experiment in a folder. Raises DamagedState if it cannot be read."""

    def __init__(self, paths: ExperimentPaths) -> None:
        self.recipe = _recipe(paths)
        self.trials: dict[int, Recorded] = {}
        self.speed = Speed(self.recipe.scaling)
        self._measured: dict[str, list[float]] = {}
        self._running: dict[int, _Incarnation] = {}
        self._draining: dict[str, float] = {}
        journal = Journal.open(paths.journal)
        try:
            for entry in journal.entries():
                self._see(entry.event)
                for command in entry.commands:
                    if isinstance(command, Launch):
                        self._launched(command, entry.event.at)
        finally:
            journal.close()

    @property
    def delays(self) -> Delays:
        """The medians of what was measured; 0 for what never happened."""
        first = self._median("first_launch")
        return Delays(
            launch_s=first,
            resize_s=self._median("later_launch") if "later_launch" in self._measured else first,
            save_s=self._median("save"),
            exit_s=self._median("exit"),
            release_s=self._median("release"),
        )

    def _median(self, what: str) -> float:
        return max(0.0, statistics.median(self._measured.get(what, [0.0])))

    def _measure(self, what: str, value_s: float) -> None:
        self._measured.setdefault(what, []).append(value_s)

    # ------------------------------------------------------------ events

    def _launched(self, command: Launch, at: float) -> None:
        self.trials.setdefault(command.trial, Recorded(command.trial, command.hparams))
        self._running[command.trial] = _Incarnation(command.incarnation, command.devices, at)

    def _see(self, event: Event) -> None:
        match event:
            case Reported():
                self._reported(event)
            case CheckpointSaved():
                self._measure("save", event.save_s)
                running = self._of(event)
                if running is not None:
                    running.saved_since_report_s += event.save_s
            case TrialExited():
                self._exited(event)
            case DevicesReleased():
                for name in event.devices:
                    if name in self._draining:
                        self._measure("release", event.at - self._draining.pop(name))
            case _:
                pass

    def _of(self, event: Reported | CheckpointSaved | TrialExited) -> _Incarnation | None:
        running = self._running.get(event.trial)
        return running if running is not None and running.number == event.incarnation else None

    def _reported(self, event: Reported) -> None:
        running = self._of(event)
        if running is None:
            return
        trial, atoms = self.trials[event.trial], len(running.devices)
        before = trial.steps.get(event.step - 1)
        time_s = event.step_time_s
        if time_s is None and running.last_report_at is not None:
            time_s = event.at - running.last_report_at - running.saved_since_report_s
        if running.last_report_at is None and time_s is not None:
            kind = "first_launch" if running.number == 1 else "later_launch"
            self._measure(kind, event.at - running.launched_at - time_s)
        elif running.reports == 1 and time_s and before is not None and before.time_s:
            earlier = trial.steps.get(event.step - 2)
            if earlier is not None and earlier.time_s:
                self.speed.saw_resize(earlier.atoms, earlier.time_s, atoms, time_s)
        trial.steps[event.step] = Step(event.metric, time_s, atoms)
        running.last_report_at, running.saved_since_report_s = event.at, 0.0
        running.reports += 1

    def _exited(self, event: TrialExited) -> None:
        running = self._of(event)
        if running is None:
            return
        self.trials[event.trial].outcome = event.outcome
        if event.outcome == "yielded" and running.last_report_at is not None:
            waited_s = event.at - running.last_report_at - running.saved_since_report_s
            self._measure("exit", waited_s)
        for name in running.devices:
            self._draining[name] = event.at
        del self._running[event.trial]


def _recipe(paths: ExperimentPaths) -> Recipe:
    try:
        return Recipe.from_resolved(json.loads(paths.resolved.read_bytes()))
    except (OSError, ValueError, DamagedState) as error:
        raise DamagedState(f"{paths.resolved}: the recipe cannot be read ({error})") from None


def milestones_reached(paths: ExperimentPaths, steps: tuple[int, ...]) -> Iterator[float | None]:
    """When a first trial reported each of these steps; None where none did."""
    first: dict[int, float] = {}
    journal = Journal.open(paths.journal)
    try:
        for entry in journal.entries():
            event = entry.event
            if isinstance(event, Reported):
                first.setdefault(event.step, event.at)
    finally:
        journal.close()
    yield from (first.get(step) for step in steps)
