"""Whose fault it was when a trial failed with an error of its GPU: its own, or the GPU's.

A GPU that is lost, or whose memory fails, ends its processes within milliseconds, and they say ``CUDA error: ...`` on
their way out. NVML is asked about it once a second. So such a failure is not believed at once: the GPUs of the trial
are looked at anew, and only if they are whole has the trial failed by itself. Else it is lost, which is the
infrastructure's fault: it goes on elsewhere from its checkpoint, and nothing is counted against it (reliability F21).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from gpusched.executors.local.endings import Ending
from gpusched.executors.local.timers import Timers

AGAIN_S = 0.05
PATIENCE_S = 5.0
"""Vitals are read every two seconds, and a reading that takes longer than 3 s is thrown away."""

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


def may_be_the_gpus(error: str | None) -> bool:
    """Whether a failure with this text may be the GPU's. Indented lines are a traceback's source lines."""
    return _OF_A_GPU.search(_told(error)) is not None


def _told(error: str | None) -> str:
    lines = (error or "").splitlines()
    return "\n".join(line for line in lines if not line.startswith((" ", "\t")))


class Blame:
    """``ask`` is ``Devices.blamed``; times are of the caller's clock."""

    def __init__(
        self,
        ask: Callable[[Sequence[str]], str | None],
        timers: Timers,
        now: Callable[[], float],
    ) -> None:
        self._ask = ask
        self._timers = timers
        self._now = now

    def settle(
        self, ending: Ending, devices: Sequence[str], then: Callable[[Ending], None]
    ) -> Ending | None:
        """How it really ended, if that is clear now; else None, and ``then`` is told within ``PATIENCE_S``."""
        if ending.outcome != "failed" or ending.barred or not may_be_the_gpus(ending.error):
            return ending
        return self._look(ending, devices, then, self._now() + PATIENCE_S)

    def _look(
        self,
        ending: Ending,
        devices: Sequence[str],
        then: Callable[[Ending], None],
        until: float,
    ) -> Ending | None:
        why = self._ask(devices)
        if why is None:
            if self._now() < until:
                again = partial(self._again, ending, devices, then, until)
                self._timers.after(AGAIN_S, again)
                return None
            why = "the driver does not say how its GPUs are"
        hardware = _OF_THE_HARDWARE.search(_told(ending.error))
        if not why and hardware is not None:
            why = f"the error says so itself: {hardware[0]}"
        return _lost(ending, why) if why else ending

    def _again(
        self,
        ending: Ending,
        devices: Sequence[str],
        then: Callable[[Ending], None],
        until: float,
    ) -> None:
        settled = self._look(ending, devices, then, until)
        if settled is not None:
            then(settled)


def _lost(ending: Ending, why: str) -> Ending:
    first = (ending.error or "").partition("\n")[0]
    return replace(
        ending, outcome="lost", error=f"its GPU is to blame, not the trial: {why} ({first})"
    )
