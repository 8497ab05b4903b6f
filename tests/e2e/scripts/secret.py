"""Goes on for ever; its environment must hold what the recipe says."""

import os
import time

import gpusched

trial = gpusched.init()
trial.track()  # the step is all there is
for step in trial.steps():
    time.sleep(0.02)
    trial.report(score=float(os.environ["GT_SECRET"] == "open sesame") + step)
