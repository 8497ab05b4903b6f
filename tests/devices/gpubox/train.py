"""A trial that sits on its GPU: it says so in the box, and fails if anybody else is there, or if the GPU is lost.

``fails``: what it says when it runs out of memory, in its second step. ``imports_s``: time it takes before it touches
CUDA. ``eager``: it touches the GPU before it may.
"""

import json
import os
import time
from contextlib import suppress
from pathlib import Path

import torch

import gpusched


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


if int(os.environ.get("WORLD_SIZE", "1")) > 1:  # the GPUs are scripted: nccl would want real ones
    torch.distributed.init_process_group("gloo")
waited = "GPUSCHED_WAITS" in os.environ
trial = gpusched.init()
box = Path(os.environ["GPU_BOX"])
time.sleep(float(trial.hparams.get("imports_s", 0.0)))  # and data
imported_at = time.time()
with suppress(AssertionError):  # a torch for CPUs says so, once it may touch CUDA
    torch.cuda.init()
names = sorted(folder.name for folder in box.iterdir() if folder.name.startswith("GPU-"))
visible = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
mine = visible[int(os.environ.get("LOCAL_RANK", "0"))]
seat = box / (names[int(mine)] if mine.isdecimal() else mine)
seat.mkdir(exist_ok=True)  # of a MIG slice
others = [file.name for file in seat.glob("[0-9]*") if is_alive(int(file.name))]
if others:
    seat.with_name("collision").write_text(f"{mine}: {others}")
    raise RuntimeError(f"{mine} is in use by {others}")
(seat / str(os.getpid())).touch()
kept = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "OMP_NUM_THREADS", "GPUSCHED_LOADER_WORKERS")
found = {name: os.environ.get(name) for name in kept}
found.update(
    waited=waited,
    trial=os.environ["GPUSCHED_TRIAL"],
    cores=sorted(os.sched_getaffinity(0)),
    imported_at=imported_at,
    pid=os.getpid(),
)
(box / f"rank-{os.getpid()}.json").write_text(json.dumps(found))
trial.track(model=torch.nn.Linear(1, 1))
for step in trial.steps():
    time.sleep(0.05)
    if (seat / "lost").exists():
        raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
    if trial.hparams.get("fails") and step >= 2:
        raise RuntimeError(trial.hparams.fails)
    (box / f"stepped-{os.getpid()}").touch()
    trial.report(score=float(step))
