"""A trial of gpusched: the task's training on as many slots as the trial has."""

from __future__ import annotations

import sys
from pathlib import Path

import gpusched

sys.path.insert(0, str(Path(__file__).parent))
import recipe
import task

trial = gpusched.init(recipe.DEFAULTS)
report = trial.report  # the task may put another in its place
task.train(trial.hparams, lambda _, score: report(score=score), trial)
