"""Keeps a number in its checkpoint that must equal the steps it has made, over all incarnations; refuses any option."""

import argparse
import time

import torch

import gpusched

argparse.ArgumentParser().parse_args()
trial = gpusched.init()
model = torch.nn.Linear(1, 1)
with torch.no_grad():
    model.weight.zero_()
trial.track(model=model)
for step in trial.steps():
    time.sleep(float(trial.hparams.get("step_s", 0.05)))
    with torch.no_grad():
        model.weight += 1
    count = int(model.weight.item())
    assert count == trial.step + 1 == step + 1, (count, trial.step, step)
    print(trial.hparams.get("says", ""), flush=True)
    trial.report(score=trial.hparams.x + count * trial.hparams.get("sign", 1))
