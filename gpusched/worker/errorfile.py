"""Failures of a script in its own frames: for stderr and for torchrun's error file.

The error file is what torch's ``@record`` writes, plus ``extraInfo.at_s``: of several ranks that fail within one
second, the first is the one to show.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from types import TracebackType

_MESSAGE_LIMIT = 4_000
_TRACE_LIMIT = 32_000
_PACKAGE = f"{Path(__file__).parent.parent}/"


def say(text: str) -> None:
    """Print one line on stderr. Where it cannot be written (disk full, closed), it is lost: it must end no script."""
    with suppress(OSError, ValueError, AttributeError):
        print(f"gpusched: {text}", file=sys.stderr, flush=True)


def trace_of(error: BaseException, script: str) -> str:
    """The traceback from the first frame that is not ours; the error alone where there is none (it does not compile).

    Where a call of gpusched's was refused, that call is the last frame (all of them with ``GPUSCHED_DEBUG`` set).
    """
    frame: TracebackType | None = error.__traceback__
    while frame is not None and _is_ours(frame.tb_frame.f_code.co_filename):
        frame = frame.tb_next
    unread = isinstance(error, OSError) and error.filename == script
    if frame is None or unread:
        return f"{headline(error, script)}\n"
    story = traceback.TracebackException(type(error), error, frame)
    if not os.environ.get("GPUSCHED_DEBUG"):
        while len(story.stack) > 1 and _is_ours(story.stack[-1].filename):
            del story.stack[-1]
    return "".join(story.format())


def _is_ours(file: str) -> bool:
    return file.startswith(_PACKAGE)


def headline(error: BaseException, script: str) -> str:
    """The error in a line; a SyntaxError with file, line and caret.

    The script's line comes first: the one that made a call of gpusched's that was refused, else the last one that was
    the user's own, which is where people look.
    """
    if isinstance(error, FileNotFoundError) and error.filename == script:
        return f"FileNotFoundError: there is no script {script}"
    text = "".join(traceback.format_exception_only(error)).strip()
    where = _refused_at(error.__traceback__) or _last_own_line(error.__traceback__, script)
    if not where or where in text or isinstance(error, SyntaxError):
        return text
    kind, colon, message = text.partition(": ")
    return f"{kind}: {where}: {message}" if colon else f"{text} ({where})"


def _refused_at(trace: TracebackType | None) -> str | None:
    """The last line of the script before frames of ours; None if the error is not ours."""
    where, ours = None, False
    while trace is not None:
        ours = _is_ours(trace.tb_frame.f_code.co_filename)
        if not ours:
            where = f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return where if ours else None


def _last_own_line(trace: TracebackType | None, script: str) -> str | None:
    """The last line in the traceback of a file in the script's folder, or below it, that is no installed package."""
    folder = f"{Path(script).parent}/"
    where = None
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file.startswith(folder) and "/site-packages/" not in file:
            where = f"{file.removeprefix(folder)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return where


def write_error_file(message: str, trace: str) -> None:
    """Tell torchrun's agent why this rank failed, if it wants to know."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return
    now_s = time.time()
    content = {
        "message": {
            "message": message[:_MESSAGE_LIMIT],
            "extraInfo": {
                "py_callstack": trace[-_TRACE_LIMIT:],
                "timestamp": str(int(now_s)),
                "at_s": now_s,
            },
        }
    }
    try:
        Path(path).write_text(json.dumps(content))
    except OSError as error:
        say(f"{path} cannot be written: {error}")
