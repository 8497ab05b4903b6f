"""A forked rank between ``fork`` and the user's first line, and between the last line and the end of the process.

A rank must look to the script as a process of its own: own session, own streams, default signals, own environment,
cores and thread count, fresh randomness. And a rank must leave as such: threads joined, ``atexit`` run, open
files flushed, but the teardown of modules and of C++ skipped (``os._exit``): there torch 2.13 aborts in some runs
("terminate called without an active exception") and hangs in others, and it costs time while devices wait.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import io
import json
import os
import re
import sys
import threading
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from gpusched.folder.files import write_unfailingly
from gpusched.processes.identity import MARK, MARK_WIDTH_BYTES, mark_of, read_file
from gpusched.protocol import LaunchSpec
from gpusched.runtime.rank import run_file

_PR_SET_NAME = 15
_OOM_SCORE = "500"
_FILES = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)


class ForkedRank:
    """A rank that was forked and set up, and waits for ``begin``."""

    def __init__(self, pid: int, line: int) -> None:
        self.pid = pid
        self._line = line

    def begin(self, environment: Mapping[str, str], streams: tuple[str, str]) -> None:
        """Have the rank run the script. A rank that has died meanwhile is noticed when it is reaped."""
        with suppress(BrokenPipeError), os.fdopen(self._line, "wb") as line:
            line.write(json.dumps((dict(environment), *streams)).encode())


def fork_ranks(spec: LaunchSpec) -> list[ForkedRank]:
    """Fork the ranks of ``spec``; each ends at once if this process ends before ``begin``."""
    forked: list[ForkedRank] = []
    lines: list[int] = []
    for rank in range(len(spec.rank_cpus)):
        theirs, ours = os.pipe()
        pid = os.fork()
        if pid == 0:
            for line in (*lines, ours):
                os.close(line)
            _live(spec, rank, theirs)
        os.close(theirs)
        lines.append(ours)
        forked.append(ForkedRank(pid, ours))
    return forked


def _live(spec: LaunchSpec, local_rank: int, line: int) -> NoReturn:
    """Be a rank, to the end of this process."""
    code = 70
    try:
        _set_up(spec, local_rank)
        with os.fdopen(line, "rb") as told:
            text = told.read()
        if text:
            _enter(*json.loads(text))
            try:
                run_file(spec.script, spec.args, spec.cwd, spec.module)
                code = 0
            except SystemExit as leaving:
                code = int(leaving.code or 1)
            _tear_down()
    except BaseException:
        traceback.print_exc()
    finally:
        _flush(sys.stdout, sys.stderr)
        os._exit(code)


def _set_up(spec: LaunchSpec, local_rank: int) -> None:
    """Do all that does not depend on what the agent gives."""
    os.setsid()
    put_mark(mark_of(spec.experiment_dir, spec.trial, spec.incarnation))
    put_title(f"gpusched: trial {spec.trial}.{spec.incarnation} rank {local_rank}")
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)
    with suppress(OSError):
        os.sched_setaffinity(0, spec.rank_cpus[local_rank])
    threads = spec.env.get("OMP_NUM_THREADS", "")
    if threads.isdigit():  # torch is loaded already: environment variables come too late
        sys.modules["torch"].set_num_threads(int(threads))
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    gc.enable()


def _enter(environment: Mapping[str, str], out: str, err: str) -> None:
    os.environ.update(environment)
    redirect(out, 1)
    redirect(err, 2)
    write_unfailingly()


def redirect(path: Path | str, *descriptors: int) -> None:
    """Have these descriptors append to ``path``."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for descriptor in descriptors:
        os.dup2(file, descriptor)
    if file not in descriptors:
        os.close(file)


def _tear_down() -> None:
    """In the interpreter's own order: threads, ``atexit``, files still open.

    Not the names of ``__main__``: freeing a DDP model while gloo's threads live can wait for ever for the interpreter's
    lock (torch 2.13: ``~ProcessGroupGloo`` joins a thread that wants it).
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    _flush(*(thing for thing in gc.get_objects() if type(thing) in _FILES))


def _flush(*files: Any) -> None:
    for file in files:
        with suppress(Exception):
            if file is not None and not file.closed and file.writable():
                file.flush()


# ---------------------------------------------------------------------- where the kernel shows a process


def _block(first_field: int) -> tuple[int, int]:
    """Return where the kernel keeps the command line (48) or the environment (50) of this process: start, length."""
    fields = (read_file("/proc/self/stat") or b"").rpartition(b")")[2].split()
    start, end = int(fields[first_field - 3]), int(fields[first_field - 2])
    return start, end - start


def put_mark(mark: str) -> None:
    """Have this process and all it forks or executes from now on carry ``mark``, which tells whose it is.

    ``/proc/<pid>/environ`` and ``ps`` show the memory that ``exec`` filled. A process forked from the warm server would
    show the server's for ever, so its own mark (``processes/identity.py``) and title are written over that in place.
    The server is started with ``MARK`` set to blanks of the full width; where that is missing, nothing is written.
    """
    text = mark.encode().ljust(MARK_WIDTH_BYTES)
    os.environ[MARK] = text.decode()
    start, length = _block(50)
    room = rb"(?:\A|\0)%b=([^\0]{%d})\0" % (MARK.encode(), len(text))
    if (found := re.search(room, ctypes.string_at(start, length))) is not None:
        ctypes.memmove(start + found.start(1), text, len(text))


def put_title(title: str) -> None:
    """Have ``ps``, ``top`` and ``nvidia-smi`` show this title for this process, cut to the room there is."""
    start, length = _block(48)
    if length > 1:
        text = title.encode()[: length - 1]
        ctypes.memmove(start, text.ljust(length, b"\0"), length)
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_NAME, title.encode()[:15], 0, 0, 0)
