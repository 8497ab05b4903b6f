"""One process that asks NVML about all GPUs, one question at a time; and the newest readings, in the daemon.

    daemon ──question──▶ helper (NVML) ──answer, or the error──▶ daemon

A driver call may block for as long as a sick GPU pleases. So the helper may hang, crash or be ended, and another one is
started, which leaves the GPU of that question alone for a while. It is also ended when a GPU is lost or waits for a
reset, which wants every client gone. ``turn`` waits for nothing: readings grow old while the driver does not answer,
and what cannot be read is not free.
"""

from __future__ import annotations

import contextlib
import select
import subprocess
import sys
import time
from collections.abc import Collection
from dataclasses import replace
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

from gpusched.devices.nvml import (
    Gpu,
    Machine,
    NvmlAbsent,
    NvmlError,
    NvmlLost,
    handle_of,
    read_machine,
    read_usage,
    read_vitals,
    start,
)
from gpusched.devices.release import Processes, Seen
from gpusched.devices.unit import NEVER, Board
from gpusched.errors import DeviceError

PROGRAM = "from gpusched.devices.helper import main; main()  # asks NVML"
KILLED: list[subprocess.Popen[bytes]] = []
"""Killed helpers that have not ended yet (a call stuck in the kernel outlives SIGKILL): nobody else waits for them."""
START_TIMEOUT_S = 120.0
HANG_MAX_S, FIRST_HANG_MAX_S = 3.0, 10.0
"""A helper without an answer for so long is ended. Its first answer about a GPU may take longer, since a GPU without
persistence mode wakes up, unless the last question about that GPU hung: the other GPUs wait meanwhile."""
RETRY_S = 10.0
"""A GPU whose question hung, that is lost or waits for a reset, is asked about again after this."""
LOOK_PACE_S, RELEASE_PACE_S = 0.9, 0.05
"""From one look at a GPU to the next; while a release is waited for."""


def answer(processes: Processes, gpu: Gpu | None, at: float) -> Seen | Machine | NvmlError:
    """Read a GPU and name the processes on it, or look for all GPUs; in the helper, since it may block."""
    try:
        start()
        if gpu is None:
            return read_machine()
        handle = handle_of(gpu)
        there, memory_bytes = read_usage(handle)
        holders = [
            replace(processes.who(pid), memory_bytes=memory, draws=draws)
            for pid, (memory, draws) in there.items()
        ]
        return Seen(at, tuple(holders), memory_bytes, read_vitals(handle))
    except NvmlError as error:
        return error
    except Exception as error:  # the other GPUs are worth asking about all the same
        return NvmlError("look", 0, f"{type(error).__name__}: {error}")


def main() -> None:
    """Serve the line of descriptor ``argv[1]`` until it is closed; ``argv[2]``: the search's folder, empty for any."""
    descriptor, folder = sys.argv[1:]
    processes = Processes(Path(folder) if folder else None)
    with contextlib.suppress(EOFError, OSError), Connection(int(descriptor)) as line:
        while True:
            line.send(answer(processes, *line.recv()))


class Helper:
    """A helper process, which ends with its parent: the line is closed then. No method blocks."""

    def __init__(self, processes: Processes) -> None:
        self.line, theirs = Pipe()
        words = (str(theirs.fileno()), processes.experiment or "")
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", PROGRAM, *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                process_group=0,
            )

    def ask(self, gpu: Gpu | None, at: float) -> None:
        """Send a question."""
        with contextlib.suppress(OSError):  # the child has ended; ``take`` says so
            self.line.send((gpu, at))

    def take(self) -> Any:
        """Return the answer; None while there is none. Raises EOFError where the helper has ended."""
        try:
            return self.line.recv() if self.line.poll() else None
        except OSError:
            raise EOFError from None

    def kill(self) -> None:
        self.line.close()
        self._process.kill()
        KILLED[:] = [one for one in (*KILLED, self._process) if one.poll() is None]

    def is_gone(self) -> bool:
        """Tell whether the process has ended."""
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


