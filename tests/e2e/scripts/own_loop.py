"""A loop of the script's own that simply ends: no ``trial.steps()``, no word to gpusched after the last report.

The weight counts steps, so that a checkpoint tells which step it holds. ``peak``: the step with the best score;
``spoil``: the weights are changed after the last report; ``groups``: the process groups are taken down before the end.
"""

import time

import torch
import torch.distributed as dist

import gpusched

trial = gpusched.init()
hp = trial.hparams
model = torch.nn.Linear(1, 1, bias=False)
model.weight.data.zero_()
wrapped = trial.wrap(model)
trial.track(model=wrapped)
for step in range(trial.step, int(hp.steps)):
    time.sleep(float(hp.step_s))
    with torch.no_grad():
        model.weight += 1
    trial.report(score=1.0 - abs(step + 1 - hp.peak) / hp.steps)
if hp.get("spoil"):
    with torch.no_grad():
        model.weight.fill_(-1)
if hp.get("groups") and dist.is_initialized():
    dist.destroy_process_group()
