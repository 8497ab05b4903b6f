"""Outcome of an incarnation: the last word decides; else the first error; nothing a trial wrote can break it."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from gpusched.folder.paths import TrialPaths
from gpusched.processes.outcome import (
    blame,
    first_error,
    last_word,
    may_be_a_lost_gpus,
    memory_fault,
    read_exit,
    verdict,
)
from gpusched.protocol import RankError, Word, encode

WORD = Word("yielded", 4, 4)
ERROR = RankError("ValueError: x", 1)


@pytest.fixture
def paths(tmp_path: Path) -> TrialPaths:
    paths = TrialPaths(tmp_path)
    paths.logs(1).mkdir(parents=True)
    return paths


def error_file(paths: TrialPaths, rank: int, message: str, **extra: Any) -> None:
    body = {
        "message": {"message": message, "extraInfo": {"py_callstack": f"trace of {rank}", **extra}}
    }
    paths.error_file(1, rank).write_text(json.dumps(body))


@pytest.mark.parametrize(
    ("word", "stopped", "codes", "error", "expected"),
    [
        (WORD, False, {0: 0, 1: 0}, None, "yielded"),
        (WORD, True, {0: -9, 1: -6}, ERROR, "yielded"),
        (Word("finished", 4, 4), False, {0: -6}, None, "finished"),
        (None, True, {0: 0}, None, "killed"),
        (None, True, {0: 1}, ERROR, "killed"),
        (None, False, {0: 0, 1: 1}, ERROR, "failed"),
        (None, False, {0: -11}, None, "failed"),
        (None, False, {}, RankError("no torch"), "failed"),
        (None, False, {0: 0, 1: 0}, None, "finished"),
    ],
)
def test_verdict(
    paths: TrialPaths, word: Any, stopped: bool, codes: Any, error: Any, expected: str
) -> None:
    record = verdict(word=word, asked_to_stop=stopped, codes=codes, error=error)
    assert record.outcome == expected
    assert (record.error is None) == (expected != "failed" or error is None)
    assert record.step == (4 if word else None)
    paths.exit(1).write_bytes(encode(record))
    assert read_exit(paths, 1) == record


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "{}", "null", "[" * 9000, '{"step": 4}', '{"why": "bored"}'),
        *('{"why": "finished", "step": "4"}', '{"outcome": "lost"}', '{"outcome": 3}'),
    ],
)
def test_what_is_no_last_word_and_no_exit_record(paths: TrialPaths, text: str) -> None:
    paths.last_word(1).write_text(text)
    paths.exit(1).write_text(text)
    assert last_word(paths, 1) is None
    assert read_exit(paths, 1) is None


@pytest.mark.parametrize(
    ("codes", "rank"),
    [
        ({1: -9, 0: 1}, 1),  # killed from outside; the other complains that it has gone
        ({1: -11, 0: 1}, 1),
        ({0: 1, 1: -9}, 0),  # it failed, and the other was killed for it
        ({1: -6, 0: 1}, 0),  # an abort may be how a rank leaves
        ({0: -9, 1: -9}, 0),  # it has said why itself
    ],
)
def test_whoever_was_killed_first_is_the_cause(
    paths: TrialPaths, codes: dict[int, int], rank: int
) -> None:
    error_file(paths, 0, "RanksDisagree: another rank has gone", timestamp="5")
    error = first_error(paths, 1, 2, codes)
    assert error.rank == rank
    assert ("killed by SIG" in error.message) == (rank == 1)


def test_the_earliest_error_file_is_the_cause(paths: TrialPaths) -> None:
    error_file(paths, 0, "RuntimeError: peer gone", timestamp="1700000000", at_s=1700000000.9)
    error_file(paths, 1, "ValueError: bad", timestamp="1700000000", at_s=1700000000.1)
    error = first_error(paths, 1, 2, {0: 1, 1: 3})
    assert error == RankError("ValueError: bad", 1, "trace of 1")


def test_without_an_error_file_the_first_bad_exit_is_the_cause(paths: TrialPaths) -> None:
    assert first_error(paths, 1, 4, {2: 3, 0: 5}) == RankError("exit code 3", 2)


def test_an_exception_without_an_error_file_is_the_last_line_of_the_log(paths: TrialPaths) -> None:
    """As where the recipe's interpreter lacks a package."""
    log = paths.log(1, 0, "err")
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("Traceback:\n  File x\nImportError: gpusched needs msgspec in the interpreter\n")
    assert first_error(paths, 1, 1, {0: 1}).message.startswith(
        "ImportError: gpusched needs msgspec"
    )
    error_file(paths, 0, "SystemExit: the script ended with exit code 1")
    assert "ImportError" in first_error(paths, 1, 1, {0: 1}).message, "it has logged the error"
    log.write_text("bye\n")
    assert "the script ended with exit code 1" in first_error(paths, 1, 1, {0: 1}).message
    paths.error_file(1, 0).unlink()
    assert first_error(paths, 1, 1, {0: 1}).message == "exit code 1"


