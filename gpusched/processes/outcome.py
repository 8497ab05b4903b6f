"""The outcome of an incarnation, judged from what it left on disk, and by whose fault it failed.

The rule: a committed last word decides, and then exit codes do not count any more (a rank that has finished may
abort while the interpreter tears gloo down). Without a last word, asked to stop means ``killed``, a bad exit means
``failed``, a good one ``finished``. ``exit.json`` has the form of ``docs/contracts.md``. A failure may be the trial's,
a GPU's, or the machine's:

* A trial out of memory failed because of its configuration: the same one would fail again at the same size. Where a
  stranger was on the GPU the memory may have been theirs, and where the GPU has less than another, that one may do: the
  trial is lost, and continues. The machine's own memory is another matter than a GPU's, with other cures: all trials
  that run at a time share it, so one that has reported before continues.
* A trial whose error names the hardware itself (``uncorrectable ECC error``), or a full disk, is lost, which is the
  infrastructure's fault: it continues elsewhere from its checkpoint, and nothing is counted against it. So is one that
  finds no GPU where others have trained: a driver was updated, or a container has lost its GPUs; and one that hangs
  where others have trained, and whose ranks NCCL's watchdog ends (after 10 minutes) before the search does.

Everything read here was written by a trial: sizes are bounded, and nothing that is not as it should be raises.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

from gpusched.folder.files import last_line, read_from, read_json, read_record
from gpusched.folder.paths import TrialPaths
from gpusched.processes.stacks import place_of
from gpusched.protocol import OUT_OF_GPU_MEMORY, Exit, RankError, Word, exit_from, word_from

SMALL = "out of memory on a GPU that has less of it than others"
_TEXT_LIMIT = 16_000
_USAGE_CODE = 2
"""Exit code of argparse and its kin."""
_REFUSAL = re.compile(
    r"^(.*: )?error: .+(\n +.+)*|(?<=^│ )\S.*(?=│$)", re.IGNORECASE | re.MULTILINE
)
"""Refusals of arguments, as argparse, jsonargparse, click and fire word them; typer and tyro in a frame."""
_SUDDEN = tuple(
    -number
    for number in (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
)
_AN_EXCEPTION = re.compile(r"[\w.]+(Error|Exception): ")
_NO_MORE = "SystemExit: the script ended with"
_OF_THE_HARDWARE = re.compile(
    r"""
      uncorrectable\ (ECC|NVLink)\ error        # cudaErrorECCUncorrectable, cudaErrorNvlinkUncorrectable
    | hardware\ error                           # cudaErrorContained
    | CUDA\ error:\ unknown\ error              # of the driver, as after a suspend of the machine
    | CUDA-capable\ device\(s\)\ is/are\ busy\ or\ unavailable
    | fallen\ off\ the\ bus
    """,
    re.VERBOSE | re.IGNORECASE,
)
_OF_CUDAS_START = re.compile(
    r"cudaGetDeviceCount|CUDA unknown error|CUDA driver initialization failed|No CUDA GPUs are available|"
    r"Found no NVIDIA driver"
)
_RANK = re.compile(r"rank (\d+): ")
_FROM_OUTSIDE = re.compile(r"(rank \d+: )?killed by SIG(KILL from outside|TERM)")
_OF_A_FULL_DISK = re.compile(
    r"No space left on device|Disk quota exceeded|workers are out of shared memory|"
    r"PytorchStreamWriter failed writing|unexpected pos \d+ vs \d+"  # torch.save
)
_OF_A_HANG = "Watchdog caught collective operation timeout"
_OF_A_HELPER = re.compile(r"(EOF|BrokenPipe|ConnectionReset)Error|\S*(BrokenProcess|Terminated)")
_STARVED = "while the kernel was short of memory (out-of-memory killer)"
_OF_SHARED_MEMORY = re.compile(r"</torch_|/dev/shm|shared memory")
_OF_CUDA = re.compile(r"CUDA|NCCL|cuDNN|CUBLAS", re.IGNORECASE)
_GPU_MEMORY = re.compile(
    r"C(UDA|uda).*out of memory|OutOfMemoryError|CU\w+_ALLOC(ATION)?_FAILED|_OUT_OF_MEMORY|cudaErrorMemoryAllocation"
)
_HOST_MEMORY = re.compile(
    r"\(out-of-memory killer\)|DefaultCPUAllocator|\b_?\w*MemoryError\b(?<!OutOfMemoryError)|"
    r"DataLoader worker \(pid \d+\) is killed by signal: Killed"
)


def last_word(paths: TrialPaths, incarnation: int) -> Word | None:
    """Read the committed last word; None if missing."""
    return read_record(paths.last_word(incarnation), word_from)


def read_exit(paths: TrialPaths, incarnation: int) -> Exit | None:
    """Read ``exit.json``, which the shim wrote when nothing was left; None if missing."""
    return read_record(paths.exit(incarnation), exit_from)


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _refused_arguments(log: Path) -> str | None:
    """Return what the reader of the command line said, where a script ended with its exit code."""
    with suppress(OSError):
        if (said := _REFUSAL.search("\n".join(read_from(log, 0)[0]))) is not None:
            words = " ".join(said[0].split())
            return f"{words}; `args` of the recipe has the script's arguments, as in --lr=${{lr}}"
    return None


def _from_error_file(path: Path) -> tuple[str | None, str, float]:
    """Read message, traceback and time of torchrun's error file (``TORCHELASTIC_ERROR_FILE``)."""
    body: Any = (read_json(path) or {}).get("message")
    try:
        extra = body["extraInfo"]
        trace, at = str(extra["py_callstack"])[-_TEXT_LIMIT:], float(extra.get("at_s", "inf"))
        return str(body["message"])[:_TEXT_LIMIT] or None, trace, at
    except (TypeError, KeyError, ValueError, AttributeError):
        return None, "", float("inf")


