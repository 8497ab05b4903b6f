"""One process that asks NVML about all GPUs, one question at a time; and the newest readings, in the daemon.

    daemon ──Look──▶ helper (NVML) ──Seen──▶ daemon        packets of a socket pair, JSON, answered in order

A driver call may block for as long as a sick GPU pleases. So the helper may hang, crash or be ended, and another one is
started: the GPU whose question was being answered is left alone for a while, the others are asked anew. It is also
ended when a GPU is lost or waits for a reset, which wants every client gone; the next one does not open that GPU. Here
nothing waits: readings grow old while the driver does not answer, and what cannot be read is not free.
"""

from __future__ import annotations

import contextlib
import math
import select
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from gpusched.devices import health
from gpusched.devices.nvml import (
    Gpu,
    GpuUsage,
    NvmlError,
    NvmlLost,
    Vitals,
    ask,
    error_of,
    handle_of,
    read_gpu,
    read_usage,
    read_vitals,
    start,
)
from gpusched.devices.release import Holder, Processes, in_initial_pid_namespace

PACKET_MAX_BYTES = 1 << 18
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
NOT_THERE = "it is not there any more"
MIG = "MIG has cut it into slices, which gpusched does not use (`sudo nvidia-smi -i {index} -mig 0` switches MIG off)"
LOOK_PACE_S = 0.9
"""Somewhat less than the second after which everybody looks."""
VITALS_PACE_S = 1.9
NEVER = -math.inf


# ---------------------------------------------------------------- questions and answers


class Message(msgspec.Struct, frozen=True, tag=True):
    """A question or an answer; both ends know it by its class."""


class WhichDriver(Message, frozen=True):
    """Ask for the number of GPUs and the versions: answered by ``DriverFound``."""


class DriverFound(Message, frozen=True):
    gpus: int
    version: str
    cuda: int


class Facts(Message, frozen=True):
    """Ask for the GPU at NVML's ``index``: answered by ``Found``."""

    index: int


class Found(Message, frozen=True):
    gpu: Gpu


class Numbers(Message, frozen=True):
    """Ask NVML for whole numbers about GPUs, ``(function, GPUs, further arguments)`` each: answered by ``Counted``."""

    calls: tuple[tuple[str, tuple[Gpu, ...], tuple[int, ...]], ...]


class Counted(Message, frozen=True):
    """Numbers in the order asked; None in the place of each that could not be had."""

    numbers: tuple[int | None, ...]


class Look(Message, frozen=True):
    """Ask for usage, and vitals, of a GPU: answered by ``Seen``. ``at``: the time of the question."""

    gpu: Gpu
    at: float
    vitals: bool = True


class Seen(Message, frozen=True):
    usage: GpuUsage
    vitals: Vitals | None
    holders: tuple[Holder, ...]


class Failed(Message, frozen=True):
    """An NvmlError, by its parts."""

    function: str
    code: int
    text: str

    def error(self) -> NvmlError:
        return error_of(self.function, self.code, self.text)


Question = WhichDriver | Facts | Numbers | Look
Answer = DriverFound | Found | Counted | Seen | Failed
QUESTIONS: msgspec.json.Decoder[Question] = msgspec.json.Decoder(Question)
ANSWERS: msgspec.json.Decoder[Answer] = msgspec.json.Decoder(Answer)


# ---------------------------------------------------------------- in the helper


class Answerer:
    """The answers of the driver. ``answer`` may block."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._handles: dict[str, Any] = {}

    def answer(self, question: Question) -> Answer:
        """Return the answer to a question; a failure is one, too."""
        try:
            start()
            match question:
                case WhichDriver():
                    version = str(ask("nvmlSystemGetDriverVersion"))
                    cuda = int(ask("nvmlSystemGetCudaDriverVersion_v2"))
                    return DriverFound(int(ask("nvmlDeviceGetCount")), version, cuda)
                case Facts(index):
                    return Found(read_gpu(index))
                case Numbers(calls):
                    return Counted(tuple(self._number(*call) for call in calls))
                case Look(gpu, at, vitals):
                    handle = self._handle(gpu)
                    usage = read_usage(handle, at)
                    holders = tuple(self._processes.who(p.pid) for p in usage.processes or ())
                    return Seen(usage, read_vitals(handle, at) if vitals else None, holders)
        except NvmlError as error:
            return Failed(error.function, error.code, error.text)
        except Exception as error:  # the other questions are worth asking all the same
            return Failed(type(question).__name__, 0, f"{type(error).__name__}: {error}")

    def _number(self, function: str, gpus: Sequence[Gpu], more: tuple[int, ...]) -> int | None:
        try:
            return int(ask(function, *(self._handle(gpu) for gpu in gpus), *more))
        except NvmlError:
            return None

    def _handle(self, gpu: Gpu) -> Any:
        if gpu.uuid not in self._handles:
            self._handles[gpu.uuid] = handle_of(gpu)
        return self._handles[gpu.uuid]


def main() -> None:
    """Serve the line of descriptor ``argv[1]`` until it is closed; ``argv[2]``: the search's folder."""
    descriptor, owner, experiment = sys.argv[1:]
    folder = Path(experiment) if experiment else None
    visible = in_initial_pid_namespace()
    answerer = Answerer(Processes(folder, owner=int(owner), visible=visible))
    with contextlib.suppress(BrokenPipeError), socket.socket(fileno=int(descriptor)) as line:
        while packet := line.recv(PACKET_MAX_BYTES):
            line.send(msgspec.json.encode(answerer.answer(QUESTIONS.decode(packet))))


