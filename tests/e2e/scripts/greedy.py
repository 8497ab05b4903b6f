"""Runs out of memory where ``batch`` is large.

``memory``: of a GPU's, with torch's own words; really of the machine's; or really of what one process may have, where a
batch of 256 MiB is not split over the trial's atoms.
"""

import resource
from pathlib import Path

import torch

import gpusched

MIB = 1 << 20


class Images(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 128

    def __getitem__(self, place: int) -> torch.Tensor:
        return torch.zeros(2 * MIB, dtype=torch.uint8)


trial = gpusched.init()
model = trial.wrap(torch.nn.Linear(1, 1))
trial.track(model=model, opt=torch.optim.SGD(model.parameters(), lr=0.1))
batch, memory = trial.hparams.batch, trial.hparams.memory
if batch == 4096 and memory == "gpu":
    raise torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 3.25 GiB "
        "is free. Including non-PyTorch memory, this process has 75.84 GiB memory in use. Of the allocated memory "
        "75.00 GiB is allocated by PyTorch, and 200.00 MiB is reserved by PyTorch but unallocated."
    )
if batch == 4096 and memory == "host":
    torch.empty(1 << 52, dtype=torch.uint8)  # more than any machine has
if batch == 4096:
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + 420 * MIB, resource.RLIM_INFINITY))
loader = trial.loader(Images(), batch_size=min(batch, 128))
for step in trial.steps():
    if memory == "share":
        assert sum(map(len, loader))
    trial.report(score=float(step))
