"""The world of a random schedule: a machine with its quirks, what happens to it, and the truth about its GPUs.

Everything follows from the seed. ``schedules.py`` plays an executor in this world and compares what it is told with
what is true.
"""

from __future__ import annotations

import random
from collections import Counter

import pynvml
from fake_driver import GIB, LIST, MEMORY, MIB, FakeDriver, FakeGpu
from virtual_time import VirtualClock

from gpusched.devices.health import FATAL_XIDS, IGNORED_XIDS
from gpusched.devices.release import tolerance_bytes

SICK_S = 9.0
"""For so long after a hang or a failure things may take longer."""


class World:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.counts: Counter[str] = Counter()
        self.rng = random.Random(seed)
        self.clock = VirtualClock()
        self.lists, self.memory = True, True
        self.gpus_per_atom = self.atoms_per_gpu = 1
        self.driver = self._driver()
        self.units = [g for one in self.driver.gpus for g in (one.slices or [one])]
        self.foreign: dict[int, FakeGpu] = {}
        self.next_pid = 1000
        self.sick_until: dict[str, float] = {}
        self.bad_since: dict[str, float] = {}
        self.condemned: set[str] = set()
        self.calm_until = 0.0
        self.heard: dict[tuple[str, int | None], float] = {}

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
                gpu.unsupported.add(MEMORY)
                self.memory = False
            elif kind < 0.14:
                gpu.unsupported.add(LIST)
                self.lists = False
            elif kind < 0.24:
                gpu.mig, gpu.slices = True, self._slices(gpu)
            if rng.random() < 0.2:
                gpu.unsupported |= {"recovery", "nvmlDeviceGetRemappedRows"}
            if rng.random() < 0.2:
                gpu.event_types = 0
        if driver.pids == "absent":
            self.lists = False
        if not self.memory and not self.lists:  # refused, and tested elsewhere
            driver.pids, self.lists = "same", True
        if count >= 2 and not any(gpu.mig for gpu in gpus) and rng.random() < 0.3:
            self.gpus_per_atom = 2
        return driver

    def _slices(self, gpu: FakeGpu) -> list[FakeGpu]:
        number = self.rng.choice([2, 3])
        return [
            FakeGpu(f"MIG-{i}-{gpu.uuid}", total=gpu.total // number, idle=2 * MIB, bus_id="")
            for i in range(number)
        ]

    @property
    def now(self) -> float:
        return self.clock.now()

    def _board(self, gpu: FakeGpu) -> FakeGpu:
        return self.driver.board(gpu)

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
            if self.lists and now < context.listed_until:
                return f"pid {context.pid} is listed"
            if now < context.memory_until:
                memory += context.memory
        if self.memory and memory > tolerance_bytes():
            return f"{memory >> 20} MiB are in use"
        return ""

    def neighbours(self, share: str) -> set[int]:
        """Processes of trials that live on shares of GPUs, and of all that ever were on others than ``share``."""
        return set()

    def ill(self, gpu: FakeGpu) -> str:
        board = self._board(gpu)
        if board.lost_from <= self.now < board.lost_until:
            return "lost"
        if board.recovery or board.remapped[3]:
            return "asks for recovery"
        return "had a fatal XID" if board.uuid in self.condemned else ""

    def hangs_for(self, gpu: FakeGpu) -> float:
        """For how long its driver has not answered."""
        begun = [a for a, b in self._board(gpu).hangs if a <= self.now < b]
        return self.now - min(begun, default=self.now)

    def sick(self, gpu: FakeGpu) -> bool:
        """Its driver hangs or fails, or did a moment ago."""
        return self.now < self.sick_until.get(self._board(gpu).uuid, -1.0)

    # ------------------------------------------------------------ what happens

    def _happen(self) -> None:
        if self.rng.random() > 0.012:
            return
        gpu = self.rng.choice(self.units)
        board = self._board(gpu)
        happening = self.rng.choice(
            ["stranger"] * 3
            + ["lost", "hang", "hang", "error", "xid", "xid", "storm"]
            + ["recovery", "rows", "ecc", "display", "throttle", "calm", "calm"]
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
        elif happening == "error":
            until = self.now + self.rng.choice([0.5, 4.0, 15.0])
            function = self.rng.choice(["", LIST])
            board.failures.append((self.now, until, function, pynvml.NVML_ERROR_UNKNOWN))
            self._sick(board, until)
        elif happening == "xid":
            self._xid(board, self.rng.choice([*FATAL_XIDS, *IGNORED_XIDS, 63, 94, 154, 999]))
        elif happening == "storm":
            for _ in range(self.rng.choice([50, 300])):
                self._xid(board, self.rng.choice([31, 13, 45, 79]))
        elif happening == "recovery":
            if "recovery" not in board.unsupported:
                board.recovery = self.rng.randint(1, 7)
                self._bad(board)
        elif happening == "rows":
            failed = self.rng.randint(0, 1) or board.remapped[3]
            if "nvmlDeviceGetRemappedRows" not in board.unsupported:
                board.remapped = (0, 1, self.rng.randint(0, 1), failed)
                if failed:
                    self._bad(board)
        elif happening == "ecc":
            board.ecc_uncorrected += 1
        elif happening == "display":
            pid = self.new_pid()
            self.foreign[pid] = gpu
            self.driver.start(gpu, pid, 300 * MIB, user="me", command="Xorg", ours=False)
            gpu.contexts[-1].graphics = True
        elif happening == "calm":
            self.calm_until = self.now + self.rng.uniform(3.0, 15.0)
        else:
            board.throttle = pynvml.nvmlClocksEventReasonHwThermalSlowdown

    def _xid(self, board: FakeGpu, number: int) -> None:
        contained = {48: 94, 94: 48}.get(number)
        if self.now - self.heard.get((board.uuid, contained), -100.0) < 15.0:
            return  # 48 with 94 is another story
        self.heard[board.uuid, number] = self.now
        self.driver.xid(board, number)
        judged = "recovery" not in board.unsupported and number != 79
        if board.event_types and number in FATAL_XIDS and not judged:
            self.condemned.add(board.uuid)
            self._bad(board)

    def _bad(self, board: FakeGpu) -> None:
        self.bad_since.setdefault(board.uuid, self.now)

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
                board.recovery, board.remapped = 0, (0, 0, 0, 0)
        for gpu in self.units:
            for context in gpu.contexts:
                if everything or self.rng.random() < 0.7:
                    context.listed_until = min(context.listed_until, self.now)
                    context.memory_until = min(context.memory_until, self.now)
