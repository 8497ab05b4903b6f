"""The training script that ``gpu_check.py`` starts and ends in every way.

Hyperparameters: ``rows`` (the model is ``rows`` x 1024 float32), ``fill`` (share of the GPU's free memory to take
besides, with two workers of a data loader), ``step_s``, ``scenario``: train, or hang (ignore SIGTERM and never come
back from the second step).
"""

import time

first_s = time.monotonic()
import json  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402
from pathlib import Path  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

import gpusched  # noqa: E402

marks = {"first": first_s, "imported": time.monotonic()}


def settled():
    """The time when the device has done all it was given."""
    if trial.device.type == "cuda":
        torch.cuda.synchronize(trial.device)
    return time.monotonic()


def note(name, content):
    if trial.rank:
        return
    place = Path(os.environ["GPUSCHED_DIR"]) / "trials" / f"{trial_number:04d}"
    aside = place / f".{name}.tmp"
    aside.write_text(json.dumps(content))
    aside.replace(place / f"{name}-{incarnation}.json")


trial_number = int(os.environ["GPUSCHED_TRIAL"])
incarnation = int(os.environ["GPUSCHED_INCARNATION"])
trial = gpusched.init()
hp = trial.hparams
x = torch.ones(16, 1024, device=trial.device)
marks["context"] = settled()
if not dist.is_initialized():
    dist.init_process_group("nccl" if trial.device.type == "cuda" else "gloo")
dist.all_reduce(torch.ones(1, device=trial.device))
marks["group"] = settled()
model = torch.nn.Linear(1024, int(hp.get("rows", 256)), bias=False).to(trial.device)
model(x).square().mean().backward()
marks["step"] = settled()
dist.broadcast(model.weight.data, 0)  # ranks that train apart are refused
filling = None
if trial.device.type == "cuda" and hp.get("fill", 0):
    free, _total = torch.cuda.mem_get_info(trial.device)
    filling = torch.zeros(int(free * hp.fill), dtype=torch.uint8, device=trial.device)
# Torch before 2.13 waits at exit for such workers; where they end, a rank that hangs does too.
if hp.get("fill", 0) and hp.get("scenario") != "hang":
    pins = {"pin_memory": trial.device.type == "cuda"}
    loader = DataLoader(range(16), num_workers=2, persistent_workers=True, **pins)
    next(iter(loader))
note("started", {"pid": os.getpid(), **marks, "filled": settled()})
if hp.get("scenario") == "hang":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
trial.track(model=model)

for step in trial.steps():
    end = time.monotonic() + float(hp.get("step_s", 0.02))
    with torch.no_grad():
        model.weight -= 1e-3 * model(x).T @ x
    while settled() < end:
        model(x)  # keeps the device busy, and the ranks together
    trial.report(loss=1.0 / (step + 1))
    if hp.get("scenario") == "hang":
        note("hangs", {"pid": os.getpid()})
        while True:  # busy on the device for ever
            model(x)
            settled()
