"""One misuse of the worker API, chosen by the hyperparameter ``fault``; lines to be named end in ``# here``."""

import time

import torch

import gpusched

trial = gpusched.init()
fault = trial.hparams.fault
model = trial.wrap(torch.nn.Linear(2, 2))
if fault == "lambda":
    trial.track(model=model, schedule=lambda step: 0.1)  # here: lambda
trial.track(model=model)
for step in trial.steps():
    time.sleep(float(trial.hparams.get("step_s", 0)))
    if fault == "fewer" and step == 1 and trial.rank == 0:
        break
    if fault == "one rank":
        if trial.rank == 0:
            trial.report(score=1.0)  # here: one rank
        continue
    trial.report(score=1.0)  # here: fewer