def _in_words(code: int, killed_by_kernel: bool) -> str:
    if code >= 0:
        return f"exit code {code}"
    if code == -signal.SIGKILL and killed_by_kernel:
        return f"killed by SIGKILL {_STARVED}"
    if code == -signal.SIGKILL:
        return "killed by SIGKILL from outside"
    return f"killed by {signal_name(-code)}"


def first_error(
    paths: TrialPaths,
    incarnation: int,
    ranks: int,
    bad_codes: Mapping[int, int],
    killed_by_kernel: bool = False,
) -> RankError | None:
    """Find the root cause: the error file with the earliest time, else the first of ``bad_codes`` (in order of exit).

    But a rank that was the first to die, of a signal that leaves no time for an error file, is what others complain of.
    """
    found = []
    for rank in range(ranks):
        message, trace, at = _from_error_file(paths.error_file(incarnation, rank))
        if message is not None:
            found.append((at, rank, message, trace))
    if not found and not bad_codes:
        return None
    first, how = next(iter(bad_codes.items()), (-1, 0))
    rank, said, trace = first, "", ""
    if found and not (how in _SUDDEN and all(one != first for _, one, _, _ in found)):
        _, rank, said, trace = min(found, key=lambda one: one[0])
    code = bad_codes.get(rank)
    log = paths.log(incarnation, rank, "err")
    if code == _USAGE_CODE:
        said = _refused_arguments(log) or said
    elif code == -signal.SIGABRT and not said:
        # By C++, as where NCCL's watchdog meets an error of CUDA.
        _, _, what = last_line(log, "what():").partition(" ")
        said = what and f"killed by SIGABRT: {what.strip()}"
    elif code is not None and code > 0 and (not said or said.startswith(_NO_MORE)):
        # It died before it could write an error file, or has logged the error and left.
        last = last_line(log)
        said = last if _AN_EXCEPTION.match(last) else said
    if not said:
        said = _in_words(code or 0, killed_by_kernel)
        if last_line(log, "Fatal Python error: "):  # faulthandler's word of a native crash
            place = place_of("\n".join(read_from(log, 0)[0]))
            said += f" at {place.frame or 'no line of Python'}"
    elif killed_by_kernel and _OF_A_HELPER.match(said):  # of a process of the script's own
        said += f" {_STARVED}"
    return RankError(said, rank, trace)