# ---------------------------------------------------------------- the helper, from outside


class Helper(Protocol):
    """A helper process, from outside. No method blocks."""

    def ask(self, question: Question) -> None:
        """Send a question; the answers come in the same order."""
        ...

    def take(self) -> Answer | None:
        """Return the next answer if it is there. Raises EOFError where the helper has ended."""
        ...

    def kill(self) -> None: ...

    def is_gone(self) -> bool:
        """Tell whether the process has ended: a call stuck in the kernel outlives SIGKILL."""
        ...


class World(Protocol):
    """The time, and helpers: as an argument, so that any time can drive them."""

    def now(self) -> float: ...

    def start(self, processes: Processes) -> Helper: ...

    def wait(self, helper: Helper | None, timeout_s: float) -> None:
        """Wait until the helper has an answer, or the time is over."""
        ...


class HelperProcess:
    """``Helper`` as a child process that ends with its parent: the line is closed then."""

    def __init__(self, processes: Processes) -> None:
        self.line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.line.setblocking(False)
        words = (str(theirs.fileno()), str(processes.owner), processes.experiment or "")
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", PROGRAM, *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                process_group=0,
            )

    def ask(self, question: Question) -> None:
        with contextlib.suppress(OSError):  # the child has ended; ``take`` says so
            self.line.send(msgspec.json.encode(question))

    def take(self) -> Answer | None:
        try:
            packet = self.line.recv(PACKET_MAX_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            packet = b""
        if not packet:
            raise EOFError
        return ANSWERS.decode(packet)

    def kill(self) -> None:
        self.line.close()
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=KILLED_WITHIN_S)
        STUCK[:] = [one for one in (*STUCK, self._process) if one.poll() is None]

    def is_gone(self) -> bool:
        return self._process.poll() is not None


class ThisMachine:
    """``World`` as it is: the monotonic clock, child processes."""

    def now(self) -> float:
        return time.monotonic()

    def start(self, processes: Processes) -> Helper:
        return HelperProcess(processes)

    def wait(self, helper: Helper | None, timeout_s: float) -> None:
        lines = [helper.line] if isinstance(helper, HelperProcess) else []
        select.select(lines, [], [], max(0.0, timeout_s))


# ---------------------------------------------------------------- readings, in the daemon


