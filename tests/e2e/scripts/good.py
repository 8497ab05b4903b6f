"""Reports a score that grows with the step; says who it is."""

import time

import gpusched

trial = gpusched.init()
trial.track()  # the step is all there is
print(f"hello from rank {trial.rank} of {trial.world_size}", flush=True)
for step in trial.steps():
    time.sleep(float(trial.hparams.get("step_s", 0.02)))
    trial.report(score=trial.hparams.x + step)
print("done", flush=True)
