"""Whose fault it was when a trial failed with an error of its GPU: its own, or the GPU's.

A GPU that is lost, or whose memory fails, ends its processes within milliseconds, and they say ``CUDA error: ...`` on
their way out. NVML is asked about it once a second. So such a failure is not believed at once: the GPUs of the trial
are looked at anew, and only if they are whole has the trial failed by itself. Else it is lost, which is the
infrastructure's fault: it goes on elsewhere from its checkpoint, and nothing is counted against it (reliability F21).
"""

from __future__ import annotations

import re
from dataclasses import replace

from gpusched.executors.local.endings import Ending

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


def may_be_the_gpus(ending: Ending) -> bool:
    """Whether a trial that ended so may have failed because of a GPU: ``Devices.examine`` finds out."""
    failed = ending.outcome == "failed" and not ending.barred
    return failed and _OF_A_GPU.search(_told(ending.error)) is not None


def with_blame(ending: Ending, fault: str) -> Ending:
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


def _told(error: str | None) -> str:
    """Without indented lines, which are a traceback's source lines."""
    lines = (error or "").splitlines()
    return "\n".join(line for line in lines if not line.startswith((" ", "\t")))
