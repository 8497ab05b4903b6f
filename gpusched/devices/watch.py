"""A thread a GPU that asks NVML and leaves immutable readings behind, so that the daemon's loop never waits for it.

A call on a sick GPU may block for minutes. It then blocks this GPU's thread and no other; the readings stay what they
were and grow old, and a caller that needs a newer one keeps seeing that there is none.

Freshness is a ticket, not a time: ``request()`` hands one out, and every reading carries the latest ticket handed out
before it was *begun*. A release is judged only by readings that carry the ticket of its request.

Pace: every second; from a request on every 20 ms, then slower and slower up to half a second, until ``relax``.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from gpusched.devices.gpu import Gpu, GpuUsage, Vitals, read_gpu, read_usage, read_vitals
from gpusched.devices.holders import Holder, Processes
from gpusched.devices.nvml import NvmlError, NvmlLost, ask, start

IDLE_PACE_S = 1.0
FAST_PACE_S = 0.020
SLOW_PACE_S = 0.5
FAST_FOR_S = 120.0
"""After that the answer is not expected soon."""
LOADS = 30
VITALS_PACE_S = 2.0
READING_MAX_S = 3.0
"""A reading that took longer is thrown away: its beginning and its end do not belong together."""


class Threads(Protocol):
    """Threads that wait, and the seconds they wait by: as an argument, so that any time can drive them."""

    def now(self) -> float: ...

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Wait until the event is set or the time is over; return whether it is set."""
        ...

    def spawn(self, target: Callable[[], None], name: str) -> None:
        """Run ``target`` in a thread of its own that never keeps the process alive."""
        ...


class RealThreads:
    """The machine's monotonic clock and ordinary threads."""

    def now(self) -> float:
        return time.monotonic()

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        return event.wait(timeout_s)

    def spawn(self, target: Callable[[], None], name: str) -> None:
        threading.Thread(target=target, name=name, daemon=True).start()


