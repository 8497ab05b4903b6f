"""Recognising that a trial ran out of memory, and saying so with the size it had.

Such a trial failed because of its configuration: the same one would fail again at the same size, so it is not tried
again, and nobody else suffers. The exception is company: if a stranger was on the GPU, the memory may have been
theirs, and the message says so.

The machine's own memory is another matter than a GPU's, with other cures: all trials that run at a time share it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Literal

Kind = Literal["gpu", "host"]

_GPU = re.compile(
    r"""
      CUDA\ out\ of\ memory                          # torch's caching allocator
    | torch\.(cuda\.)?OutOfMemoryError
    | CUDA\ (driver\ )?error:\ out\ of\ memory       # any call, through torch
    | Triton\ Error\ \[CUDA\]:\ out\ of\ memory      # a compiled kernel's launch
    | cudaErrorMemoryAllocation
    | CUDA_ERROR_OUT_OF_MEMORY                       # driver API: triton, cupy, numba
    | CUBLAS_STATUS_ALLOC_FAILED
    | CUDNN_STATUS_(INTERNAL_ERROR_DEVICE_)?ALLOC(ATION)?_FAILED    # before cuDNN 9, and since
    | CUFFT_ALLOC_FAILED
    | CUSPARSE_STATUS_ALLOC_FAILED
    | CUSOLVER_STATUS_ALLOC_FAILED
    | Cuda\ failure\ (2\ )?'out\ of\ memory'         # nccl,
    | Failed\ to\ CUDA\ calloc                       # whose last word may be what it wanted the memory for
    | RESOURCE_EXHAUSTED:\ Out\ of\ memory           # XLA
    | cupy\.cuda\.memory\.OutOfMemoryError
    | HIP\ out\ of\ memory
    """,
    re.VERBOSE | re.IGNORECASE,
)
_HOST = re.compile(
    r"""
      \(out-of-memory\ killer\)                      # our words for SIGKILL while the kernel was short of memory
    | DefaultCPUAllocator                            # torch on the CPU
    | (^|:\ )MemoryError\b
    | _ArrayMemoryError\b                            # numpy
    | \[Errno\ 12\]                                  # ENOMEM: fork, mmap
    | CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED
    | Failed\ to\ CUDA\ host\ alloc                  # nccl: memory that is pinned
    """,
    re.VERBOSE | re.MULTILINE,
)

_WANTED = re.compile(r"[Tt]ried to allocate ([\d.]+ [KMGT]?i?B)|[Uu]nable to allocate ([\d.]+ \w+)")
_WANTED_BYTES = re.compile(r"tried to allocate (\d+) bytes")
_TOTAL = re.compile(r"(?:total capacity of|; ) ?([\d.]+ [KMGT]iB)(?: total capacity)?")
_FREE = re.compile(r"of which ([\d.]+ [KMGT]?i?B) is free|([\d.]+ [KMGT]iB) free")


def memory_fault(error_text: str) -> Kind | None:
    """Which memory a rank's error is about, if any: the first that is named.

    Indented lines are a traceback's source lines: a script that has a handler for such an error need not have met one.
    """
    told = "\n".join(line for line in error_text.splitlines() if not line.startswith((" ", "\t")))
    gpu, host = _GPU.search(told), _HOST.search(told)
    if gpu is not None and (host is None or gpu.start() < host.start()):
        return "gpu"
    return None if host is None else "host"


def message(
    kind: Kind,
    error_text: str,
    *,
    atoms: int,
    hparams: Mapping[str, object] | None = None,
    strangers: Sequence[str] = (),
) -> str:
    """One line for the trial: what it wanted, what there was, at which size, and what to do.

    ``strangers``: other people's processes on its devices.
    """
    at = f" with {_few(hparams)}" if hparams else ""
    size = f"{atoms} {'atom' if atoms == 1 else 'atoms'}{at}"
    if kind == "host":
        return (
            f"out of the machine's memory{_host_figures(error_text)} on {size}; this configuration is not tried again. "
            f"Trials that run at a time share it: smaller data, fewer loader workers or fewer atoms avoid it"
        )
    if strangers:
        return (
            f"out of GPU memory{_gpu_figures(error_text)} on {size}; others were on its GPUs: "
            f"{', '.join(strangers[:3])}"
        )
    return (
        f"out of GPU memory{_gpu_figures(error_text)} on {size}; this configuration is not tried again. "
        f"Smaller batches or models in the search space avoid it"
    )


def _gpu_figures(text: str) -> str:
    sizes = []
    if wanted := _WANTED.search(text):
        sizes.append(f"{wanted[1] or wanted[2]} wanted")
    if free := _FREE.search(text):
        sizes.append(f"{free[1] or free[2]} free")
    if total := _TOTAL.search(text):
        sizes.append(f"of {total[1]}")
    return f": {', '.join(sizes[:2])}{' ' + sizes[2] if len(sizes) > 2 else ''}" if sizes else ""


def _host_figures(text: str) -> str:
    there = f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / (1 << 30):.1f} GiB"
    if found := _WANTED_BYTES.search(text):
        return f": {int(found[1]) / (1 << 30):.2f} GiB wanted of {there}"
    if found := _WANTED.search(text):
        return f": {found[1] or found[2]} wanted of {there}"
    return f" ({there})"


def _few(hparams: Mapping[str, object], most: int = 6) -> str:
    shown = [f"{name}={value}" for name, value in list(hparams.items())[:most]]
    return ", ".join(shown) + (", …" if len(hparams) > most else "")
