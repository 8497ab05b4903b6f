"""Recognising that a trial ran out of GPU memory, and saying so with the size it had.

Such a trial failed because of its configuration: the same one would fail again at the same size, so it is not tried
again, and nobody else suffers. The exception is company: if a stranger was on the GPU, the memory may have been
theirs, and the message says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_GPU_OOM = re.compile(
    r"""
      CUDA\ out\ of\ memory                          # torch's caching allocator
    | torch\.(cuda\.)?OutOfMemoryError
    | CUDA\ error:\ out\ of\ memory                  # any runtime call, through torch
    | cudaErrorMemoryAllocation
    | CUDA_ERROR_OUT_OF_MEMORY                       # driver API: triton, cupy, numba
    | CUBLAS_STATUS_ALLOC_FAILED
    | CUDNN_STATUS_ALLOC_FAILED
    | CUSPARSE_STATUS_ALLOC_FAILED
    | CUSOLVER_STATUS_ALLOC_FAILED
    | Cuda\ failure\ (2\ )?'out\ of\ memory'         # nccl
    | RESOURCE_EXHAUSTED:\ Out\ of\ memory           # XLA
    | cupy\.cuda\.memory\.OutOfMemoryError
    """,
    re.VERBOSE | re.IGNORECASE,
)
_HOST_OOM = re.compile(r"DefaultCPUAllocator|HIP out of memory", re.IGNORECASE)

_WANTED = re.compile(r"[Tt]ried to allocate ([\d.]+ [KMGT]?i?B)")
_TOTAL = re.compile(r"(?:total capacity of|; ) ?([\d.]+ [KMGT]iB)(?: total capacity)?")
_FREE = re.compile(r"of which ([\d.]+ [KMGT]?i?B) is free|([\d.]+ [KMGT]iB) free")


def is_cuda_oom(error_text: str) -> bool:
    """Whether a rank's error is about GPU memory (not the machine's, for which other cures help)."""
    found = _GPU_OOM.search(error_text)
    if found is None:
        return False
    host = _HOST_OOM.search(error_text)
    return host is None or found.start() < host.start()


def oom_message(
    error_text: str,
    *,
    atoms: int,
    hparams: Mapping[str, object] | None = None,
    strangers: Sequence[str] = (),
) -> str:
    """One line for the trial: what it wanted, what there was, at which size, and what to do.

    ``strangers``: ``CudaDevices.strangers`` of its devices.
    """
    sizes = []
    if wanted := _WANTED.search(error_text):
        sizes.append(f"{wanted[1]} wanted")
    if free := _FREE.search(error_text):
        sizes.append(f"{free[1] or free[2]} free")
    if total := _TOTAL.search(error_text):
        sizes.append(f"of {total[1]}")
    figures = f": {', '.join(sizes[:2])}{' ' + sizes[2] if len(sizes) > 2 else ''}" if sizes else ""
    at = f" with {_few(hparams)}" if hparams else ""
    plural = "atom" if atoms == 1 else "atoms"
    if strangers:
        return (
            f"out of GPU memory{figures} on {atoms} {plural}{at}; others were on its GPUs: "
            f"{', '.join(strangers[:3])}"
        )
    return (
        f"out of GPU memory{figures} on {atoms} {plural}{at}; this configuration is not tried again. "
        f"Smaller batches or models in the search space avoid it"
    )


def _few(hparams: Mapping[str, object], most: int = 6) -> str:
    shown = [f"{name}={value}" for name, value in list(hparams.items())[:most]]
    return ", ".join(shown) + (", …" if len(hparams) > most else "")
