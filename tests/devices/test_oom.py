"""Recognising out-of-memory errors, as they are really worded, and a trial that ends with one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from gpusched.core.events import TrialExited
from gpusched.executors.local.endings import blame_memory, memory_fault, memory_message
from gpusched.executors.local.incarnation import Incarnation
from gpusched.folder.paths import ExperimentPaths
from tests.events import exited

TORCH = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.10 GiB "
    "of which 3.25 GiB is free. Including non-PyTorch memory, this process has 75.84 GiB memory in use. Of the "
    "allocated memory 75.00 GiB is allocated by PyTorch, and 200.00 MiB is reserved by PyTorch but unallocated."
)
OLD_TORCH = (
    "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 10.76 GiB total capacity; 8.53 GiB already "
    "allocated; 1.20 GiB free; 8.61 GiB reserved in total by PyTorch)"
)
ON_CPU = (
    "RuntimeError: [enforce fail at alloc_cpu.cpp:115] err == 0. DefaultCPUAllocator: can't allocate memory: you tried "
    "to allocate 8589934592 bytes. Error code 12 (Cannot allocate memory)"
)
KILLED = "rank 0: killed by SIGKILL while the kernel was short of memory (out-of-memory killer)"


@pytest.mark.parametrize(
    "text",
    [
        TORCH,
        OLD_TORCH,
        f"rank 1: {TORCH}\nTraceback (most recent call last):\n  File ..",
        "torch.cuda.OutOfMemoryError: CUDA out of memory.",
        "RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "RuntimeError: CUDA driver error: out of memory",
        "RuntimeError: Triton Error [CUDA]: out of memory",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        "RuntimeError: cuFFT error: CUFFT_ALLOC_FAILED",
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3356, unhandled cuda error (run with "
        "NCCL_DEBUG=INFO for details), NCCL version 2.29.7\nncclUnhandledCudaError: Call to CUDA library failed.\n"
        "Last error:\nFailed to CUDA calloc async 608 bytes",
        "torch.distributed.DistBackendError: NCCL error ... unhandled cuda error\n"
        "Last error:\nCuda failure 2 'out of memory'",
        "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 8,000,000,000 bytes",
        "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 123 bytes.",
        "CUDA_ERROR_OUT_OF_MEMORY: out of memory",
        "cudaErrorMemoryAllocation",
    ],
)
def test_gpu_memory(text: str) -> None:
    assert memory_fault(text) == "gpu"


@pytest.mark.parametrize(
    "text",
    [
        ON_CPU,
        KILLED,
        "MemoryError",
        "rank 0: MemoryError: Unable to allocate",
        "RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED",
        "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 7.45 GiB for an array with shape (1,)",
        "OSError: [Errno 12] Cannot allocate memory",
    ],
)
def test_the_machines_memory(text: str) -> None:
    assert memory_fault(text) == "host"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ValueError: out of range",
        "rank 0: killed by SIGKILL from outside",
        "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
        "rank 0: ValueError: bad\nTraceback (most recent call last):\n  File 'x', line 1\n"
        "    except torch.OutOfMemoryError: raise ValueError('bad')\nValueError: bad",
    ],
)
def test_anything_else(text: str) -> None:
    assert memory_fault(text) is None


def test_the_message_has_its_size() -> None:
    assert memory_message("gpu", TORCH, atoms=2, hparams={"batch": 4096, "width": 12}) == (
        "out of GPU memory: 20.00 GiB wanted, 3.25 GiB free of 79.10 GiB on 2 atoms with batch=4096, width=12. "
        "Smaller batches or models in the search space avoid it"
    )
    assert memory_message("gpu", OLD_TORCH, atoms=1).startswith(
        "out of GPU memory: 2.00 GiB wanted, 1.20 GiB free of 10.76 GiB on 1 atom."
    )


def test_the_message_of_the_machines_memory() -> None:
    assert memory_message("host", ON_CPU, atoms=1).startswith(
        "out of the machine's memory: 8.00 GiB wanted of "
    )
    assert memory_message("host", KILLED, atoms=3).split(" (")[0] == "out of the machine's memory"
    assert "on 3 atoms." in memory_message("host", KILLED, atoms=3)


def test_company_is_named_since_the_memory_may_have_been_theirs() -> None:
    said = memory_message("gpu", "CUDA error: out of memory", atoms=1, strangers=["pid 9 (bob: x)"])
    assert said == "out of GPU memory on 1 atom; others were on its GPUs: pid 9 (bob: x)"


def test_many_hyperparameters_are_cut() -> None:
    assert (
        memory_message("gpu", "", atoms=1, hparams={f"h{i}": i for i in range(9)}).count("=") == 6
    )


# ---------------------------------------------------------------- endings


def blamed(folder: Path, ending: TrialExited, strangers: Sequence[str] = ()) -> TrialExited:
    it = Incarnation(3, 1, ("GPU-a", "GPU-b"), ExperimentPaths(folder).trial(3))
    it.paths.root.mkdir(parents=True)
    it.paths.hparams.write_text('{"trial": 3, "seed": 1, "hparams": {"batch": 4096}}')
    return blame_memory(it, ending, lambda devices: strangers)


def test_an_ending_for_want_of_memory_bars_its_configuration(tmp_path: Path) -> None:
    ending = blamed(tmp_path, exited("failed", step=4, error=f"rank 0: {TORCH}\ntrace"))
    assert (ending.outcome, ending.step, ending.barred) == ("failed", 4, True)
    head, _, rest = ending.error.partition("\n")
    assert "on 2 atoms with batch=4096. Smaller batches" in head
    assert rest == f"rank 0: {TORCH}\ntrace"


def test_with_strangers_on_its_gpus_it_goes_on_elsewhere(tmp_path: Path) -> None:
    ending = blamed(tmp_path, exited("failed", error=TORCH), ["pid 9 (bob: x)"])
    assert (ending.outcome, ending.barred) == ("lost", False)
    assert str(ending.error).endswith("others were on its GPUs: pid 9 (bob: x)")


def test_a_hyperparameter_file_that_is_gone_costs_the_words_alone(tmp_path: Path) -> None:
    it = Incarnation(3, 1, ("GPU-a",), ExperimentPaths(tmp_path).trial(3))
    ending = blame_memory(it, exited("failed", error=KILLED), lambda devices: ["pid 9 (bob: x)"])
    assert ending.barred, "a stranger on the GPU takes nothing of the machine's memory"


@pytest.mark.parametrize(
    "ending",
    [exited("killed", error=TORCH), exited("failed", error="ValueError: x"), exited("yielded")],
)
def test_other_endings_are_as_they_were(tmp_path: Path, ending: TrialExited) -> None:
    assert blamed(tmp_path, ending) == ending
