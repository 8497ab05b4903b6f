"""Workload ``trace:DIR``: a recorded experiment trained again, under any policy (HyperDrive, Middleware'17, 7.1).

Its curves and step times are replayed; its configurations come in an order shuffled by the seed. A recorded step time
is converted to one atom by the recorded experiment's own scaling. A trial's script ends where its record ends: nothing
is made up beyond what was measured, so record with ``policy: fifo`` (which trains every trial to R) to compare
policies fairly.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from gpusched.core.speed import Speed
from gpusched.driver.assemble import read_recipe
from gpusched.errors import InputError
from gpusched.folder.paths import ExperimentPaths
from gpusched.journal import timeline
from gpusched.journal.timeline import ReportedStep, Timeline, TrialTimeline
from gpusched.recipe.recipe import Recipe
from gpusched.sim.physics import Delays, SimulatedCurve
from gpusched.space.forms import NAMES

KEY = "recorded"


class Trace:
    """The trials of the experiment in ``folder``.

    Raises InputError for a folder without an experiment or without a report, DamagedState if it cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self.name = f"trace:{folder}"
        paths = ExperimentPaths(folder)
        if not paths.is_experiment:
            raise InputError(f"{self.name}: {folder} is not a search (it has no journal.db)")
        record = Record.of(paths)
        self.metric = record.recipe.metric
        self.mode: Literal["max", "min"] = record.recipe.mode
        self.delays: Delays = record.delays
        self._speed = record.speed
        self._trials = {
            trial.id: trial
            for trial in record.trials.values()
            if trial.curve or trial.outcome == "failed"
        }
        lengths = [_length(trial) for trial in self._trials.values()]
        self.longest = max(lengths, default=0)
        if not self.longest:
            raise InputError(
                f"{self.name}: no trial of this search has reported anything, so nothing can be replayed"
            )
        options = record.recipe.policy_options
        kept = {key: options[key] for key in ("r", "eta") if options.get(key) is not None}
        self.defaults: Mapping[str, Any] = {**kept, "R": options.get("R") or self.longest}
        #: The median step time on one atom, for steps whose time is not known.
        known = [
            step.time_s * self._speed.s(len(incarnation.devices))
            for trial in self._trials.values()
            for incarnation, step in trial.steps()
            if step.time_s is not None
        ]
        self._usual_step_s = statistics.median(known) if known else 1.0

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks about this record."""
        wanted = min(self.defaults["R"], self.longest)
        short = sum(_length(trial) < wanted for trial in self._trials.values())
        if not short:
            return ()
        return (
            f"{short} of {len(self._trials)} recorded trials end before step {wanted}; "
            "simulated, their scripts end there, too",
        )

    def space(self, seed: int) -> Mapping[str, Any]:
        return {KEY: {"choice": [_option(trial) for _, trial in sorted(self._trials.items())]}}

    def curve(self, trial: int, hparams: Mapping[str, Any], seed: int) -> SimulatedCurve:
        recorded = self._trials[int(hparams[KEY]["trial"])]
        steps = _steps(recorded)
        metrics, times, value, time_s = [], [], math.nan, self._usual_step_s
        for number in range(1, _length(recorded) + 1):
            if number in steps:
                step, atoms = steps[number]
                value = math.nan if step.metric is None else step.metric
                if step.time_s is not None:
                    time_s = step.time_s * self._speed.s(atoms)
            metrics.append(value)
            times.append(max(0.0, time_s))
        return SimulatedCurve(
            lambda step: metrics[step - 1],
            lambda step: times[step - 1] if step <= len(times) else time_s,
            len(metrics),
            "failed" if recorded.outcome == "failed" else "finished",
        )


def _option(recorded: TrialTimeline) -> dict[str, Any]:
    """A recorded configuration as a choice; one level lower if a key of it reads like a form of a space."""
    hparams = dict(recorded.hparams)
    if "trial" in hparams or any(name in hparams for name in NAMES):
        return {"trial": recorded.id, "hparams": hparams}
    return {"trial": recorded.id, **hparams}


Steps = dict[int, tuple[ReportedStep, int]]
"""A trial's steps by number, each with the atoms that it was trained on."""


def _steps(recorded: TrialTimeline) -> Steps:
    """Return the steps; one that was trained twice counts as it was the second time."""
    return {step.report.step: (step, len(of.devices)) for of, step in recorded.steps()}


def _length(recorded: TrialTimeline) -> int:
    return max((step for _, step, _ in recorded.curve), default=0)


class Record:
    """Record of an experiment, from its journal: each trial's steps, and how long launches, saves and releases took.

    ``delays``: the medians of what was measured; 0 for what never happened.
    """

    def __init__(self, recipe: Recipe, told: Timeline) -> None:
        self.recipe, self.trials = recipe, told.trials
        self.speed = Speed(recipe.scaling)
        self._first_s, self._later_s, self._exits_s = list[float](), list[float](), list[float]()
        for trial in told.trials.values():
            self._learn(trial)
        self.delays = Delays(
            launch_s=_median(self._first_s),
            resize_s=_median(self._later_s or self._first_s),
            save_s=_median(told.saves_s),
            exit_s=_median(self._exits_s),
            release_s=_median(told.releases_s),
        )

    @classmethod
    def of(cls, paths: ExperimentPaths) -> Record:
        """Read the experiment in a folder. Raises DamagedState."""
        return cls(read_recipe(paths), timeline.read(paths.journal))

    def _learn(self, trial: TrialTimeline) -> None:
        known: Steps = {}
        for incarnation in trial.incarnations:
            steps = incarnation.steps
            for place, step in enumerate(steps):
                known[step.report.step] = step, len(incarnation.devices)
                if place == 1:  # the first step of an incarnation warms up
                    self._compare(known, step.report.step)
            if steps and steps[0].time_s is not None:
                delays = self._first_s if incarnation.number == 1 else self._later_s
                delays.append(steps[0].at - incarnation.launched_at - steps[0].time_s)
            if steps and incarnation.outcome == "yielded" and incarnation.exited_at is not None:
                waited_s = incarnation.exited_at - steps[-1].at
                self._exits_s.append(waited_s - incarnation.saved_since_report_s)

    def _compare(self, known: Steps, step: int) -> None:
        """Compare the second step after a resize with the last one before."""
        if step - 1 not in known or step - 2 not in known:
            return
        (now, atoms), (before, atoms_before) = known[step], known[step - 2]
        if now.time_s and before.time_s:
            self.speed.saw_resize(atoms_before, before.time_s, atoms, now.time_s)


def _median(values_s: list[float]) -> float:
    return max(0.0, statistics.median(values_s)) if values_s else 0.0
