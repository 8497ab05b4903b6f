"""The world of a random schedule: a machine with its quirks, what happens to it, and the truth about its GPUs.

Everything follows from the seed. ``schedules.py`` lets a search run in this world and compares what it is told with
what is true.
"""

from __future__ import annotations

import random
from collections import Counter

import pynvml

from gpusched.devices.helper import FIRST_HANG_MAX_S
from gpusched.devices.release import TOLERANCE_BYTES
from tests.devices.fake_nvml import GIB, LIST, MIB, NEVER, FakeDriver, FakeGpu
from tests.devices.virtual_time import VirtualClock

SICK_S = 9.0
"""For so long after a hang or a failure things may take longer."""


class World:
    """``shares``: atoms a GPU."""

    def __init__(self, seed: int, shares: int = 1) -> None:
        self.seed = seed
        self.shares = shares
        self.counts: Counter[str] = Counter()
        self.rng = random.Random(seed)
        self.clock = VirtualClock()
        #: Whether processes are listed, and whether NVML's pids mean anything here.
        self.lists, self.pids = True, True
        self.driver = self._driver()
        self.foreign: dict[int, FakeGpu] = {}
        self.next_pid = 1000
        self.sick_until: dict[str, float] = {}
        self.bad_since: dict[str, float] = {}
        self.was_bad: set[str] = set()
        self.mended_at: dict[str, float] = {}

    # ------------------------------------------------------------ the world

    def _driver(self) -> FakeDriver:
        rng = self.rng
        gpus = [
            FakeGpu(
                f"GPU-{index}{self.seed:07x}",
                bus_id=f"00000000:{index + 1:02x}:00.0",
                total=rng.choice([8, 24, 80, 141]) * GIB,
                idle=rng.choice([0, 4]) * MIB,  # more might be left of a trial of the daemon before
                cpus=0b11,
            )
            for index in range(rng.choice([1, 2, 2, 3, 4]))
        ]
        driver = FakeDriver(gpus, self.clock, pids=rng.choice(["same"] * 6 + ["host", "absent"]))
        lists_nothing = rng.random() < 0.08
        if self.shares > 1:  # NVML says whose each process is, or nothing could be shared
            driver.pids, lists_nothing = "same", False
        for gpu in gpus:
            if lists_nothing:
                gpu.unsupported.add(LIST)
            if rng.random() < 0.2:
                gpu.unsupported.add("recovery")
        self.lists = not lists_nothing and driver.pids != "absent"
        self.pids = driver.pids == "same" and self.lists
        return driver

    @property
    def now(self) -> float:
        return self.clock.now()

    # ------------------------------------------------------------ the truth

    def gpu_of(self, device: str) -> FakeGpu:
        return next(gpu for gpu in self.driver.gpus if gpu.uuid == device.partition("#")[0])

    def dirty(self, gpu: FakeGpu, *, foreign_older_than: float = 0.0, share: str = "") -> str:
        """Name who is on the GPU, as far as any driver call could tell; empty if nobody.

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
        raise NotImplementedError

    def ill(self, gpu: FakeGpu) -> str:
        if self.is_lost(gpu):
            return "lost"
        return "asks for recovery" if gpu.recovery else ""

    def is_lost(self, gpu: FakeGpu) -> bool:
        return gpu.lost_from <= self.now < gpu.lost_until

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

    def new_pid(self) -> int:
        self.next_pid += 1
        return self.next_pid

    def lag(self) -> float:
        """How long the driver takes to notice that a process has ended."""
        rng = self.rng
        return rng.choices(
            [rng.uniform(0, 0.3), rng.uniform(0, 8), rng.uniform(8, 100), NEVER], [60, 28, 10, 2]
        )[0]

    def something_happens(self) -> None:
        """Now and then, to one GPU."""
        if self.rng.random() > 0.012:
            return
        gpu = self.rng.choice(self.driver.gpus)
        happening = self.rng.choice(
            ["stranger"] * 3
            + ["lost", "hang", "hang", "error"]
            + ["recovery", "recovery", "display", "throttle"]
        )
        self.counts[happening] += 1
        if happening == "stranger":
            self._stranger(gpu)
        elif happening == "lost":
            gpu.lost_from = self.now
            self._bad(gpu)
        elif happening == "hang":
            until = self.now + self.rng.choice([1.0, 6.0, 20.0, 90.0])
            gpu.hangs.append((self.now, until))
            self._sick(gpu, until)
            for other in self.driver.gpus:  # one helper asks about all, until it is found to hang
                self._sick(other, self.now + FIRST_HANG_MAX_S)
        elif happening == "error":
            until = self.now + self.rng.choice([0.5, 4.0, 15.0])
            function = self.rng.choice(["", LIST])
            gpu.failures.append((self.now, until, function, pynvml.NVML_ERROR_UNKNOWN))
            self._sick(gpu, until)
        elif happening == "recovery":
            if "recovery" not in gpu.unsupported:
                gpu.recovery = self.rng.randint(1, 7)
                self._bad(gpu)
        elif happening == "display":
            pid = self.new_pid()
            self.foreign[pid] = gpu
            self.driver.start(gpu, pid, 300 * MIB, user="me", command="Xorg", ours=False)
            gpu.contexts[-1].graphics = True
        else:
            gpu.throttle = pynvml.nvmlClocksEventReasonHwThermalSlowdown

    def _bad(self, gpu: FakeGpu) -> None:
        self.bad_since.setdefault(gpu.uuid, self.now)
        self.was_bad.add(gpu.uuid)

    def _sick(self, gpu: FakeGpu, until: float) -> None:
        self.sick_until[gpu.uuid] = max(self.sick_until.get(gpu.uuid, 0.0), until + SICK_S)

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

    def mend(self, gpu: FakeGpu) -> None:
        """Put the GPU right, but for what is on it."""
        gpu.lost_from = gpu.lost_until = NEVER
        gpu.recovery = 0
        self.bad_since.pop(gpu.uuid, None)
        self.mended_at[gpu.uuid] = self.now

    def heal(self) -> None:
        """Put everything right, and send every stranger home."""
        for gpu in self.driver.gpus:
            self.mend(gpu)
            gpu.hangs = [(a, min(b, self.now)) for a, b in gpu.hangs]
            for context in gpu.contexts:
                context.listed_until = min(context.listed_until, self.now)
                context.memory_until = min(context.memory_until, self.now)
        for pid in self.foreign:
            self.driver.end(pid, 0.5, 0.5)
