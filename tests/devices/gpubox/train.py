"""A trial that sits on its GPU: its first lines say so in the box, and fail where the driver has not let go of another.

It fails, too, if the GPU is lost or full, or no new process can use it.
"""

import os
import time
from contextlib import suppress
from pathlib import Path

import torch

import gpusched

box = Path(os.environ["GPU_BOX"])
visible = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
local = int(os.environ.get("LOCAL_RANK", "0"))
seat = box / visible[local]
others = [file.name for file in seat.glob("[0-9]*")]  # the driver has not let go of these yet
if others:
    seat.with_name("collision").write_text(f"{seat.name}: {others}")
    raise RuntimeError(f"{seat.name} is in use by {others}")
if (seat / "broken").exists():
    raise RuntimeError((seat / "broken").read_text())
(seat / str(os.getpid())).touch()
if int(os.environ.get("WORLD_SIZE", "1")) > 1:  # the GPUs are scripted: nccl would want real ones
    torch.distributed.init_process_group("gloo")
torch.backends.cuda.is_built = lambda: False  # of a torch for CUDA too: these GPUs are scripted
trial = gpusched.init()
with suppress(AssertionError, RuntimeError):  # torch finds none of them, once it may touch CUDA
    torch.cuda.init()
(box / f"rank-{os.getpid()}").write_text(os.environ["GPUSCHED_INCARNATION"])
trial.track(model=torch.nn.Linear(1, 1))
for step in trial.steps():
    time.sleep(0.05)
    for sign in ("lost", "full"):
        if (seat / sign).exists():
            raise RuntimeError((seat / sign).read_text())
    trial.report(score=float(step))
