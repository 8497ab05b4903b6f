"""A trial of ``fidelity.py``: sleeps for as long as a step takes on its atoms, and reports Score(k) of HyperSched."""

import time

import torch  # noqa: F401  (so that it is imported before the first launch, not in the midst of the first resize)

import gpusched
from gpusched.sim.workload import Synthetic

trial = gpusched.init()
trial.track()  # the step is all there is
curve = Synthetic().curve(trial.id, trial.hparams, 0)
step_s = trial.hparams.step_s / trial.world_size
for _ in trial.steps():
    time.sleep(step_s)
    trial.report(score=curve.metric(trial.step + 1))
