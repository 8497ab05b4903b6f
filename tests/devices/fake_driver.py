"""What a scripted NVIDIA driver and the machine around it do, as a function of the clock's time. See ``fake_nvml.py``.

Contexts that appear and linger, memory that comes back late or never, calls that hang, fail or are not supported, GPUs
that are lost, processes of us and of others.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Protocol

import pynvml

from gpusched.devices.release import Holder, Processes

MIB = 1 << 20
GIB = 1 << 30
NEVER = float("inf")
MEMORY, LIST = "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetComputeRunningProcesses_v3"


class Time(Protocol):
    def now(self) -> float: ...

    def block(self, until: float) -> None: ...


@dataclass
class Context:
    """A process on a GPU. It is listed until ``listed_until``, its memory is taken until ``memory_until``."""

    pid: int
    memory: int
    since: float = 0.0
    listed_until: float = NEVER
    memory_until: float = NEVER
    graphics: bool = False
    #: Computes and draws: on both lists.
    both: bool = False


@dataclass
class FakeGpu:
    uuid: str
    name: str = "NVIDIA H100 80GB HBM3"
    total: int = 80 * GIB
    reserved: int = 600 * MIB
    idle: int = 4 * MIB
    bus_id: str = "00000000:17:00.0"
    minor: int = 0
    cpus: int = 0b1111
    mig: bool = False
    contexts: list[Context] = field(default_factory=list)
    #: C functions this GPU does not support.
    unsupported: set[str] = field(default_factory=set)
    #: (from, until, C function or "" for all, NVML error code)
    failures: list[tuple[float, float, str, int]] = field(default_factory=list)
    #: (from, until): a call begun in between returns only at the end of it.
    hangs: list[tuple[float, float]] = field(default_factory=list)
    lost_from: float = NEVER
    lost_until: float = NEVER
    utilisation: int = 0
    temperature: int = 40
    power_mw: int = 70_000
    throttle: int = 0
    recovery: int = 0
    persistence: int = 1

    def used(self, now: float) -> int:
        return self.idle + sum(c.memory for c in self.contexts if c.since <= now < c.memory_until)

    def listed(self, now: float) -> list[Context]:
        return [c for c in self.contexts if c.since <= now < c.listed_until]


@dataclass
class FakeProcess:
    user: str = "me"
    command: str = "python train.py"
    ours: bool = True
    ends: float = NEVER


class FakeDriver:
    """The script. ``pids``: "same", "host" (NVML names pids of outside the container) or "absent"."""

    def __init__(self, gpus: list[FakeGpu], time: Time, pids: str = "same") -> None:
        self.gpus = gpus
        self.time = time
        self.pids = pids
        self.missing: set[str] = set()
        self.version = "580.82.07"
        self.cuda = 13000
        self.init_code = pynvml.NVML_SUCCESS
        self.init_blocks_until = 0.0
        self.inits = 0
        self.table: dict[int, FakeProcess] = {}
        self.calls: dict[str, int] = {}

    def start(self, gpu: FakeGpu, pid: int, memory: int, **process: Any) -> Context:
        """A process opens a context now."""
        self.table.setdefault(pid, FakeProcess(**process))
        context = Context(pid, memory, since=self.time.now())
        gpu.contexts.append(context)
        return context

    def end(self, pid: int, listed_s: float = 0.0, memory_s: float = 0.0) -> None:
        """A process ends now; the driver takes its time to notice."""
        now = self.time.now()
        self.table[pid].ends = min(self.table[pid].ends, now)
        for gpu in self.gpus:
            for context in gpu.contexts:
                if context.pid == pid:
                    context.listed_until = min(context.listed_until, now + listed_s)
                    context.memory_until = min(context.memory_until, now + memory_s)


class FakeProcesses(Processes):
    """The machine's processes, from the driver's table instead of ``/proc``."""

    def __init__(self, driver: FakeDriver, *, visible: bool = True) -> None:
        super().__init__(visible=visible)
        self._driver = driver

    def _alive(self, pid: int) -> FakeProcess | None:
        process = self._driver.table.get(pid)
        return process if process and process.ends > self._driver.time.now() else None

    def who(self, pid: int) -> Holder:
        if not self.visible or pid not in self._driver.table:
            return super().who(pid)
        process = self._alive(pid)
        if process is None:
            return Holder(pid, "gone")
        return Holder(pid, "ours" if process.ours else "foreign", process.user, process.command)


class RealTime:
    """The machine's time, for a fake driver in a process of its own."""

    def now(self) -> float:
        return time.monotonic()

    def block(self, until: float) -> None:
        time.sleep(max(0.0, until - self.now()))
