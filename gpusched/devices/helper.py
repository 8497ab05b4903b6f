"""NVML in processes of its own, one for each GPU: questions in, answers out.

    daemon ──Question──▶ helper (NVML, one GPU) ──HelperAnswer──▶ daemon        packets of a socket pair, JSON

A driver call may block for as long as a sick GPU pleases, and NVML's calls of one process share locks; so each GPU has
a helper that asks for nobody else. A helper is a loop without threads: it may hang, crash or be killed, and a new one
knows all that it has to. While a helper lives, its GPU cannot be reset (``nvidia-smi --gpu-reset`` wants every client
gone): one that is lost, or let go on request, has none. So that it holds no other GPU open, a helper names its GPU by
the bus: NVML attaches to the GPU of that place alone, while it may attach to all when it looks for a UUID.

(What even SIGKILL does not end, a call that is stuck in the kernel, is waited for before the next helper is started.)
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import msgspec
import pynvml

from gpusched.devices.gpu import Gpu, GpuUsage, Vitals, read_gpu, read_usage, read_vitals
from gpusched.devices.holders import Holder, Processes
from gpusched.devices.nvml import ErrorEvents, NvmlError, NvmlLost, ask, error_of, start

PACKET_MAX_BYTES = 1 << 18
PROGRAM = "from gpusched.devices.helper import main; main()  # asks NVML"
KILLED_WITHIN_S = 0.02
STUCK: list[subprocess.Popen[bytes]] = []
"""Killed children that have not ended yet: nobody else may wait for a child."""
IGNORE_RECOVERY = "GPUSCHED_IGNORE_RECOVERY"
"""Environment variable: UUIDs (or beginnings) of cards whose recovery action is wrong, separated by commas."""


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
    slices: tuple[Gpu, ...]


class Numbers(Message, frozen=True):
    """Ask NVML for whole numbers about GPUs, ``(function, GPUs, further arguments)`` each: answered by ``Counted``."""

    calls: tuple[tuple[str, tuple[Gpu, ...], tuple[int, ...]], ...]


class Counted(Message, frozen=True):
    """Numbers in the order asked; None in the place of each that could not be had."""

    numbers: tuple[int | None, ...]


class Look(Message, frozen=True):
    """Ask for usage (and vitals) of a GPU, or of its slices: answered by ``GpuSeen``. ``at``: the time of the question.

    ``ceilings``: a subject with more memory in use than this is not free yet, whoever is on it: its lists of processes
    (dear: they slow the driver that is waited for) are left out.
    """

    board: Gpu
    subjects: tuple[Gpu, ...]
    at: float
    ceilings: Mapping[str, int] = {}
    vitals: bool = True
    pids_visible: bool = True


class GpuSeen(Message, frozen=True):
    """``deaf``: why no error events come. ``xids``: each number once."""

    usage: tuple[GpuUsage, ...]
    vitals: Vitals | None
    holders: tuple[Holder, ...]
    xids: tuple[int, ...]
    deaf: str


class Failed(Message, frozen=True):
    """An NvmlError, by its parts."""

    function: str
    code: int
    text: str

    def error(self) -> NvmlError:
        return error_of(self.function, self.code, self.text)


Question = WhichDriver | Facts | Numbers | Look
Reply = DriverFound | Found | Counted | GpuSeen | Failed


class HelperAnswer(msgspec.Struct, frozen=True):
    """``took_s``: from the question's arrival to the answer."""

    value: Reply
    took_s: float


QUESTIONS: msgspec.json.Decoder[Question] = msgspec.json.Decoder(Question)
ANSWERS = msgspec.json.Decoder(HelperAnswer)


# ---------------------------------------------------------------- in the helper


class Board:
    """The answers about one GPU. Every method may block, and raises NvmlError."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._handles: dict[str, Any] = {}
        self._answered: set[str] = set()
        self._events = ErrorEvents()

    def answer(self, question: Question) -> Reply:
        """Return the answer to a question; a failure is one, too."""
        try:
            start()
            match question:
                case WhichDriver():
                    version = str(ask("nvmlSystemGetDriverVersion"))
                    cuda = int(ask("nvmlSystemGetCudaDriverVersion_v2"))
                    return DriverFound(int(ask("nvmlDeviceGetCount")), version, cuda)
                case Facts(index):
                    return Found(*read_gpu(index))
                case Numbers(calls):
                    return Counted(tuple(self._number(*call) for call in calls))
                case Look():
                    return self._look(question)
        except NvmlError as error:
            return Failed(error.function, error.code, error.text)
        except Exception as error:  # the other questions are worth asking all the same
            return Failed(type(question).__name__, 0, f"{type(error).__name__}: {error}")

    def _number(self, function: str, gpus: Sequence[Gpu], more: tuple[int, ...]) -> int | None:
        try:
            return int(ask(function, *(self.handle(gpu) for gpu in gpus), *more))
        except NvmlError:
            return None

    def handle(self, gpu: Gpu) -> Any:
        """Return NVML's handle of a GPU or slice; raises NvmlLost where another GPU is in its place."""
        known = self._handles.get(gpu.uuid)
        if known is None:
            known = ask("nvmlDeviceGetHandleByPciBusId", gpu.pci_bus_id)
            if gpu.slice is not None:
                known = ask("nvmlDeviceGetMigDeviceHandleByIndex", known, gpu.slice)
            if ask("nvmlDeviceGetUUID", known) != gpu.uuid:
                code = pynvml.NVML_ERROR_GPU_NOT_FOUND
                raise NvmlLost("nvmlDeviceGetUUID", code, "another GPU is in its place")
            self._handles[gpu.uuid] = known
        return known

    def _look(self, look: Look) -> GpuSeen:
        self._processes.visible = look.pids_visible
        usage = tuple(
            read_usage(
                subject,
                self.handle(subject),
                look.at,
                ceiling_bytes=look.ceilings.get(subject.uuid),
            )
            for subject in look.subjects
        )
        pids = {process.pid for one in usage for process in one.processes or ()}
        holders = tuple(self._processes.who(pid) for pid in pids)
        board = self.handle(look.board)
        vitals = read_vitals(board, look.at, self._answered) if look.vitals else None
        overruled = [one.strip() for one in os.environ.get(IGNORE_RECOVERY, "").split(",")]
        if vitals and any(uuid and look.board.uuid.startswith(uuid) for uuid in overruled):
            vitals = replace(vitals, recovery=None)
        xids = self._events.take(board, retry=look.vitals)
        return GpuSeen(usage, vitals, holders, xids, self._events.deaf)


