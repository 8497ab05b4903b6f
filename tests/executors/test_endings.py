"""Recognising out-of-memory errors, as they are really worded, and a trial that ends with one."""

from __future__ import annotations

import pytest

from gpusched.core.events import TrialExited
from gpusched.executors.local.endings import blame, memory_fault
from tests.events import exited

TORCH = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.10 GiB "
    "of which 3.25 GiB is free."
)
ON_CPU = (
    "RuntimeError: [enforce fail at alloc_cpu.cpp:115] err == 0. DefaultCPUAllocator: can't allocate memory: you tried "
    "to allocate 8589934592 bytes. Error code 12 (Cannot allocate memory)"
)
KILLED = "rank 0: killed by SIGKILL while the kernel was short of memory (out-of-memory killer)"
HANDLED = (
    "rank 0: ValueError: bad\nTraceback (most recent call last):\n  File 'x', line 1\n"
    "    except torch.OutOfMemoryError: raise ValueError('bad')\nValueError: bad"
)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (TORCH, "gpu"),
        ("torch.cuda.OutOfMemoryError: CUDA out of memory.", "gpu"),
        ("RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be reported", "gpu"),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`", "gpu"),
        ("RuntimeError: Triton Error [CUDA]: out of memory", "gpu"),
        ("CUDA_ERROR_OUT_OF_MEMORY: out of memory", "gpu"),
        ("cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 8,000 bytes", "gpu"),
        (ON_CPU, "host"),
        (KILLED, "host"),
        ("rank 0: MemoryError: Unable to allocate", "host"),
        ("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 7.45 GiB", "host"),
        ("ValueError: out of range", None),
        ("rank 0: killed by SIGKILL from outside", None),
        ("torch.AcceleratorError: CUDA error: an illegal memory access was encountered", None),
        (HANDLED, None),
    ],
)
def test_whose_memory_an_error_is_about(text: str, kind: str | None) -> None:
    assert memory_fault(text) == kind


def test_an_ending_for_want_of_memory_bars_its_configuration() -> None:
    ending = blame(exited("failed", step=4, error=f"rank 0: {TORCH}\ntrace"), 2)
    assert (ending.outcome, ending.step, ending.barred) == ("failed", 4, True)
    head, _, rest = str(ending.error).partition("\n")
    assert head == (
        "out of GPU memory on 2 atoms. Smaller batches or models in the search space avoid it"
    )
    assert rest == f"rank 0: {TORCH}\ntrace"


def test_with_strangers_on_its_gpus_it_is_lost_as_the_memory_may_have_been_theirs() -> None:
    ending = blame(exited("failed", error=TORCH), 2, ["pid 9 (bob: x)"])
    assert (ending.outcome, ending.barred) == ("lost", False)
    assert str(ending.error).endswith("others were on its GPUs: pid 9 (bob: x)")
    assert blame(exited("failed", error=KILLED), 1, ["pid 9 (bob: x)"]).barred, (
        "a stranger on the GPU takes nothing of the machine's memory"
    )


def test_an_error_of_the_hardware_is_not_the_trials() -> None:
    ending = blame(exited("failed", error="CUDA error: uncorrectable ECC error encountered"), 1)
    assert (ending.outcome, ending.barred) == ("lost", False)
    assert str(ending.error).startswith("its GPU is to blame, not the trial")


@pytest.mark.parametrize(
    "ending",
    [exited("killed", error=TORCH), exited("failed", error="ValueError: x"), exited("yielded")],
)
def test_other_endings_are_as_they_were(ending: TrialExited) -> None:
    assert blame(ending, 2) == ending
