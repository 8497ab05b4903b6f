"""A state that counts its steps: whatever is lost or done twice between incarnations shows in the report."""

import time

import torch

import gpusched

trial = gpusched.init()
seen = torch.nn.Linear(1, 200_000, bias=False)
seen.weight.data.zero_()
trial.track(seen=seen)
for _ in trial.steps():
    time.sleep(float(trial.hparams.step_s))
    seen.weight.data.add_(1)
    assert seen.weight.min() == seen.weight.max(), "torn"
    trial.report(score=float(seen.weight[0, 0]))
