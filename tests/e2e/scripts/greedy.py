"""Runs out of memory where ``batch`` is large: of a GPU's, with torch's own words, or really of the machine's."""

import torch

import gpusched

trial = gpusched.init()
model = trial.wrap(torch.nn.Linear(1, 1))
trial.track(model=model, opt=torch.optim.SGD(model.parameters(), lr=0.1))
if trial.hparams.batch == 4096 and trial.hparams.memory == "gpu":
    raise torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 3.25 GiB "
        "is free. Including non-PyTorch memory, this process has 75.84 GiB memory in use. Of the allocated memory "
        "75.00 GiB is allocated by PyTorch, and 200.00 MiB is reserved by PyTorch but unallocated."
    )
if trial.hparams.batch == 4096:
    torch.empty(1 << 52, dtype=torch.uint8)  # more than any machine has
for step in trial.steps():
    trial.report(score=float(step))
