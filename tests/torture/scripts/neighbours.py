"""Eight trials; number 0 behaves badly in the way its configuration says, the others train as ``load.py`` does."""

import os
import time
from pathlib import Path

import gpusched

trial = gpusched.init()
trial.track()  # the step is all there is
hp = trial.hparams
bad = trial.id == 0
held = []
for step in trial.steps():
    time.sleep(float(hp.step_s))
    score = hp.x * (1.0 - 0.97 ** (step + 1))
    if bad and step >= 2:
        if hp.fault == "nan":
            score = float("nan")
        elif hp.fault == "hang":
            time.sleep(3600)
        elif hp.fault == "flood":
            block = b"x" * ((1 << 20) - 1) + b"\n"
            for _ in range(int(hp.size_mib)):
                os.write(1, block)
        elif hp.fault == "memory":
            held.append(bytearray(os.urandom(1 << 20) * (int(hp.size_mib) // 16)))
        elif hp.fault == "segments":
            name = Path(f"/dev/shm/torch_{os.getpid()}_{os.getpid()}_{step}")
            name.write_bytes(b"x" * (1 << 20))
            if step == 8:
                os.kill(os.getpid(), 9)
        elif hp.fault == "forks" and os.fork() == 0:
            time.sleep(3600)
    trial.report(score=score)
