"""The end of an incarnation, in words and by whose fault: the trial's, a GPU's, or the machine's.

* From what its shim said or left, or from the silence of a shim that died (``how_it_ended``).
* A trial out of memory failed because of its configuration: the same one would fail again at the same size, so it is
  barred, and no other trial suffers; the core may try a larger size first, where its batch is split over more atoms.
  The exception is company: where a stranger was on the GPU the memory may have been theirs, and the message says so.
  Other trials on the GPU are named, and the core forgives that once. The machine's own memory is another matter than a
  GPU's, with other cures: all trials that run at a time share it. A rank on a CPU slot has a GPU's part of it where a
  limit holds for each process (``blame_memory``).
* A trial whose error names the hardware itself (``uncorrectable ECC error``) is lost, which is the infrastructure's
  fault: it continues elsewhere from its checkpoint, and nothing is counted against it.
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

_OF_THE_HARDWARE = re.compile(
    r"""
      uncorrectable\ (ECC|NVLink)\ error        # cudaErrorECCUncorrectable, cudaErrorNvlinkUncorrectable
    | hardware\ error                           # cudaErrorContained
    | CUDA-capable\ device\(s\)\ is/are\ busy\ or\ unavailable
    | fallen\ off\ the\ bus
    """,
    re.VERBOSE | re.IGNORECASE,
)


def blame_hardware(ending: TrialExited) -> TrialExited:
    """Return a failure whose error names the hardware as a loss; any other ending as it is."""
    hardware = _OF_THE_HARDWARE.search(_told(ending.error))
    if ending.outcome != "failed" or ending.barred or hardware is None:
        return ending
    first = (ending.error or "").partition("\n")[0]
    why = f"its GPU is to blame, not the trial: the error names {hardware[0]} ({first})"
    return replace(ending, outcome="lost", error=why)


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
