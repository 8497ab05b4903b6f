"""Endings of a script: a last word where it leaves in good order, else its error in its own frames.

The last word of an incarnation is ``yielded`` when the scheduler's answer made the script leave, after its checkpoint
(if one was asked for) is committed; ``finished`` when the interpreter ends by itself, without an uncaught exception or
a failing exit code. Once it is written, how the processes end is of no interest; without one, the trial failed or was
killed. The error file is what torch's ``@record`` writes, plus ``extraInfo.at_s``: of several ranks that fail within
one second, the first is the one to show. SIGTERM ends a script once what is to be saved is on the disk.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from gpusched import failpoints
from gpusched.folder.files import private_folder, write_durably
from gpusched.protocol import Why, Word, encode

_MESSAGE_LIMIT = 4_000
_TRACE_LIMIT = 32_000
PACKAGE = f"{Path(__file__).parent.parent}/"

_ends_well: bool | None = None
"""Whether the script has come to a good end, by the code that runs it; None: nothing would notice a bad one."""


def say(text: str, by: str = "gpusched: ") -> None:
    """Print text on stderr. Where it cannot be written (disk full, closed), it is lost: it must end no script."""
    with suppress(OSError, ValueError, AttributeError):
        print(f"{by}{text}", file=sys.stderr, flush=True)


def trace_of(error: BaseException, script: str) -> str:
    """The traceback from the first frame of the script; the error alone for a script that does not compile, or is gone.

    Where a call of gpusched's was refused, that call is the last frame.
    """
    frame = own_frames(error)
    if frame is None or (isinstance(error, OSError) and error.filename == script):
        return "".join(traceback.format_exception_only(error))
    story = traceback.TracebackException(type(error), error, frame)
    while len(story.stack) > 1 and _is_ours(story.stack[-1].filename):
        del story.stack[-1]
    return "".join(story.format())


def own_frames(error: BaseException) -> TracebackType | None:
    """Return the frames of an error from the first of the script on."""
    frame = error.__traceback__
    while frame is not None and _is_ours(frame.tb_frame.f_code.co_filename):
        frame = frame.tb_next
    return frame


def _is_ours(file: str) -> bool:
    return file.startswith(PACKAGE)


_ADVICE = {
    "default process group twice": (
        " gpusched.init() has made one: write `if not dist.is_initialized():` before this line, or move it above "
        "gpusched.init()"
    ),
    "group has not been initialized": (
        " One rank has none: write `if not dist.is_initialized(): dist.init_process_group()` before this line"
    ),
    "group cannot be None": " One rank has none: write `if dist.is_initialized():` before this line",
    "has no attribute 'module'": " trial.prepare wraps models on several ranks alone: leave .module out",
    "finished reduction in the prior iteration": (
        " Write model = trial.wrap(model, find_unused_parameters=True), and leave model out of trial.prepare"
    ),
    "mark a variable ready only once": (
        " Write model = trial.wrap(model, static_graph=True), and leave model out of trial.prepare"
    ),
    "on the same device": (
        " Batches from trial.prepare are on trial.device, the GPU of this rank: move the other tensor there, or y.cpu()"
    ),
    "Expected 'module', got": " Give torch.distributed.checkpoint the model itself, model.module",
}
"""Advice about errors of torch, by words in them."""


def headline(error: BaseException, script: str) -> str:
    """Return the error in a line.

    The script's line comes first: the one that made a call of gpusched's that was refused, else the last one that was
    the user's own, which is where people look.
    """
    text, where = _of_worker("".join(traceback.format_exception_only(error)), script)
    text, where = " ".join(text.split()), where or _place(error.__traceback__, script)
    if isinstance(error, SyntaxError):
        text, file = f"{type(error).__name__}: {error.msg}", error.filename or "<"
        where = where if file[0] == "<" else f"{Path(file).name}:{error.lineno}"
    for sign, advice in _ADVICE.items():
        text += advice if sign in text else ""
    if not where or where in text:
        return text
    kind, colon, message = text.partition(": ")
    return f"{kind}: {where}: {message}" if colon else f"{text} ({where})"


def _of_worker(text: str, script: str) -> tuple[str, str | None]:
    """Return the error of a DataLoader's worker, which torch words behind the worker's traceback, and its line."""
    if "\nOriginal Traceback (most recent call last):\n" not in text:
        return text, None
    folder = re.escape(str(Path(script).parent))
    own = re.findall(rf'^  File "{folder}/(?!.*/site-packages/)(.+)", line (\d+),', text, re.M)
    last = re.split(r'^  File ".+\n(?:    .*\n)*', text, flags=re.M)[-1]
    return last, ":".join(own[-1]) if own else None


def _place(trace: TracebackType | None, script: str) -> str | None:
    """Return the line of the script that made a refused call of ours; else its last line in the script's folder."""
    folder = f"{Path(script).parent}/"
    caller, own, is_refused = None, None, False
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        is_refused = _is_ours(file)
        if not is_refused:
            caller = f"{Path(file).name}:{trace.tb_lineno}"
        if file.startswith(folder) and "/site-packages/" not in file:
            own = f"{file.removeprefix(folder)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return caller if is_refused else own


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


def mark(*, good: bool) -> None:
    """Note how this process ends: ``finished`` may be written for a good end alone. A script that runs has none yet."""
    global _ends_well
    _ends_well = good


def has_failed() -> bool:
    """Tell whether this process ends badly."""
    return _ends_well is False


def is_known_good() -> bool:
    """Tell whether this process ends well; where that is not known, the exit code says it."""
    return _ends_well is True


def leave_word(path: Path, why: Why, step: int | None, saved_step: int | None) -> bool:
    """Write the last word durably. False, said on stderr, if the disk refuses: the trial has then not left."""
    failpoints.reach("lastword.before")
    try:
        private_folder(path.parent)
        write_durably(path, encode(Word(why, step, saved_step)))
    except OSError as error:
        say(f"{path} cannot be written: {error}")
        with suppress(OSError):
            path.unlink(missing_ok=True)
        return False
    failpoints.reach("lastword.after")
    return True


def commit_before_sigterm(finish: Callable[[], None]) -> None:
    """Have SIGTERM end this process only when ``finish`` has returned; a handler of the script's stays."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return
    rank = os.getpid()

    def stop(number: int, frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)

        def end() -> None:
            if os.getpid() == rank:
                finish()
            os.kill(os.getpid(), number)

        threading.Thread(target=end, name="gpusched-stop").start()

    signal.signal(signal.SIGTERM, stop)