class Board:
    """The newest readings of one GPU. ``gone``: why the GPU is out of reach and not asked; empty while it is."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        #: Memory in use when nobody is on the GPU; None: nobody has seen it so.
        self.idle_bytes: int | None = None
        self.reopen()

    def reopen(self) -> None:
        """Look anew, with the past forgotten."""
        self.gone = NOT_THERE if not self.gpu.pci_bus_id else ""
        if self.gpu.mig:
            self.gone = MIG.format(index=self.gpu.index)
        self.usage: GpuUsage | None = None
        self.vitals: Vitals | None = None
        self.first_vitals: Vitals | None = None
        self.errors_in_a_row = 0
        #: Since when a question waits for its answer; also while its helper is replaced.
        self.asked_at: float | None = None
        self.last_at = NEVER
        self.not_before = self.vitals_due = 0.0
        self._names: dict[int, Holder] = {}

    def who(self, pid: int) -> Holder:
        """Name a process, as the helper found it out."""
        return self._names.get(pid) or Holder(pid, "gone")

    def illness(self, *, at_once: bool = False) -> str:
        """Say what only a person can cure. ``at_once``: only what even a running trial cannot live with."""
        if self.gone or self.vitals is None or self.first_vitals is None:
            return self.gone
        ill = health.trouble(self.gpu.index, self.vitals, self.first_vitals)
        return ill.reason if ill and (ill.at_once or not at_once) else ""

    def keep(self, seen: Seen) -> None:
        """Take a reading."""
        self.usage = seen.usage
        self._names = {holder.pid: holder for holder in seen.holders}
        self.errors_in_a_row = self.errors_in_a_row + 1 if seen.usage.error else 0
        if seen.vitals is not None:
            self.vitals = seen.vitals
            self.first_vitals = self.first_vitals or seen.vitals


class Driver:
    """The questions to one helper at a time, and the boards that they are about. Only ``answer`` waits."""

    def __init__(self, world: World, processes: Processes) -> None:
        self._world = world
        self._processes = processes
        self.boards: list[Board] = []
        self._helper: Helper | None = None
        self._is_new = True
        self._asked: deque[tuple[Board, Look]] = deque()
        #: Since when the first question of ``_asked`` is being answered.
        self._since = 0.0
        self._stuck: dict[str, Helper] = {}
        self._start_at = 0.0

    @property
    def is_waiting(self) -> bool:
        """Some answer has not come yet."""
        return bool(self._asked)

    def close(self) -> None:
        """End the helper."""
        self._end_helper()
        self.boards = []

    def answer(self, question: Question, timeout_s: float) -> Any:
        """Ask and wait; ends a helper that does not answer. Raises NvmlError, and TimeoutError."""
        helper = self._helper = self._helper or self._world.start(self._processes)
        helper.ask(question)
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
        if isinstance(answer, Failed):
            raise answer.error()
        return answer

    def wait(self, timeout_s: float) -> None:
        """Wait until an answer is there, or the time is over."""
        self._world.wait(self._helper, timeout_s)

    def leave(self, board: Board, why: str) -> None:
        """Ask no more about a GPU, and close it for the driver, so that it can be reset."""
        if not board.gone:
            board.gone, board.asked_at = why, None
            self._end_helper()

    def turn(self, paces: Mapping[Board, float] | None = None) -> None:
        """Take the answers that have come, end a helper that hangs, and ask what is due.

        ``paces``: seconds from one question to the next, of boards that somebody waits for.
        """
        now = self._world.now()
        self._take(now)
        limit_s = START_MAX_S if self._is_new else HANG_MAX_S
        if self._asked and now - self._since > limit_s:
            self._blame(self._asked[0][0], now + AFTER_HANG_S)
        waiting = [board for board, _ in self._asked]
        for board in self.boards:
            is_due = now - board.last_at >= (paces or {}).get(board, LOOK_PACE_S)
            if is_due and board not in waiting and not board.gone and self._may_ask(board, now):
                self._ask(board, now)

    def _may_ask(self, board: Board, now: float) -> bool:
        stuck = self._stuck.get(board.gpu.uuid)
        if stuck is not None and (not stuck.is_gone() or now < board.not_before):
            return False
        self._stuck.pop(board.gpu.uuid, None)
        return self._helper is not None or now >= self._start_at

    def _ask(self, board: Board, now: float) -> None:
        if self._helper is None:
            self._helper, self._is_new = self._world.start(self._processes), True
            self._start_at = now + AFTER_END_S  # no storm of helpers that end at once
        look = Look(board.gpu, now, vitals=now >= board.vitals_due)
        board.last_at = now
        if look.vitals:
            board.vitals_due = now + VITALS_PACE_S
        if not self._asked:
            self._since = now
        board.asked_at = now if board.asked_at is None else board.asked_at
        self._asked.append((board, look))
        self._helper.ask(look)

    def _take(self, now: float) -> None:
        lost: dict[Board, NvmlLost] = {}
        try:
            while self._helper is not None and (answer := self._helper.take()) is not None:
                board, look = self._asked.popleft()
                self._since, self._is_new, board.asked_at = now, False, None
                error = answer.error() if isinstance(answer, Failed) else None
                if isinstance(error, NvmlLost):
                    lost[board] = error
                elif error is not None:
                    board.keep(Seen(GpuUsage(look.at, error=str(error)), None, ()))
                elif isinstance(answer, Seen):
                    board.keep(answer)
        except EOFError:
            if self._asked:
                self._blame(self._asked[0][0], now + AFTER_END_S)
            self._end_helper()
        for board, error in lost.items():
            self.leave(board, f"the GPU is lost: {error}")

    def _blame(self, board: Board, due: float) -> None:
        """End a helper that hangs or has ended over a question about this GPU."""
        if self._helper is not None:
            self._stuck[board.gpu.uuid] = self._helper
        self._end_helper()
        board.not_before = due

    def _end_helper(self) -> None:
        """End the helper; what was asked is asked anew."""
        if self._helper is not None:
            self._helper.kill()
        self._helper = None
        for board, look in self._asked:
            board.last_at = NEVER
            board.vitals_due = 0.0 if look.vitals else board.vitals_due
        self._asked.clear()