def serve(line: socket.socket, board: Board) -> None:
    """Answer until the other end is closed."""
    while packet := line.recv(PACKET_MAX_BYTES):
        began = time.monotonic()
        value = board.answer(QUESTIONS.decode(packet))
        line.send(msgspec.json.encode(HelperAnswer(value, time.monotonic() - began)))


# ---------------------------------------------------------------- in the daemon


class GpuHelper(Protocol):
    """A helper process, from outside. No method blocks."""

    def ask(self, question: Question) -> None:
        """Send a question. One at a time: the next one after its answer."""
        ...

    def take(self) -> HelperAnswer | None:
        """Return the answer if it is there. Raises EOFError where the helper has ended."""
        ...

    def kill(self) -> None: ...

    def is_gone(self) -> bool:
        """Tell whether the process has ended: a call stuck in the kernel outlives SIGKILL."""
        ...


class World(Protocol):
    """The time, and helpers: as an argument, so that any time can drive them."""

    def now(self) -> float: ...

    def start(self, processes: Processes) -> GpuHelper: ...

    def wait(self, helpers: Sequence[GpuHelper], timeout_s: float) -> None:
        """Wait until one of them has an answer, or the time is over."""
        ...


class HelperProcess:
    """``GpuHelper`` as a child process that ends with its parent: the line is closed then."""

    def __init__(self, processes: Processes) -> None:
        self.line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.line.setblocking(False)
        with theirs:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-c",
                    PROGRAM,
                    str(theirs.fileno()),
                    processes.experiment or "",
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                process_group=0,
            )

    def ask(self, question: Question) -> None:
        with contextlib.suppress(OSError):  # the child has ended; ``take`` says so
            self.line.send(msgspec.json.encode(question))

    def take(self) -> HelperAnswer | None:
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
        end(self._process)

    def is_gone(self) -> bool:
        return self._process.poll() is not None


def end(child: subprocess.Popen[bytes]) -> None:
    """Kill a child. One that is stuck in the kernel is not waited for, but reaped when another one is ended."""
    child.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(timeout=KILLED_WITHIN_S)
    STUCK[:] = [one for one in (*STUCK, child) if one.poll() is None]


class ThisMachine:
    """``World`` as it is: the monotonic clock, child processes."""

    def now(self) -> float:
        return time.monotonic()

    def start(self, processes: Processes) -> GpuHelper:
        return HelperProcess(processes)

    def wait(self, helpers: Sequence[GpuHelper], timeout_s: float) -> None:
        lines = [helper.line for helper in helpers if isinstance(helper, HelperProcess)]
        select.select(lines, [], [], max(0.0, timeout_s))


def ask_once(world: World, helper: GpuHelper, question: Question, timeout_s: float) -> Any:
    """Ask and wait. Raises as ``answer_of`` does."""
    helper.ask(question)
    return answer_of(world, helper, world.now() + timeout_s)


def answer_of(world: World, helper: GpuHelper, until: float) -> Any:
    """Wait for an answer. Raises NvmlError, and TimeoutError where none comes in time or the helper ends."""
    try:
        while (answer := helper.take()) is None:
            if world.now() >= until:
                raise TimeoutError("NVML did not answer")
            world.wait([helper], until - world.now())
    except EOFError:
        raise TimeoutError("the process that asks NVML has ended") from None
    if isinstance(answer.value, Failed):
        raise answer.value.error()
    return answer.value


def main() -> None:
    """Serve the line of descriptor ``argv[1]``; ``argv[2]``: the experiment's folder."""
    descriptor, experiment = sys.argv[1:]
    processes = Processes(Path(experiment) if experiment else None, owner=os.getppid())
    with contextlib.suppress(BrokenPipeError), socket.socket(fileno=int(descriptor)) as line:
        serve(line, Board(processes))
