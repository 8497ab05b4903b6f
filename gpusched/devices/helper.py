"""One process that asks NVML about all GPUs, one question at a time; and the newest readings, in the daemon.

    daemon ──question──▶ helper (NVML) ──answer, or the error──▶ daemon

A driver call may block for as long as a sick GPU pleases. So the helper may hang, crash or be ended, and another one is
started: the GPU whose question was being answered is left alone for a while. It is also ended when a GPU is lost or
waits for a reset, which wants every client gone; the next one opens that GPU 20 s later at the earliest. Here
nothing waits: readings grow old while the driver does not answer, and what cannot be read is not free.
"""

from __future__ import annotations

import contextlib
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

from gpusched.devices.nvml import (
    Gpu,
    GpuUsage,
    NvmlError,
    NvmlLost,
    ask,
    handle_of,
    read_gpu,
    read_usage,
    read_vitals,
    start,
)
from gpusched.devices.release import Processes, in_initial_pid_namespace
from gpusched.devices.unit import NEVER, Board, Seen

PROGRAM = "from gpusched.devices.helper import main; main()  # asks NVML"
KILLED_WITHIN_S = 0.02
STUCK: list[subprocess.Popen[bytes]] = []
"""Killed children that have not ended yet (a call stuck in the kernel outlives SIGKILL): nobody else waits for them."""
HANG_MAX_S = 3.0
"""A helper that has not answered for so long is ended, and another one asks about the other GPUs."""
START_MAX_S = 10.0
"""The same for a new helper's first answer: without persistence mode the driver wakes GPUs up."""
AFTER_HANG_S = 10.0
"""The GPU whose question hung is asked again after this."""
AFTER_END_S = 1.0
REOPEN_S = 20.0
"""A GPU that is lost or waits for a reset is looked at again after this."""
LOOK_PACE_S = 0.9
"""Somewhat less than the second after which everybody looks."""
VITALS_PACE_S = 1.9


@dataclass(frozen=True, slots=True)
class DriverFacts:
    gpus: int
    version: str
    cuda: int


# ---------------------------------------------------------------- in the helper


