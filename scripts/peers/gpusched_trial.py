"""A trial of gpusched: a step takes 0.1 s / s(a), linear scaling, as in HyperSched, section 6."""

from __future__ import annotations

import sys
from pathlib import Path

import gpusched

sys.path.insert(0, str(Path(__file__).parent))
import score

trial = gpusched.init()
trial.track()  # the step is all there is
for _, value in score.steps(trial.hparams, 0.1 / trial.world_size, trial.step + 1):
    trial.report(score=value)
