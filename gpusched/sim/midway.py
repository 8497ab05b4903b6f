"""A machine in the middle of a search: what a recorded search had running at an instant, to go on in virtual time."""

from __future__ import annotations

import math

from gpusched.core.allocation import DeviceState
from gpusched.core.decisions import Forecast, KeepBest
from gpusched.core.experiment import Experiment
from gpusched.core.state import WATCH, State
from gpusched.core.trial import TrialRecord, TrialState
from gpusched.devices.base import Device
from gpusched.driver.loop import Driver, Helper
from gpusched.sim.executor import SimExecutor
from gpusched.sim.machine import Run, Story
from gpusched.sim.physics import NEVER_STEP, Delays
from gpusched.sim.workload import Workload


class Midway(SimExecutor):
    """The machine that the state describes. A trial that trains is as far into its next step as time has passed."""

    def __init__(self, state: State, workload: Workload, delays: Delays) -> None:
        slots = state.devices.slots.values()
        devices = [Device(slot.id, slot.id, slot.island) for slot in slots]
        super().__init__(workload, devices, scaling=state.speed.s, delays=delays)
        self._now = state.now
        draining = [slot.id for slot in slots if slot.state is DeviceState.DRAINING]
        self._pool.soil(draining, self._now + delays.release_s)
        for slot in slots:
            if slot.state is DeviceState.QUARANTINED:
                self._pool.break_down(slot.id)
        if state.best is not None:
            self.kept = KeepBest(state.best.trial, state.best.step, state.best.metric)
        for trial in state.trials.values():
            self._take_over(trial)

    def _take_over(self, trial: TrialRecord) -> None:
        curve = self.workload.curve(trial.id, trial.hparams, self._seed)
        story = self.stories[trial.id] = Story(trial.id, curve, NEVER_STEP)
        story.seq, story.saved = trial.seq, (trial.saved_step,)
        story.log = [(0, 0, 0.0)] * trial.seq
        self._best_score = max(self._best_score, trial.best_score)
        if not trial.has_processes:
            return
        atoms = max(1, trial.atoms)  # one that has lost its devices is told to die
        speedup = self._speedup.setdefault(atoms, self._scaling(atoms))
        run = story.run = Run(story, trial.incarnation, trial.devices, self._now, speedup)
        self._pool.occupy(run, self._now)
        if not trial.steps_of_incarnation:
            up_at = trial.launched_at + self._delays.launch(trial.incarnation, trial.atoms)
            up_at = max(self._now, up_at)
            if trial.up_at is None:
                self._push(up_at, "up", run)
            self._go_on(run, up_at)
            return
        run.step = trial.step
        if trial.state is TrialState.YIELDING and trial.after is not None:
            self._leave(run, "yielded", self._now + self._delays.save_s, saved=trial.after.save)
            return
        step_s = curve.step_time_s(run.step + 1) / speedup
        since = trial.last_report_at if trial.last_report_at is not None else self._now
        self._go_on(run, max(since, self._now - step_s))


def go_on(
    search: Experiment,
    workload: Workload,
    delays: Delays,
    forecaster: Helper | None = None,
    end_s: float = math.inf,
) -> None:
    """Run a search from where its state is to its end, or to ``end_s``."""
    state = search.state
    state.timers.pop(WATCH, None)  # no trial hangs here
    machine = Midway(state, workload, delays)
    driver = Driver(search, machine, helpers={Forecast: forecaster} if forecaster else {})
    driver.resume(epoch=0)
    while not search.finished and machine.now() < end_s:
        driver.turn(end_s)