class Answerer:
    """The answers of the driver, a method a question. Each may block."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._handles: dict[str, Any] = {}

    def answer(self, question: str, *given: Any) -> Any:
        """Return the answer to a question; an error is one, too."""
        try:
            start()
            return getattr(self, question)(*given)
        except NvmlError as error:
            return error
        except Exception as error:  # the other questions are worth asking all the same
            return NvmlError(question, 0, f"{type(error).__name__}: {error}")

    def driver(self) -> DriverFacts:
        version = str(ask("nvmlSystemGetDriverVersion"))
        cuda = int(ask("nvmlSystemGetCudaDriverVersion_v2"))
        return DriverFacts(int(ask("nvmlDeviceGetCount")), version, cuda)

    def facts(self, index: int) -> Gpu:
        return read_gpu(index)

    def look(self, gpu: Gpu, at: float, vitals: bool) -> Seen:
        handle = self._handle(gpu)
        usage = read_usage(handle, at)
        holders = tuple(self._processes.who(p.pid) for p in usage.processes or ())
        return Seen(usage, read_vitals(handle) if vitals else None, holders)

    def _handle(self, gpu: Gpu) -> Any:
        if gpu.uuid not in self._handles:
            self._handles[gpu.uuid] = handle_of(gpu)
        return self._handles[gpu.uuid]


def main() -> None:
    """Serve the line of descriptor ``argv[1]`` until it is closed; then the owner's pid and the search's folder."""
    descriptor, owner, folder = sys.argv[1:]
    experiment = Path(folder) if folder else None
    visible = in_initial_pid_namespace()
    answerer = Answerer(Processes(experiment, owner=int(owner), visible=visible))
    with contextlib.suppress(EOFError, OSError), Connection(int(descriptor)) as line:
        while True:
            line.send(answerer.answer(*line.recv()))


# ---------------------------------------------------------------- the helper, from outside


class Helper:
    """A helper process, which ends with its parent: the line is closed then. No method blocks."""

    def __init__(self, processes: Processes) -> None:
        self.line, theirs = Pipe()
        words = (str(theirs.fileno()), str(processes.owner), processes.experiment or "")
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", PROGRAM, *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                process_group=0,
            )

    def ask(self, *question: Any) -> None:
        """Send a question."""
        with contextlib.suppress(OSError):  # the child has ended; ``take`` says so
            self.line.send(question)

    def take(self) -> Any:
        """Return the answer; None while there is none. Raises EOFError where the helper has ended."""
        try:
            return self.line.recv() if self.line.poll() else None
        except OSError:
            raise EOFError from None

    def kill(self) -> None:
        self.line.close()
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=KILLED_WITHIN_S)
        STUCK[:] = [one for one in (*STUCK, self._process) if one.poll() is None]

    def is_gone(self) -> bool:
        """Tell whether the process has ended: a call stuck in the kernel outlives SIGKILL."""
        return self._process.poll() is not None


class World:
    """The monotonic clock, and helpers; tests have others."""

    def now(self) -> float:
        return time.monotonic()

    def start(self, processes: Processes) -> Helper:
        return Helper(processes)

    def wait(self, helper: Helper | None, timeout_s: float) -> None:
        """Wait until the helper has an answer, or the time is over."""
        select.select([helper.line] if helper else [], [], [], max(0.0, timeout_s))


# ---------------------------------------------------------------- readings, in the daemon


class Driver:
    """The questions to one helper at a time, and the boards that they are about. Only ``answer`` waits."""

    def __init__(self, world: World, processes: Processes) -> None:
        self._world = world
        self._processes = processes
        self.boards: list[Board] = []
        self._helper: Helper | None = None
        self._is_new = True
        #: The board of the question that is being answered.
        self._asked: Board | None = None
        self._start_at = 0.0
        #: Killed helpers by the board whose question they were answering.
        self._stuck: dict[Board, Helper] = {}

    @property
    def is_waiting(self) -> bool:
        """An answer has not come yet."""
        return self._asked is not None

    def close(self) -> None:
        """End the helper, and ask nothing more."""
        self._end_helper()
        self.boards = []

    def answer(self, timeout_s: float, *question: Any) -> Any:
        """Ask and wait; ends a helper that does not answer. Raises NvmlError, and TimeoutError."""
        helper = self._begun()
        helper.ask(*question)
        until = self._world.now() + timeout_s
        try:
            while (answer := helper.take()) is None:
                if self._world.now() >= until:
                    self._end_helper()
                    raise TimeoutError("NVML did not answer")
                self._world.wait(helper, until - self._world.now())
        except EOFError:
            self._end_helper()
            raise TimeoutError("the process that asks NVML has ended") from None
        self._is_new = False
        if isinstance(answer, NvmlError):
            raise answer
        return answer

    def wait(self, timeout_s: float) -> None:
        """Wait until an answer is there, or the time is over."""
        self._world.wait(self._helper, timeout_s)

    def leave(self, board: Board, why: str) -> None:
        """Close a GPU for the driver, so that it can be reset, and look at it again later."""
        if not board.gone:
            board.gone, board.waits_since = why, None
            board.not_before = self._world.now() + REOPEN_S
            self._end_helper()

    def turn(self, paces: Mapping[Board, float] | None = None) -> None:
        """Take the answer that has come, end a helper that hangs, and ask what is due.

        ``paces``: seconds from one question to the next, of boards that somebody waits for.
        """
        now = self._world.now()
        while True:
            self._take(now)
            due = [
                b for b in self.boards if self._is_due(b, now, (paces or {}).get(b, LOOK_PACE_S))
            ]
            for board in due:
                if board.waits_since is None and not board.gone:
                    board.waits_since = now
            if self._asked is not None or not due or (not self._helper and now < self._start_at):
                return
            self._ask(min(due, key=lambda board: board.asked_at), now)

    def _is_due(self, board: Board, now: float, pace_s: float) -> bool:
        is_early = now < board.not_before or now - board.asked_at < pace_s or now <= board.asked_at
        if is_early or not board.may_be_asked:
            return False
        stuck = self._stuck.get(board)
        if stuck is None or stuck.is_gone():
            self._stuck.pop(board, None)
            return True
        return False

    def _ask(self, board: Board, now: float) -> None:
        is_due = now >= board.vitals_due
        if is_due:
            board.vitals_due = now + VITALS_PACE_S
        board.asked_at, self._asked = now, board
        self._begun().ask("look", board.gpu, now, is_due)

    def _take(self, now: float) -> None:
        """Take the answer about the board that was asked about; blame the board if none will come."""
        board, helper = self._asked, self._helper
        if board is None or helper is None:
            return
        try:
            answer = helper.take()
        except EOFError:
            self._blame(board, now + AFTER_END_S)
            return
        if answer is None:
            if now - board.asked_at > (START_MAX_S if self._is_new else HANG_MAX_S):
                self._blame(board, now + AFTER_HANG_S)
            return
        self._is_new, self._asked, board.waits_since = False, None, None
        if isinstance(answer, NvmlLost):
            board.gone = ""
            self.leave(board, f"the GPU is lost: {answer.text}")
        elif isinstance(answer, NvmlError):
            board.keep(Seen(GpuUsage(board.asked_at, error=str(answer))))
        else:
            board.keep(answer)

    def _blame(self, board: Board, due: float) -> None:
        """End a helper that hangs or has ended over a question about this GPU."""
        if self._helper is not None:
            self._stuck[board] = self._helper
        board.not_before, board.vitals_due = due, 0.0
        self._end_helper()

    def _begun(self) -> Helper:
        if self._helper is None:
            self._helper, self._is_new = self._world.start(self._processes), True
            self._start_at = self._world.now() + AFTER_END_S  # no storm of helpers that end at once
        return self._helper

    def _end_helper(self) -> None:
        if self._helper is not None:
            self._helper.kill()
        if self._asked is not None:
            self._asked.asked_at = NEVER
        self._helper = self._asked = None
