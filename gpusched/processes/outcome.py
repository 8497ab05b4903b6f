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

from gpusched.folder.files import read_json, read_record
from gpusched.folder.paths import TrialPaths
from gpusched.protocol import Exit, RankError, Word, exit_from, word_from

_TEXT_LIMIT = 16_000
_USAGE_CODE = 2
"""Exit code of argparse and its kin."""
_SUDDEN = tuple(
    -number
    for number in (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
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


def tail_of(path: Path) -> str:
    """Read the end of a log; empty if missing."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - _TEXT_LIMIT))
            return file.read(_TEXT_LIMIT).decode("utf-8", "replace")
    except OSError:
        return ""


def last_line(path: Path) -> str:
    """Read the last line of a log that is not blank; empty if missing."""
    return next((line.strip() for line in reversed(tail_of(path).splitlines()) if line.strip()), "")


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


def _refused_arguments(path: Path) -> str | None:
    """Return what argparse said last, where a script ended with its exit code."""
    said = last_line(path)
    if ": error: " not in said:
        return None
    return f"{said}; `args` of the recipe has the script's arguments, as in --lr=${{lr}}"


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
) -> RankError | None:
    """Find the root cause: the error file with the earliest time, else the first of ``bad_codes`` (in order of exit).

    But a rank that was the first to die, of a signal that leaves no time for an error file, is what others complain of.
    """
    found = []
    for rank in range(ranks):
        path = paths.error_file(incarnation, rank)
        message, trace, at = _from_error_file(path)
        if message is not None:
            found.append((at, rank, message, trace))
    first, how = next(iter(bad_codes.items()), (None, 0))
    if found and not (how in _SUDDEN and all(rank != first for _, rank, _, _ in found)):
        _, rank, message, trace = min(found, key=lambda one: one[0])
        code = bad_codes.get(rank)
        if code == _USAGE_CODE:
            message = _refused_arguments(paths.log(incarnation, rank, "err")) or message
        return RankError(message, rank, trace, code)
    if not bad_codes:
        return None
    rank, code = next(iter(bad_codes.items()))
    err = paths.log(incarnation, rank, "err")
    said, trace = _from_stderr(tail_of(err))
    if said is None and code == _USAGE_CODE:
        said = _refused_arguments(err)
    return RankError(said or _in_words(code, killed_by_kernel), rank, trace, code)


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