def verdict(
    *,
    word: Word | None,
    asked_to_stop: bool,
    codes: Mapping[int, int],
    error: RankError | None,
) -> Exit:
    """Judge what ``exit.json`` says."""
    by_rank = {str(rank): code for rank, code in sorted(codes.items())}
    if word is not None:
        return Exit(word.why, word.step, word.saved_step, by_rank)
    if asked_to_stop:
        return Exit("killed", codes=by_rank)
    if error is not None or any(codes.values()):
        return Exit("failed", codes=by_rank, error=error)
    return Exit("finished", codes=by_rank)


# ---------------------------------------------------------------- whose fault it is


class Blamed(NamedTuple):
    """A failure with whose fault it is. ``rank``: the one whose GPU is to blame, if a GPU is."""

    outcome: Literal["failed", "lost"]
    error: str
    rank: int | None = None


def blame(
    error: str,
    atoms: int,
    strangers: Sequence[str] = (),
    *,
    has_trained: bool = False,
    has_reported: bool = False,
    is_small: bool = False,
) -> Blamed:
    """Say whose fault a failure is, where its error tells; else the trial's.

    ``strangers``: others that were on its GPUs (reliability F12). ``has_trained``: trials of this search have, on GPUs.
    ``has_reported``: this trial has. ``is_small``: it was on one GPU, with less memory than another of the search has.
    """
    size = f"{atoms} {'atom' if atoms == 1 else 'atoms'}"
    kind = memory_fault(error)
    if kind == "gpu" and strangers:
        others = ", ".join(strangers[:3])
        return Blamed("lost", f"{OUT_OF_GPU_MEMORY} on {size}; others were on its GPUs: {others}")
    if kind == "gpu" and is_small:
        return Blamed("lost", SMALL, 0)
    if kind is not None:
        said = {
            "gpu": f"{OUT_OF_GPU_MEMORY} on {size}. Smaller batches or models in the search space avoid it",
            "host": f"out of the machine's memory on {size}. Trials that run at a time share it: "
            f"smaller data, fewer loader workers or fewer atoms avoid it",
        }[kind]
        is_shared = kind == "host" and has_reported
        return Blamed("lost" if is_shared else "failed", f"{said}\n{error}")
    first, told = error.partition("\n")[0], _told(error)
    if _FROM_OUTSIDE.fullmatch(first):
        return Blamed("lost", error)
    if (disk := _OF_A_FULL_DISK.search(told)) is not None:
        what, cure = "a disk", ""
        if _OF_SHARED_MEMORY.search(told):
            what, cure = "/dev/shm", ". A container needs --shm-size=8g or --ipc=host"
        return Blamed("lost", f"{what} is to blame, not the trial: {disk[0]} ({first}){cure}")
    if has_trained and _OF_A_HANG in told:
        return Blamed("lost", f"its ranks hung: {first}")
    named = _RANK.match(error)
    rank = int(named[1]) if named else 0
    if (hardware := _OF_THE_HARDWARE.search(told)) is not None:
        why = f"its GPU is to blame, not the trial: the error names {hardware[0]} ({first})"
        return Blamed("lost", why, rank)
    if has_trained and _OF_CUDAS_START.search(told):
        why = (
            f"a new process cannot use the GPU: {first}. Where the NVIDIA driver was updated, reboot; where a "
            f"container has lost its GPUs, start it again; then `gpusched resume` continues"
        )
        return Blamed("lost", why, rank)
    return Blamed("failed", error)


def may_be_a_lost_gpus(error: str) -> bool:
    """Tell whether an error may be that of a GPU that is gone: it names CUDA, and no memory and nothing else."""
    told = _told(error)
    is_known = memory_fault(error) or _OF_A_FULL_DISK.search(told) or _OF_THE_HARDWARE.search(told)
    return not is_known and _OF_CUDA.search(told) is not None


def memory_fault(error_text: str) -> Literal["gpu", "host"] | None:
    """Return which memory a rank's error is about, if any: the first that is named."""
    told = _told(error_text)
    gpu, host = _GPU_MEMORY.search(told), _HOST_MEMORY.search(told)
    if gpu is not None and (host is None or gpu.start() < host.start()):
        return "gpu"
    return None if host is None else "host"


def _told(error: str) -> str:
    """Leave out indented lines: a traceback's source lines may handle an error that never came."""
    lines = error.splitlines()
    return "\n".join(line for line in lines if not line.startswith((" ", "\t")))
