"""A loop of the script's own that simply ends: no ``trial.steps()``, no word to gpusched after the last report.

The weight counts steps, so that a checkpoint tells which step it holds. ``peak``: the step with the best score;
``spoil``: it trains on after the last report; ``slow``: the first save takes so long that no second one is due.
"""

import os
import time
from pathlib import Path

import torch

import gpusched

CHECKPOINTS = Path(os.environ["GPUSCHED_TRIAL_DIR"]).parent / "checkpoints"


class Slow:
    """A state that takes long to copy."""

    def state_dict(self):
        time.sleep(0.2)
        return {}

    def load_state_dict(self, state):
        """Have nothing to put back."""


trial = gpusched.init()
hp = trial.hparams
model = torch.nn.Linear(1, 1, bias=False)
model.weight.data.zero_()
wrapped = trial.wrap(model)
opt = torch.optim.SGD(model.parameters(), lr=1.0) if hp.get("spoil") else None
slow = {"slow": Slow()} if hp.get("slow") else {}
trial.track(model=wrapped, **slow, **({"opt": opt} if opt else {}))
for step in range(trial.step, int(hp.steps)):
    time.sleep(float(hp.step_s))
    with torch.no_grad():
        model.weight += 1
    trial.report(score=1.0 - abs(step + 1 - hp.peak) / hp.steps)
    while slow and not any(CHECKPOINTS.glob("step-*")):
        time.sleep(0.01)
if opt:
    model.weight.grad = torch.ones_like(model.weight)
    opt.step()