@pytest.mark.parametrize(
    ("code", "starved", "said"),
    [
        (-signal.SIGSEGV, False, "killed by SIGSEGV"),
        (-signal.SIGKILL, False, "killed by SIGKILL from outside"),
        (-signal.SIGKILL, True, "out-of-memory killer"),
        (-99, False, "killed by signal 99"),
    ],
)
def test_an_exit_without_words(paths: TrialPaths, code: int, starved: bool, said: str) -> None:
    error = first_error(paths, 1, 1, {0: code}, starved)
    assert said in error.message


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "[" * 9000, '{"message": 5}', '{"message": {"message": []}}'),
        '{"message": {"extraInfo": 3}}',
    ],
)
def test_a_damaged_error_file_is_no_obstacle(paths: TrialPaths, text: str) -> None:
    paths.error_file(1, 0).write_text(text)
    error = first_error(paths, 1, 1, {0: 1})
    assert error.rank == 0


def test_a_huge_error_is_cut(paths: TrialPaths) -> None:
    error_file(paths, 0, "x" * 1_000_000, py_callstack="y" * 1_000_000)
    error = first_error(paths, 1, 1, {0: 1})
    assert error is not None
    assert len(encode(error)) < 60_000, "it must fit into a frame"


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        (
            "usage: train.py [-h] --lr LR\ntrain.py: error: the following arguments are required: --lr\n",
            "train.py: error: the following arguments are required: --lr",
        ),
        (
            "usage: train.py\nerror: Key 'lr':\n  Expected a float\n",
            "error: Key 'lr': Expected a float",
        ),
        ("Try 'train.py --help'.\n\nError: No such option: --l\n", "Error: No such option: --l"),
        (
            "ERROR: Could not consume arg: --l\nUsage: train.py\n",
            "ERROR: Could not consume arg: --l",
        ),
        ("╭─ Error ───╮\n│ Unrecognized options: --l    │\n╰───╯\n", "Unrecognized options: --l"),
    ],
    ids=["argparse", "jsonargparse", "click", "fire", "tyro"],
)
def test_arguments_that_a_script_refused_are_said(
    paths: TrialPaths, printed: str, said: str
) -> None:
    """The message was "SystemExit: the script ended with exit code 2"."""
    paths.log(1, 0, "err").write_text(printed)
    expected = f"{said}; `args` of the recipe has the script's arguments, as in --lr=${{lr}}"
    assert first_error(paths, 1, 1, {0: 2}).message == expected
    error_file(paths, 0, "SystemExit: the script ended with exit code 2")
    assert first_error(paths, 1, 1, {0: 2}).message == expected


# ---------------------------------------------------------------- whose fault it is


TORCH = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.10 GiB "
    "of which 3.25 GiB is free."
)
ON_CPU = (
    "RuntimeError: [enforce fail at alloc_cpu.cpp:115] err == 0. DefaultCPUAllocator: can't allocate memory: you tried "
    "to allocate 8589934592 bytes. Error code 12 (Cannot allocate memory)"
)
OF_NCCL = (
    "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:94, unhandled cuda error, NCCL version 2.27.3\n"
    "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'"
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
        (OF_NCCL, "gpu"),
        (ON_CPU, "host"),
        (KILLED, "host"),
        ("rank 0: MemoryError: Unable to allocate", "host"),
        ("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 7.45 GiB", "host"),
        ("RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed. ", "host"),
        ("ValueError: out of range", None),
        ("rank 0: killed by SIGKILL from outside", None),
        ("torch.AcceleratorError: CUDA error: an illegal memory access was encountered", None),
        (HANDLED, None),
    ],
)
def test_whose_memory_an_error_is_about(text: str, kind: str | None) -> None:
    assert memory_fault(text) == kind


def test_a_failure_for_want_of_memory_says_what_avoids_it() -> None:
    blamed = blame(f"rank 0: {TORCH}\ntrace", 2)
    assert blamed.outcome == "failed"
    head, _, rest = blamed.error.partition("\n")
    assert head == (
        "out of GPU memory on 2 atoms. Smaller batches or models in the search space avoid it"
    )
    assert rest == f"rank 0: {TORCH}\ntrace"


