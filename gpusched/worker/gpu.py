"""This rank's GPU. Nothing here is called before the rank's own environment is in place: CUDA reads it once."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def require_cuda() -> None:
    """Raise RuntimeError where this torch can use no GPU whatever the machine has."""
    import torch

    if not torch.backends.cuda.is_built():
        raise RuntimeError(
            f"this trial was given a GPU, but torch {torch.__version__} is built for CPUs only: install a torch that "
            f"is built for CUDA (https://pytorch.org/get-started/locally), or set devices: cpu"
        )


def take_gpu(local_rank: int) -> torch.device:
    """The GPU of this rank, made the current one: from here on the process has a context on it.

    Raises RuntimeError where torch finds no GPU.
    """
    import torch

    require_cuda()
    device = torch.device("cuda", local_rank % max(1, torch.cuda.device_count()))
    torch.cuda.set_device(device)
    return device