class Driver:
    """The questions to one helper at a time, and the boards that they are about. ``machine`` and ``wait`` wait."""

    def __init__(self, world: World, processes: Processes) -> None:
        self._world = world
        self._processes = processes
        self.boards: Collection[Board] = ()
        self._helper: Helper | None = None
        #: The boards that the helper has answered about.
        self._awake: set[Board] = set()
        #: The board of the question that is being answered.
        self._asked: Board | None = None
        #: Ended helpers, by the board whose question they did not answer.
        self._stuck: dict[Board, Helper] = {}

    @property
    def is_waiting(self) -> bool:
        """An answer has not come yet."""
        return self._asked is not None

    def close(self) -> None:
        """End the helper, and ask nothing more."""
        self._end_helper()
        self.boards = ()

    def machine(self) -> Machine:
        """Look for all GPUs before anything else is asked, and wait.

        May take seconds. Raises NvmlAbsent without a driver or a GPU, DeviceError where no answer comes.
        """
        helper = self._begun()
        helper.ask(None, 0.0)
        self._world.wait(helper, START_TIMEOUT_S)
        try:
            found: Machine | NvmlError | None = helper.take()
        except EOFError:
            raise DeviceError("the process that asks the NVIDIA driver has ended") from None
        if found is None:
            raise DeviceError(
                f"the NVIDIA driver did not answer within {START_TIMEOUT_S:.0f} s; does `nvidia-smi` hang too?"
            )
        if isinstance(found, NvmlError):
            raise found
        if found.notes and not found.gpus:
            raise DeviceError(f"no GPU can be used here: {'; '.join(found.notes)}")
        if not found.gpus:
            raise NvmlAbsent("nvmlDeviceGetCount", 0, "the driver sees no GPU")
        return found

    def wait(self, timeout_s: float) -> None:
        """Wait until an answer is there, or the time is over."""
        self._world.wait(self._helper, timeout_s)

    def leave(self, board: Board, why: str) -> None:
        """Close a GPU for the driver, so that it can be reset, and have another helper look at it later."""
        board.gone, board.waits_since = why, None
        board.not_before = self._world.now() + RETRY_S
        self._end_helper()

    def turn(self, urgent: Collection[Board] = ()) -> None:
        """Take the answer that has come, end a helper that hangs, and ask about the board that is due for longest.

        ``urgent``: boards whose release is waited for.
        """
        now = self._world.now()
        self._take(now)
        due = [board for board in self.boards if self._is_due(board, now, board in urgent)]
        for board in due:
            if board.waits_since is None and not board.gone:
                board.waits_since = now
        if due and self._asked is None:
            board = min(due, key=lambda board: board.asked_at)
            board.asked_at = now
            with contextlib.suppress(OSError):  # no process can be started now
                self._begun().ask(board.gpu, now)
                self._asked = board

    def _is_due(self, board: Board, now: float, is_urgent: bool) -> bool:
        stuck, pace_s = self._stuck.get(board), RELEASE_PACE_S if is_urgent else LOOK_PACE_S
        is_time = now >= board.not_before and now - board.asked_at >= pace_s
        return is_time and (stuck is None or stuck.is_gone())

    def _take(self, now: float) -> None:
        """Take the answer about the board that was asked about; leave the board alone if none comes."""
        board, helper = self._asked, self._helper
        if board is None or helper is None:
            return
        try:
            answer, has_ended = helper.take(), False
        except EOFError:
            answer, has_ended = None, True
        if answer is None:
            may_wake = not self._awake or not (board in self._awake or board in self._stuck)
            hangs = now - board.asked_at > (FIRST_HANG_MAX_S if may_wake else HANG_MAX_S)
            if hangs:
                self._stuck[board] = helper
            if hangs or has_ended:
                board.not_before = now + RETRY_S
                self._end_helper()
            return
        self._asked, board.waits_since = None, None
        self._awake.add(board)
        self._stuck.pop(board, None)
        if isinstance(answer, NvmlLost):
            self.leave(board, board.gone or f"the GPU is lost: {answer.text}")
        elif isinstance(answer, NvmlError):
            board.keep(Seen(board.asked_at, error=str(answer)))
        else:
            board.keep(answer)

    def _begun(self) -> Helper:
        if self._helper is None:
            self._helper = self._world.start(self._processes)
            self._awake = set()
        return self._helper

    def _end_helper(self) -> None:
        if self._helper is not None:
            self._helper.kill()
        if self._asked is not None:
            self._asked.asked_at = NEVER
        self._helper = self._asked = None