class Watch:
    """The readings of one board: the GPU itself, or its MIG slices. Public attributes are for any thread."""

    def __init__(self, index: int, processes: Processes, threads: Threads) -> None:
        self.index = index
        self.gpu: Gpu | None = None
        self.slices: tuple[Gpu, ...] = ()
        self.failure: NvmlError | None = None
        self.found = threading.Event()
        self.usage: dict[str, GpuUsage] = {}
        self.vitals: Vitals | None = None
        self.first_vitals: Vitals | None = None
        #: Utilisation of the last minute, the oldest first; None where it could not be read.
        self.loads: deque[float | None] = deque(maxlen=LOADS)
        #: Why the GPU does not answer any more and will not before a reset.
        self.lost: str | None = None
        self.errors_in_a_row = 0
        self.ill_read_in_a_row = 0
        self.news = threading.Event()
        self._names: dict[int, Holder] = {}
        self._answered: set[str] = set()
        self._processes = processes
        self._threads = threads
        self._wake = threading.Event()
        self._closing = False
        self._subjects: tuple[Gpu, ...] = ()
        self._ticket = 0
        self._fast_since: float | None = None
        self._rebind = False
        self._search = False
        self.openers: tuple[Holder, ...] = ()
        threads.spawn(self._run, f"gpusched-gpu-{index}")

    # ---------------------------------------------------------------- for the daemon's loop: never blocks

    def begin(self, subjects: tuple[Gpu, ...]) -> None:
        """Read these from now on: the GPU or its slices."""
        self._subjects = subjects
        self._wake.set()

    def request(self) -> int:
        """Ask for readings begun from now on, at a fast pace; the ticket they will carry."""
        self._ticket += 1
        self._fast_since = self._threads.now()
        self._wake.set()
        return self._ticket

    def relax(self) -> None:
        """Go back to the idle pace."""
        self._fast_since = None

    def search_openers(self) -> None:
        """Find out who has the GPU's device file open; ``openers`` says it after the next reading."""
        self._search = True

    def rebind(self) -> None:
        """Look the GPU up anew (it may have been reset) and forget that it was lost."""
        self._rebind = True
        self._wake.set()

    def close(self) -> None:
        """Have the thread end at its next breath."""
        self._closing = True
        self._wake.set()

    def who(self, pid: int) -> Holder:
        """Return the name of a process, as the thread found it out."""
        return self._names.get(pid) or Holder(pid, "gone")

    # ---------------------------------------------------------------- the thread

    def _run(self) -> None:
        self._discover()
        self.found.set()
        vitals_due = self._threads.now()
        while not self._closing:
            if self._subjects:
                full = self._threads.now() >= vitals_due
                self._read(full)
                self.news.set()
                if full:
                    vitals_due = self._threads.now() + VITALS_PACE_S
            self._threads.wait(self._wake, self._pace_s())
            self._wake.clear()

    def _pace_s(self) -> float:
        since = self._fast_since
        waited_s = 0.0 if since is None else self._threads.now() - since
        if since is None or waited_s > FAST_FOR_S:
            return IDLE_PACE_S
        return min(SLOW_PACE_S, max(FAST_PACE_S, waited_s / 2))

    def _discover(self) -> None:
        try:
            start()
            self.gpu, self.slices = read_gpu(self.index)
        except NvmlError as error:
            self.failure = error

    def _read(self, full: bool) -> None:
        """Do one round of calls. A lost GPU is not asked again until ``rebind``."""
        try:
            if self._rebind:
                self._look_up()
            if self.lost is None:
                self._read_usage(full)
                if full:
                    self._read_vitals()
            if self._search and self.gpu is not None and self.gpu.minor is not None:
                self._search = False
                self.openers = self._processes.openers(Path(f"/dev/nvidia{self.gpu.minor}"))
        except NvmlLost as error:
            self.lost = str(error)
        except NvmlError as error:  # looking it up failed; the next round tries again
            self.errors_in_a_row += 1
            self.lost = self.lost or str(error)

    def _look_up(self) -> None:
        self._rebind = False
        assert self.gpu is not None
        gpu = _looked_up(self.gpu)
        self._subjects = tuple(_looked_up(subject) for subject in self._subjects)
        self.gpu, self.lost, self.first_vitals = gpu, None, None

    def _read_usage(self, full: bool) -> None:
        failed = False
        for subject in self._subjects:
            begun = self._threads.now()
            reading = read_usage(subject, self._ticket, begun, both_versions=full)
            if self._threads.now() - begun > READING_MAX_S:
                continue
            for process in reading.processes or ():
                self._names[process.pid] = self._processes.who(process.pid)
            self.usage[subject.uuid] = reading
            failed = failed or bool(reading.error)
        listed = {p.pid for usage in self.usage.values() for p in usage.processes or ()}
        for pid in self._names.keys() - listed:
            del self._names[pid]
        self.errors_in_a_row = self.errors_in_a_row + 1 if failed else 0

    def _read_vitals(self) -> None:
        assert self.gpu is not None
        begun = self._threads.now()
        vitals = read_vitals(self.gpu.handle, begun, self._answered)
        if self._threads.now() - begun <= READING_MAX_S:
            self.vitals = vitals
            self.loads.append(vitals.utilisation)
            self.first_vitals = self.first_vitals or vitals
            self.ill_read_in_a_row = self.ill_read_in_a_row + 1 if vitals.error else 0


def _looked_up(gpu: Gpu) -> Gpu:
    return replace(gpu, handle=ask("nvmlDeviceGetHandleByUUID", gpu.uuid))


def run_in_thread(threads: Threads, work: Callable[[], None], name: str, timeout_s: float) -> bool:
    """Do something that may hang, in a thread; return whether it was done in time. An NvmlError of ``work`` ends it."""
    done = threading.Event()

    def target() -> None:
        with contextlib.suppress(NvmlError):
            work()
        done.set()

    threads.spawn(target, name)
    return threads.wait(done, timeout_s)
