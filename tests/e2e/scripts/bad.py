"""One fault, chosen by the hyperparameter ``fault``."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import gpusched

trial = gpusched.init()
fault = trial.hparams.fault
if fault == "before the loop":
    raise RuntimeError("\x1b[31mthe data set is missing")
if fault == "silent":
    sys.exit(0)
if fault == "exit code":
    sys.exit(7)
if fault in ("GPU memory", "memory"):
    import torch

    if fault == "GPU memory":
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
    torch.empty(1 << 52, dtype=torch.uint8)  # more than any machine has
if fault == "grandchildren":
    code = (
        "import os, signal, time; os.setsid(); signal.signal(15, signal.SIG_IGN); time.sleep(600)"
    )
    for _ in range(4):
        subprocess.Popen([sys.executable, "-c", code], cwd=Path.cwd())
if fault == "ignores SIGTERM":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
for step in trial.steps():
    time.sleep(0.02)
    if fault in ("hangs", "ignores SIGTERM") and step == 1:
        time.sleep(600)
    if fault == "stopped" and step == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    if fault == "step 3 on rank 1" and step == 2 and trial.rank == 1:
        raise ValueError("a bad batch")
    if fault == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    score = {
        "nan": float("nan"),
        "inf": float("inf"),
        "text": "good",
        "nothing": None,
    }.get(fault, float(step))
    if fault == "other metric":
        trial.report(accuracy=1.0)
    elif fault == "10 MB":
        trial.report(score=1.0, **{f"m{i}": 1.0 for i in range(500_000)})
    else:
        trial.report(score=score)
