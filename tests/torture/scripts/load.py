"""Trains nothing: reports what follows from configuration and step alone. Imports nothing large: it starts at once.

``step_s``: how long a step takes. What a report says can be computed again by whoever knows ``x`` and the step.
"""

import time

import gpusched

trial = gpusched.init()
trial.track()  # the step is all there is
hp = trial.hparams
for step in trial.steps():
    time.sleep(float(hp.step_s))
    trial.report(score=hp.x * (1.0 - 0.97 ** (step + 1)))
