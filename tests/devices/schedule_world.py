"""The world of a random schedule: a machine with its quirks, what happens to it, and the truth about its GPUs.

Everything follows from the seed. ``schedules.py`` plays an executor in this world and compares what it is told with
what is true.
"""

from __future__ import annotations

import random
from collections import Counter

import pynvml

from gpusched.devices.helper import FIRST_HANG_MAX_S
from gpusched.devices.release import TOLERANCE_BYTES
from tests.devices.fake_driver import GIB, LIST, MIB, FakeDriver, FakeGpu
from tests.devices.virtual_time import VirtualClock

SICK_S = 9.0
"""For so long after a hang or a failure things may take longer."""


class World:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.counts: Counter[str] = Counter()
        self.rng = random.Random(seed)
        self.clock = VirtualClock()
        #: Whether processes are listed, and whether NVML's pids mean anything here.
        self.lists, self.pids = True, True
        self.atoms_per_gpu = 1
        self.driver = self._driver()
        self.foreign: dict[int, FakeGpu] = {}
        self.next_pid = 1000
        self.sick_until: dict[str, float] = {}
        self.bad_since: dict[str, float] = {}
        self.was_bad: set[str] = set()
        self.calm_until = 0.0

    # ------------------------------------------------------------ the world

    def _driver(self) -> FakeDriver:
        rng = self.rng
        count = rng.choice([1, 2, 2, 3, 4])
        gpus = [
            FakeGpu(
                f"GPU-{index}{self.seed:07x}",
                bus_id=f"00000000:{index + 1:02x}:00.0",
                minor=index,
                total=rng.choice([8, 24, 80, 141]) * GIB,
                idle=rng.choice([0, 4, 300]) * MIB,
                cpus=0b11,
            )
            for index in range(count)
        ]
        driver = FakeDriver(gpus, self.clock, pids=rng.choice(["same"] * 6 + ["host", "absent"]))
        for gpu in gpus if driver.pids != "same" else ():
            gpu.idle = min(gpu.idle, 4 * MIB)  # in a container more than that might be a stranger's
        kind = rng.random()
        for gpu in gpus:
            if kind < 0.08:
                gpu.unsupported.add(LIST)
                self.lists = False
            if rng.random() < 0.2:
                gpu.unsupported.add("recovery")
        if driver.pids == "absent":
            self.lists = False
        self.pids = driver.pids == "same" and self.lists
        return driver

    @property
    def now(self) -> float:
        return self.clock.now()

    # ------------------------------------------------------------ the truth

    def dirty(self, gpu: FakeGpu, *, foreign_older_than: float = 0.0, share: str = "") -> str:
        """Who is on the GPU, as far as any driver call could tell; empty if nobody.

        ``share``: only what is in that device's way, its own trials' remains and strangers.
        """
        now, memory = self.now, 0
        for context in gpu.contexts:
            if context.pid in self.foreign and context.since > now - foreign_older_than:
                continue
            if context.since > now or (context.graphics and self.lists):
                continue  # what is on the screen is nobody's leak, where it can be told apart
            if context.pid in self.neighbours(share):
                continue
            if self.pids and now < context.listed_until:
                return f"pid {context.pid} is listed"
            if now < context.memory_until:
                memory += context.memory
        if memory > TOLERANCE_BYTES:
            return f"{memory >> 20} MiB are in use"
        return ""

    def neighbours(self, share: str) -> set[int]:
        """Processes of trials that live on shares of GPUs, and of all that ever were on others than ``share``."""
        return set()

    def ill(self, gpu: FakeGpu) -> str:
        if gpu.lost_from <= self.now < gpu.lost_until:
            return "lost"
        return "asks for recovery" if gpu.recovery else ""

    def has_stranger(self, gpu: FakeGpu) -> bool:
        """Tell whether a process of somebody else really has memory on the GPU."""
        return any(
            one.pid in self.foreign and one.since <= self.now < one.memory_until
            for one in gpu.contexts
        )

    def hangs_for(self, gpu: FakeGpu) -> float:
        """For how long its driver has not answered."""
        begun = [a for a, b in gpu.hangs if a <= self.now < b]
        return self.now - min(begun, default=self.now)

    def sick(self, gpu: FakeGpu) -> bool:
        """Tell whether the driver hangs or fails, or did a moment ago."""
        return self.now < self.sick_until.get(gpu.uuid, -1.0)

    # ------------------------------------------------------------ what happens

    def _happen(self) -> None:
        if self.rng.random() > 0.012:
            return
        board = gpu = self.rng.choice(self.driver.gpus)
        happening = self.rng.choice(
            ["stranger"] * 3
            + ["lost", "hang", "hang", "error"]
            + ["recovery", "recovery", "display", "throttle", "calm", "calm"]
        )
        self.counts[happening] += 1
        if happening == "stranger":
            self._stranger(gpu)
        elif happening == "lost":
            board.lost_from = self.now
            self._bad(board)
        elif happening == "hang":
            until = self.now + self.rng.choice([1.0, 6.0, 20.0, 90.0])
            board.hangs.append((self.now, until))
            if self.rng.random() < 0.3:  # nobody comes meanwhile: it is free while it hangs
                self.calm_until = max(self.calm_until, self.now + 10.0)
            self._sick(board, until)
            for other in self.driver.gpus:  # one helper asks about all, until it is found to hang
                self._sick(other, self.now + FIRST_HANG_MAX_S)
        elif happening == "error":
            until = self.now + self.rng.choice([0.5, 4.0, 15.0])
            function = self.rng.choice(["", LIST])
            board.failures.append((self.now, until, function, pynvml.NVML_ERROR_UNKNOWN))
            self._sick(board, until)
        elif happening == "recovery":
            if "recovery" not in board.unsupported:
                board.recovery = self.rng.randint(1, 7)
                self._bad(board)
        elif happening == "display":
            pid = self.new_pid()
            self.foreign[pid] = gpu
            self.driver.start(gpu, pid, 300 * MIB, user="me", command="Xorg", ours=False)
            gpu.contexts[-1].graphics = True
        elif happening == "calm":
            self.calm_until = self.now + self.rng.uniform(3.0, 15.0)
        else:
            board.throttle = pynvml.nvmlClocksEventReasonHwThermalSlowdown

    def _bad(self, board: FakeGpu) -> None:
        self.bad_since.setdefault(board.uuid, self.now)
        self.was_bad.add(board.uuid)

    def _sick(self, board: FakeGpu, until: float) -> None:
        self.sick_until[board.uuid] = max(self.sick_until.get(board.uuid, 0.0), until + SICK_S)

    def _stranger(self, gpu: FakeGpu) -> None:
        pid = self.new_pid()
        self.foreign[pid] = gpu
        context = self.driver.start(
            gpu, pid, 3 * GIB, user="alice", command="python hers.py", ours=False
        )
        stays = self.rng.uniform(1.0, 40.0)
        context.listed_until = self.now + stays + self.rng.uniform(0, 2)
        context.memory_until = self.now + stays + self.rng.uniform(0, 2)
        self.driver.table[pid].ends = self.now + stays

    def new_pid(self) -> int:
        self.next_pid += 1
        return self.next_pid

    def _leave(self) -> None:
        """Every stranger goes home."""
        for pid in self.foreign:
            self.driver.end(pid, 0.5, 0.5)

    def _heal(self, *, everything: bool) -> None:
        """Most of what is wrong is put right; what is not must stay out of use."""
        for board in self.driver.gpus:
            board.hangs = [(a, min(b, self.now)) for a, b in board.hangs]
            if everything or self.rng.random() < 0.7:
                board.lost_until = self.now
                board.recovery = 0
        for gpu in self.driver.gpus:
            for context in gpu.contexts:
                if everything or self.rng.random() < 0.7:
                    context.listed_until = min(context.listed_until, self.now)
                    context.memory_until = min(context.memory_until, self.now)
