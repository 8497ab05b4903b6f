"""The end of an incarnation, in words and by whose fault: the trial's, a GPU's, or the machine's.

* A trial out of memory failed because of its configuration: the same one would fail again at the same size, so it is
  barred there. Where a stranger was on the GPU the memory may have been theirs: the trial is lost, and continues. The
  machine's own memory is another matter than a GPU's, with other cures: all trials that run at a time share it.
* A trial whose error names the hardware itself (``uncorrectable ECC error``) is lost, which is the infrastructure's
  fault: it continues elsewhere from its checkpoint, and nothing is counted against it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Literal

from msgspec.structs import replace

from gpusched.core.events import TrialExited
from gpusched.executors.local.incarnation import Incarnation
from gpusched.processes import outcome
from gpusched.protocol import Exit

_OF_THE_HARDWARE = re.compile(
    r"""
      uncorrectable\ (ECC|NVLink)\ error        # cudaErrorECCUncorrectable, cudaErrorNvlinkUncorrectable
    | hardware\ error                           # cudaErrorContained
    | CUDA-capable\ device\(s\)\ is/are\ busy\ or\ unavailable
    | fallen\ off\ the\ bus
    """,
    re.VERBOSE | re.IGNORECASE,
)
_GPU_MEMORY = re.compile(
    r"CUDA.*out of memory|OutOfMemoryError|CU\w+_ALLOC(ATION)?_FAILED|_OUT_OF_MEMORY|cudaErrorMemoryAllocation"
)
_HOST_MEMORY = re.compile(
    r"\(out-of-memory killer\)|DefaultCPUAllocator|\b_?\w*MemoryError\b(?<!OutOfMemoryError)"
)


def how_it_ended(
    incarnation: Incarnation, record: Exit | None = None, status: int | None = None
) -> TrialExited:
    """Judge from the shim's word, else from ``exit.json``, else from a last word; else killed if that was asked for.

    ``status``: the wait status of a shim that is known to have died.
    """
    paths, number = incarnation.paths, incarnation.number
    record = record or outcome.read_exit(paths, number)
    if record is None and (word := outcome.last_word(paths, number)) is not None:
        record = outcome.verdict(word=word, asked_to_stop=False, codes={}, error=None)
    if record is not None:
        error = str(record.error or record.stuck)
        return incarnation.exited(
            record.outcome, error or None, step=record.step, saved_step=record.saved_step
        )
    if incarnation.stop_grace_s is not None:
        return incarnation.exited("killed")
    died = "its shim died"
    if status is not None:
        code = os.waitstatus_to_exitcode(status)
        died += f" ({outcome.signal_name(-code) if code < 0 else f'exit code {code}'})"
    last = outcome.last_line(paths.shim_log(number))
    return incarnation.exited("lost", f"{died}: {last}" if last else died)


def blame(ending: TrialExited, atoms: int, strangers: Sequence[str] = ()) -> TrialExited:
    """Say whose fault a failure is, where its error tells; return any other ending as it is.

    ``strangers``: others that were on its GPUs (reliability F12).
    """
    if ending.outcome != "failed":
        return ending
    size = f"{atoms} {'atom' if atoms == 1 else 'atoms'}"
    told = _told(ending.error)
    kind = memory_fault(told)
    if kind == "gpu" and strangers:
        said = f"out of GPU memory on {size}; others were on its GPUs: {', '.join(strangers[:3])}"
        return replace(ending, outcome="lost", error=said)
    if kind is not None:
        said = {
            "gpu": f"out of GPU memory on {size}. Smaller batches or models in the search space avoid it",
            "host": f"out of the machine's memory on {size}. Trials that run at a time share it: "
            f"smaller data, fewer loader workers or fewer atoms avoid it",
        }[kind]
        return replace(ending, error=f"{said}\n{ending.error}", barred=True)
    if (hardware := _OF_THE_HARDWARE.search(told)) is None:
        return ending
    first = (ending.error or "").partition("\n")[0]
    why = f"its GPU is to blame, not the trial: the error names {hardware[0]} ({first})"
    return replace(ending, outcome="lost", error=why)


def memory_fault(error_text: str) -> Literal["gpu", "host"] | None:
    """Return which memory a rank's error is about, if any: the first that is named."""
    told = _told(error_text)
    gpu, host = _GPU_MEMORY.search(told), _HOST_MEMORY.search(told)
    if gpu is not None and (host is None or gpu.start() < host.start()):
        return "gpu"
    return None if host is None else "host"


def _told(error: str | None) -> str:
    """Leave out indented lines: a traceback's source lines may handle an error that never came."""
    lines = (error or "").splitlines()
    return "\n".join(line for line in lines if not line.startswith((" ", "\t")))
