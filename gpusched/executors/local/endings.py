"""The end of an incarnation, in words and by whose fault: the trial's, a GPU's, or the machine's.

* From what its shim said or left, or from the silence of a shim that died (``how_it_ended``).
* A trial out of memory failed because of its configuration: the same one would fail again at the same size, so it is
  barred, and no other trial suffers; the core may try a larger size first, where its batch is split over more atoms.
  The exception is company: where a stranger was on the GPU the memory may have been theirs, and the message says so.
  Other trials on the GPU are named, and the core forgives that once. The machine's own memory is another matter than a
  GPU's, with other cures: all trials that run at a time share it. A rank on a CPU slot has a GPU's part of it where a
  limit holds for each process (``blame_memory``).
* A GPU that is lost, or whose memory fails, ends its processes within milliseconds, and they say ``CUDA error: ...`` on
  their way out. NVML is asked about GPUs once a second, so such a failure is not believed at once: the trial's GPUs are
  examined anew, and only if they are whole has the trial failed by itself. Else it is lost, which is the
  infrastructure's fault: it goes on elsewhere from its checkpoint, and nothing is counted against it (reliability F21).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import Literal

from msgspec.structs import replace

from gpusched.core.events import TrialExited
from gpusched.executors.local.incarnation import Incarnation
from gpusched.folder.files import read_json
from gpusched.processes import outcome
from gpusched.protocol import Exit


def how_it_ended(
    incarnation: Incarnation, record: Exit | None, status: object = None
) -> TrialExited:
    """Judge from the shim's word, else from ``exit.json``, else from a last word; else killed if that was asked for.

    ``status``: the wait status of a shim that is known to have died.
    """
    if record is None:
        record = incarnation.exit_record()
    if record is None:
        word = outcome.last_word(incarnation.paths, incarnation.number)
        if word is not None:
            record = outcome.verdict(word=word, asked_to_stop=False, codes={}, error=None)
    if record is not None:
        error = str(record.error or record.stuck)
        return incarnation.exited(
            record.outcome, error or None, step=record.step, saved_step=record.saved_step
        )
    if incarnation.stop_grace_s is not None:
        return incarnation.exited("killed")
    return incarnation.exited("lost", _last_moments(incarnation, status))


def _last_moments(incarnation: Incarnation, status: object) -> str:
    text = "its shim died"
    if isinstance(status, int):
        code = os.waitstatus_to_exitcode(status)
        text += f" ({outcome.signal_name(-code) if code < 0 else f'exit code {code}'})"
    last = outcome.last_line(incarnation.paths.shim_log(incarnation.number))
    return f"{text}: {last}" if last else text


def _told(error: str | None) -> str:
    """Leave out indented lines: a traceback's source lines may handle an error that never came."""
    lines = (error or "").splitlines()
    return "\n".join(line for line in lines if not line.startswith((" ", "\t")))


# ---------------------------------------------------------------- a GPU's fault

_OF_A_GPU = re.compile(
    r"""
      CUDA\ (driver\ )?error | \bcuda[A-Z]\w*Error | cudaError[A-Z] | \bCUDA_ERROR_[A-Z]
    | \bCU(DNN|BLAS|SPARSE|SOLVER)_STATUS_ | \bCUFFT_[A-Z] | Triton\ Error\ \[CUDA\]
    | \bNCCL\b | \bnccl[A-Z] | Cuda\ failure | No\ CUDA\ GPUs\ are\ available
    """,
    re.VERBOSE,
)
_OF_THE_HARDWARE = re.compile(
    r"""
      uncorrectable\ (ECC|NVLink)\ error        # cudaErrorECCUncorrectable, cudaErrorNvlinkUncorrectable
    | hardware\ error                           # cudaErrorContained
    | CUDA-capable\ device\(s\)\ is/are\ busy\ or\ unavailable
    | fallen\ off\ the\ bus
    """,
    re.VERBOSE | re.IGNORECASE,
)


def may_be_the_gpus(ending: TrialExited) -> bool:
    """Whether a trial that ended so may have failed because of a GPU: ``Devices.examine`` finds out."""
    failed = ending.outcome == "failed" and not ending.barred
    return failed and _OF_A_GPU.search(_told(ending.error)) is not None


def with_blame(ending: TrialExited, fault: str) -> TrialExited:
    """Judge how a trial failed whose devices have been examined. ``fault``: what is wrong with one of them, if any."""
    hardware = _OF_THE_HARDWARE.search(_told(ending.error))
    if not fault and hardware is not None:
        fault = f"the error says so itself: {hardware[0]}"
    if not fault:
        return ending
    first = (ending.error or "").partition("\n")[0]
    return replace(
        ending, outcome="lost", error=f"its GPU is to blame, not the trial: {fault} ({first})"
    )


# ---------------------------------------------------------------- out of memory

_GPU_MEMORY = re.compile(
    r"CUDA.*out of memory|OutOfMemoryError|CU\w+_ALLOC(ATION)?_FAILED|_OUT_OF_MEMORY|cudaErrorMemoryAllocation"
)
_HOST_MEMORY = re.compile(
    r"\(out-of-memory killer\)|DefaultCPUAllocator|\b_?\w*MemoryError\b(?<!OutOfMemoryError)"
)
_HPARAMS_SHOWN = 6


def blame_memory(
    incarnation: Incarnation,
    ending: TrialExited,
    strangers: Callable[[Sequence[str]], Sequence[str]],
) -> TrialExited:
    """Say with its size that a trial failed for want of memory; return any other ending as it is.

    The same configuration would fail again, so it is barred; but where ``strangers`` names others on its GPUs the
    memory may have been theirs: then the trial is lost, and goes on from its checkpoint (reliability F12).
    """
    kind = memory_fault(ending.error or "") if ending.outcome == "failed" else None
    if kind is None:
        return ending
    hparams = (read_json(incarnation.paths.hparams) or {}).get("hparams")
    atoms = len(incarnation.devices)
    size = f"{atoms} {'atom' if atoms == 1 else 'atoms'}"
    if isinstance(hparams, dict) and hparams:
        shown = [f"{name}={value}" for name, value in list(hparams.items())[:_HPARAMS_SHOWN]]
        size += f" with {', '.join(shown)}" + (", …" if len(hparams) > len(shown) else "")
    if kind == "host":
        said = (
            f"out of the machine's memory on {size}. Trials that run at a time share it: "
            f"smaller data, fewer loader workers or fewer atoms avoid it"
        )
    elif others := strangers(incarnation.devices):
        said = f"out of GPU memory on {size}; others were on its GPUs: {', '.join(others[:3])}"
        return replace(ending, outcome="lost", error=said)
    else:
        said = (
            f"out of GPU memory on {size}. Smaller batches or models in the search space avoid it"
        )
    return replace(ending, error=f"{said}\n{ending.error}", barred=True)


def memory_fault(error_text: str) -> Literal["gpu", "host"] | None:
    """Return which memory a rank's error is about, if any: the first that is named."""
    told = _told(error_text)
    gpu, host = _GPU_MEMORY.search(told), _HOST_MEMORY.search(told)
    if gpu is not None and (host is None or gpu.start() < host.start()):
        return "gpu"
    return None if host is None else "host"
