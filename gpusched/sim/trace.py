"""Workload ``trace:DIR``: a recorded experiment trained again, under any policy (HyperDrive, Middleware'17, 7.1).

Its curves and step times are replayed; its configurations come in an order shuffled by the seed. A recorded step time
is converted to one atom by the recorded experiment's own scaling. A trial's script ends where its record ends: nothing
is made up beyond what was measured, so record with ``policy: fifo`` (which trains every trial to R) to compare
policies fairly.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any, Literal

from gpusched.errors import InputError
from gpusched.folder.paths import ExperimentPaths
from gpusched.sim.physics import Delays
from gpusched.sim.record import Record, Recorded
from gpusched.sim.workload import Curve
from gpusched.space.forms import NAMES

KEY = "recorded"


class Trace:
    """The trials of the experiment in ``folder``.

    Raises InputError if there is no experiment or no report in it, DamagedState if it cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self.name = f"trace:{folder}"
        paths = ExperimentPaths(folder)
        if not paths.is_experiment:
            raise InputError(f"{self.name}: there is no experiment in {folder} (no journal.db)")
        record = Record(paths)
        self.metric = record.recipe.metric
        self.mode: Literal["max", "min"] = record.recipe.mode
        self.delays: Delays = record.delays
        self._speed = record.speed
        self._trials = {
            trial.trial: trial
            for trial in record.trials.values()
            if trial.steps or trial.outcome == "failed"
        }
        if not any(trial.steps for trial in self._trials.values()):
            raise InputError(
                f"{self.name}: no trial of this experiment has reported anything, so there is nothing to replay"
            )
        self.longest = max(max(trial.steps, default=0) for trial in self._trials.values())
        options = record.recipe.policy_options
        kept = {key: options[key] for key in ("r", "eta") if options.get(key) is not None}
        self.defaults: Mapping[str, Any] = {**kept, "R": options.get("R") or self.longest}
        self._usual_step_s = _usual_step_s(self)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader should know of this record."""
        wanted = min(self.defaults["R"], self.longest)
        short = sum(max(t.steps, default=0) < wanted for t in self._trials.values())
        if not short:
            return ()
        return (
            f"{short} of {len(self._trials)} recorded trials end before step {wanted}; "
            "simulated, their scripts end there, too",
        )

    def space(self, seed: int) -> Mapping[str, Any]:
        order = sorted(self._trials)
        Random(f"{seed}/order").shuffle(order)
        return {KEY: {"grid": [_option(self._trials[number]) for number in order]}}

    def curve(self, trial: int, hparams: Mapping[str, Any], seed: int) -> Curve:
        recorded = self._trials[int(hparams[KEY]["trial"])]
        metrics, times, value, time_s = [], [], float("nan"), self._usual_step_s
        for step in range(1, max(recorded.steps, default=0) + 1):
            found = recorded.steps.get(step)
            if found is not None:
                value = float("nan") if found.metric is None else found.metric
                if found.time_s is not None:
                    time_s = found.time_s * self._speed.s(found.atoms)
            metrics.append(value)
            times.append(max(0.0, time_s))
        return Curve(
            lambda step: metrics[step - 1],
            lambda step: times[step - 1] if step <= len(times) else time_s,
            len(metrics),
            "failed" if recorded.outcome == "failed" else "finished",
        )


def _option(recorded: Recorded) -> dict[str, Any]:
    """A recorded configuration as a value of the grid; one level lower if a key of it reads like a form of a space."""
    hparams = dict(recorded.hparams)
    if "trial" in hparams or any(name in hparams for name in NAMES):
        return {"trial": recorded.trial, "hparams": hparams}
    return {"trial": recorded.trial, **hparams}


def _usual_step_s(trace: Trace) -> float:
    """The median step time on one atom, for steps whose time is not known."""
    known = [
        step.time_s * trace._speed.s(step.atoms)
        for trial in trace._trials.values()
        for step in trial.steps.values()
        if step.time_s is not None
    ]
    return statistics.median(known) if known else 1.0
