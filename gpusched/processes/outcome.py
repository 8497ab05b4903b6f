"""The outcome of an incarnation, judged from what it left on disk.

The rule: a committed last word decides, and then exit codes do not count any more (a rank that has finished may
abort while the interpreter tears gloo down). Without a last word, asked to stop means ``killed``, a bad exit means
``failed``, a good one ``finished``. ``exit.json`` has the form of ``docs/contracts.md``.

Everything read here was written by a trial: sizes are bounded, and nothing that is not as it should be raises.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpusched.folder.files import read_json
from gpusched.folder.paths import TrialPaths

_TEXT_LIMIT = 16_000
_STUCK_LIMIT = 500
_SUDDEN = tuple(
    -number
    for number in (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
)


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def last_word(paths: TrialPaths, incarnation: int) -> dict[str, Any] | None:
    """Read the committed last word, with ``why`` known to be one of its two values; None if there is none."""
    word = read_json(paths.last_word(incarnation), 65536)
    return word if word is not None and word.get("why") in ("yielded", "finished") else None


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def tail_of(path: Path, size: int = _TEXT_LIMIT) -> str:
    """Read the end of a log; empty if there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - size))
            return file.read(size).decode("utf-8", "replace")
    except OSError:
        return ""


def _from_stderr(text: str) -> tuple[str | None, str]:
    """Find the last traceback in a rank's stderr and its last line: for scripts that write no error file."""
    at = text.rfind("Traceback (most recent call last):")
    if at < 0:
        return None, ""
    lines = text[at:].splitlines()
    for index, line in enumerate(lines[1:], 1):
        if line and not line[0].isspace():
            return line, "\n".join(lines[: index + 1])
    return None, ""


def _from_error_file(path: Path) -> tuple[str | None, str, float]:
    """Read message, traceback and time of torchrun's error file (``TORCHELASTIC_ERROR_FILE``)."""
    body = (read_json(path) or {}).get("message")
    if isinstance(body, str):
        return body[:_TEXT_LIMIT], "", float("inf")
    if not isinstance(body, dict):
        return None, "", float("inf")
    extra = body.get("extraInfo")
    extra = extra if isinstance(extra, dict) else {}
    try:
        at = float(str(extra.get("at_s", extra.get("timestamp", "inf"))))  # ours is exact
    except ValueError:
        at = float("inf")
    trace = str(extra.get("py_callstack", ""))[-_TEXT_LIMIT:]
    return str(body.get("message", ""))[:_TEXT_LIMIT] or None, trace, at


def _in_words(code: int, killed_by_kernel: bool) -> str:
    if code >= 0:
        return f"exit code {code}"
    if code == -signal.SIGKILL and killed_by_kernel:
        return "killed by SIGKILL while the kernel was short of memory (out-of-memory killer)"
    if code == -signal.SIGKILL:
        return "killed by SIGKILL from outside"
    return f"killed by {signal_name(-code)}"


def first_error(
    paths: TrialPaths,
    incarnation: int,
    ranks: int,
    bad_codes: Mapping[int, int],
    killed_by_kernel: bool = False,
) -> dict[str, Any] | None:
    """Find the root cause: the error file with the earliest time, else the first of ``bad_codes`` (in order of exit).

    But a rank that was the first to die, of a signal that leaves no time for an error file, is what others complain of.
    """
    found = []
    for rank in range(ranks):
        message, trace, at = _from_error_file(paths.error_file(incarnation, rank))
        if message is not None:
            found.append((at, rank, message, trace))
    first, how = next(iter(bad_codes.items()), (None, 0))
    if found and not (how in _SUDDEN and all(rank != first for _, rank, _, _ in found)):
        _, rank, message, trace = min(found, key=lambda one: one[0])
        return _error(rank, message, trace, bad_codes.get(rank))
    if not bad_codes:
        return None
    rank, code = next(iter(bad_codes.items()))
    said, trace = _from_stderr(tail_of(paths.log(incarnation, rank, "err")))
    return _error(rank, said or _in_words(code, killed_by_kernel), trace, code)


def no_ranks_error(message: str) -> dict[str, Any]:
    """Make the error of ranks that could not even be started."""
    return _error(None, message, "", None)


def _error(rank: int | None, message: str, trace: str, code: int | None) -> dict[str, Any]:
    return {"rank": rank, "message": message, "traceback": trace, "exitcode": code}


def verdict(
    *,
    word: Mapping[str, Any] | None,
    asked_to_stop: bool,
    codes: Mapping[int, int],
    error: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Make the content of ``exit.json``."""
    if word is not None:
        outcome = str(word["why"])
        error = None
    elif asked_to_stop:
        outcome = "killed"
        error = None
    elif error is not None or any(codes.values()):
        outcome = "failed"
    else:
        outcome = "finished"
    return {
        "outcome": outcome,
        "step": _count((word or {}).get("step")),
        "saved_step": _count((word or {}).get("saved_step")),
        "codes": {str(rank): code for rank, code in sorted(codes.items())},
        "error": error,
    }


def error_text(exit_record: Mapping[str, Any]) -> str | None:
    """Word the error of an ``exit.json`` as one text: the line for people first, the traceback below it."""
    error = exit_record.get("error")
    if not isinstance(error, dict):
        return None
    rank, message = error.get("rank"), error.get("message")
    head = str(message) if rank is None else f"rank {rank}: {message}"
    trace = error.get("traceback")
    return f"{head}\n{trace}" if trace else head


def stuck_text(exit_record: Mapping[str, Any]) -> str | None:
    """Return which rank hung where, in an ``exit.json`` of an incarnation that was ended because it hung."""
    stuck = exit_record.get("stuck")
    return stuck[:_STUCK_LIMIT] if isinstance(stuck, str) and stuck else None


def sane_exit(record: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return ``record`` with numbers cleaned if it has the form of ``exit.json``, else None."""
    if record is None or record.get("outcome") not in ("yielded", "finished", "failed", "killed"):
        return None
    return {
        **record,
        "step": _count(record.get("step")),
        "saved_step": _count(record.get("saved_step")),
    }
