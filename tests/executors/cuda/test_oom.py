"""Recognising CUDA out-of-memory errors, as they are really worded."""

from __future__ import annotations

import pytest

from gpusched.executors.oom import is_cuda_oom, oom_message

TORCH = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.10 GiB "
    "of which 3.25 GiB is free. Including non-PyTorch memory, this process has 75.84 GiB memory in use. Of the "
    "allocated memory 75.00 GiB is allocated by PyTorch, and 200.00 MiB is reserved by PyTorch but unallocated."
)
OLD_TORCH = (
    "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 10.76 GiB total capacity; 8.53 GiB already "
    "allocated; 1.20 GiB free; 8.61 GiB reserved in total by PyTorch)"
)


@pytest.mark.parametrize(
    "text",
    [
        TORCH,
        OLD_TORCH,
        "torch.cuda.OutOfMemoryError: CUDA out of memory.",
        "RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "torch.distributed.DistBackendError: NCCL error ... unhandled cuda error\n"
        "Last error:\nCuda failure 2 'out of memory'",
        "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 8,000,000,000 bytes",
        "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 123 bytes.",
        "CUDA_ERROR_OUT_OF_MEMORY: out of memory",
        "cudaErrorMemoryAllocation",
    ],
)
def test_gpu_memory(text: str) -> None:
    assert is_cuda_oom(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "MemoryError",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:115] DefaultCPUAllocator: can't allocate memory: you tried to "
        "allocate 8000000000000 bytes.",
        "ValueError: out of range",
        "exit code -9: killed by the kernel: out of memory",
        "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
    ],
)
def test_anything_else(text: str) -> None:
    assert not is_cuda_oom(text)


def test_the_message_has_its_size() -> None:
    message = oom_message(TORCH, atoms=2, hparams={"batch": 4096, "width": 12})
    assert message == (
        "out of GPU memory: 20.00 GiB wanted, 3.25 GiB free of 79.10 GiB on 2 atoms with batch=4096, width=12; this "
        "configuration is not tried again. Smaller batches or models in the search space avoid it"
    )
    old = oom_message(OLD_TORCH, atoms=1)
    assert old.startswith(
        "out of GPU memory: 2.00 GiB wanted, 1.20 GiB free of 10.76 GiB on 1 atom;"
    )


def test_company_is_named_since_the_memory_may_have_been_theirs() -> None:
    message = oom_message("CUDA error: out of memory", atoms=1, strangers=["pid 9 (bob: x)"])
    assert message == "out of GPU memory on 1 atom; others were on its GPUs: pid 9 (bob: x)"


def test_many_hyperparameters_are_cut() -> None:
    assert oom_message("", atoms=1, hparams={f"h{i}": i for i in range(9)}).count("=") == 6