def test_with_strangers_on_its_gpus_it_is_lost_as_the_memory_may_have_been_theirs() -> None:
    blamed = blame(TORCH, 2, ["pid 9 (bob: x)"])
    assert blamed.outcome == "lost"
    assert blamed.error.endswith("others were on its GPUs: pid 9 (bob: x)")
    assert blame(KILLED, 1, ["pid 9 (bob: x)"]).outcome == "failed", (
        "a stranger on the GPU takes nothing of the machine's memory"
    )
    assert blame(KILLED, 1, is_small=True).outcome == "failed"
    assert blame(KILLED, 1, has_reported=True).outcome == "lost", "others took it"


def test_a_helper_that_the_kernel_killed_is_told_by_what_its_rank_meets(paths: TrialPaths) -> None:
    """An environment in a process of its own: the trial had failed, of an EOFError."""
    error_file(paths, 0, "EOFError (train.py:9)")
    told = [first_error(paths, 1, 1, {0: 1}, starved).message for starved in (False, True)]
    assert [memory_fault(each) for each in told] == [None, "host"]


def test_a_full_disk_is_not_the_trials_fault() -> None:
    blamed = blame("OSError: [Errno 28] No space left on device: 'x'\n  trace", 1)
    assert blamed.outcome == "lost"
    assert blamed.error.startswith("a disk is to blame, not the trial: No space left on device (OS")
    saving = "RuntimeError: train.py:9: [enforce fail at inline_container.cc:626] . unexpected pos 64 vs 0"
    assert blame(saving, 1).outcome == "lost", "torch.save"
    shared = "RuntimeError: x\nRuntimeError: unable to write to file </torch_76_36_0>: No space left on device (28)"
    assert "--shm-size" in blame(shared, 1).error
    bus_error = "RuntimeError: .. It is possible that dataloader's workers are out of shared memory. Please try .."
    assert blame(bus_error, 1).outcome == "lost"
    assert blame("ValueError\n    raise OSError('No space left on device')", 1).outcome == "failed"


def test_which_errors_a_lost_gpu_may_have_caused() -> None:
    assert may_be_a_lost_gpus("RuntimeError: CUDA error: unspecified launch failure")
    assert may_be_a_lost_gpus("DistBackendError: NCCL error: unhandled system error")
    assert not may_be_a_lost_gpus(TORCH), "out of memory"
    assert not may_be_a_lost_gpus("ValueError: x")


def test_an_error_of_the_hardware_is_not_the_trials() -> None:
    for met in ("uncorrectable ECC error encountered", "unknown error\nCUDA kernel errors"):
        blamed = blame(f"rank 1: RuntimeError: CUDA error: {met}", 2)
        assert (blamed.outcome, blamed.rank) == ("lost", 1)
        assert blamed.error.startswith("its GPU is to blame, not the trial")
    for killed in ("rank 1: killed by SIGKILL from outside", "killed by SIGTERM"):
        assert blame(killed, 2).outcome == "lost", "a kill, or a guard of the machine's memory"
    for failed in ("ValueError: x", "rank 1: killed by SIGSEGV"):
        assert blame(failed, 2) == ("failed", failed, None)


@pytest.mark.parametrize(
    ("met", "rank"),
    [
        ("CUDA error: uncorrectable ECC error encountered", 1),
        (
            "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9) ran for ..",
            None,
        ),
    ],
)
def test_what_the_watchdog_of_nccl_met_is_said(
    paths: TrialPaths, met: str, rank: int | None
) -> None:
    """The watchdog ends the process with SIGABRT, and the trial had failed for good, killed by SIGABRT."""
    said = f"[PG ID 0 Rank 1] Process group watchdog thread terminated with exception: {met}"
    frames = "frame #0: c10::Error::Error(..)\n" * 2000
    log = f"terminate called after throwing an instance of 'c10::DistBackendError'\n  what():  {said}\n{frames}"
    paths.log(1, 1, "err").write_text(log)
    error = first_error(paths, 1, 2, {1: -signal.SIGABRT})
    assert error.message == f"killed by SIGABRT: {said}"
    assert blame(str(error), 2, has_trained=True)[::2] == ("lost", rank)


@pytest.mark.parametrize(
    "said",
    [
        "Unexpected error from cudaGetDeviceCount(). Did you .. Error 803: system has unsupported display driver",
        "CUDA unknown error - this may be due to an incorrectly set up environment, e.g. changing",
        "No CUDA GPUs are available",
    ],
)
def test_a_process_that_finds_no_gpu_where_others_have_trained_is_not_to_blame(said: str) -> None:
    """In the first trials of a search the script may be, or the machine was never fit for it."""
    error = f"rank 1: RuntimeError: train.py:3: {said}\n  trace"
    assert may_be_a_lost_gpus(error)
    blamed = blame(error, 2, has_trained=True)
    assert (blamed.outcome, blamed.rank) == ("lost", 1)
    assert f"{said}. Where the NVIDIA driver was updated, reboot" in blamed.error
    assert blame(error, 2) == ("failed", error, None)
