"""The thread that hears of XIDs (critical GPU errors) as the driver reports them.

A storm of events costs a counter, not memory: each XID of each GPU is passed on once, until it is forgotten. Where the
driver gives no events (containers, old cards, no rights) that is said once, and the vitals are all there is.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any

import pynvml

from gpusched.devices.gpu import Gpu
from gpusched.devices.nvml import NvmlError, NvmlLost, NvmlTimeout, ask, ask_if_supported
from gpusched.devices.watch import Threads, run_in_thread

WAIT_S = 1.0
IDLE_S = 3600.0
BREATH_S = 1.0
ERRORS_IN_A_ROW_MAX = 5
REGISTER_TIMEOUT_S = 2.0
NAME_TIMEOUT_S = 1.0
UNKNOWN_FOR_S = 10.0
"""A handle that is nobody's, or that no name was to be had for in time, is not asked about again for so long."""
SETS_MAX = 20
"""A GPU that is lost makes every wait fail at once, of the whole set: a new set without it, so many times."""

WANTED = pynvml.nvmlEventTypeXidCriticalError | pynvml.nvmlEventTypeDoubleBitEccError
DOUBLE_BIT_XID = 48
"""A double-bit error event carries no XID; this is the one that goes with it."""


class XidWatch:
    """Listens to these GPUs. ``news`` and ``notes`` may be called from any thread and never block."""

    def __init__(self, gpus: Iterable[Gpu], threads: Threads) -> None:
        self._gpus = {address(gpu.handle): gpu for gpu in gpus}
        self._threads = threads
        self._never = threading.Event()
        self._wake = threading.Event()
        self._returned: list[Gpu] = []
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, int]] = Counter()
        self._news: list[tuple[str, int]] = []
        self._notes: list[str] = []
        self._said: set[str] = set()
        self._unknown: dict[int, float] = {}
        #: The set that is listened to. One that a call which hangs may still write into is never freed.
        self._events: Any = None
        self._is_revived = False
        self._is_held = False
        self._closing = False
        threads.spawn(self._run, "gpusched-xid")

    def news(self) -> list[tuple[str, int]]:
        """(UUID, XID) of what came since the last call."""
        with self._lock:
            news, self._news = self._news, []
        return news

    def notes(self) -> list[str]:
        """What must be said once, since the last call."""
        with self._lock:
            notes, self._notes = self._notes, []
        return notes

    def forget(self, uuid: str) -> None:
        """Somebody wants the GPU back: what it did before counts no more, and is told again if it does it again."""
        with self._lock:
            for key in [key for key in self._counts if key[0] == uuid]:
                del self._counts[key]
            self._news = [(name, xid) for name, xid in self._news if name != uuid]

    def returned(self, uuid: str) -> None:
        """The GPU is in use again after it was lost or reset: NVML may have forgotten that we listen to it."""
        with self._lock:
            self._returned += [gpu for gpu in self._gpus.values() if gpu.uuid == uuid]
        self._wake.set()

    def _take_returned(self) -> list[Gpu]:
        self._wake.clear()
        with self._lock:
            returned, self._returned = self._returned, []
        return returned

    def close(self) -> None:
        """The thread ends when its wait does."""
        self._closing = True
        self._wake.set()

    # ---------------------------------------------------------------- the thread

    def _run(self) -> None:
        for _ in range(SETS_MAX):
            try:
                events = ask("nvmlEventSetCreate")
            except NvmlError as error:
                self._say(f"no GPU error events: {error}. Faults are found by polling alone")
                return
            self._take_returned()
            self._events, self._is_held, self._is_revived = events, False, False
            again = self._register(events, self._gpus.values()) and self._listen(events)
            with self._lock:
                self._events, again = None, again or self._is_revived
            if not self._is_held:
                with contextlib.suppress(NvmlError):
                    ask("nvmlEventSetFree", events)
            while not again and not self._closing:  # nobody is heard until somebody is back
                again = self._threads.wait(self._wake, IDLE_S)
            if self._closing:
                return
        self._say("GPU error events have ended: faults are found by polling alone")

    def _register(self, events: Any, gpus: Collection[Gpu]) -> bool:
        """Each GPU in a thread of its own: one that hangs keeps nobody from hearing of the others.

        What happens when that one answers at last: ``_answered``.
        """
        deaf = []
        for gpu in gpus:
            attempt = _Attempt(gpu, events)
            work = partial(attempt.run, self._answered)
            if not run_in_thread(self._threads, work, "gpusched-xid-register", REGISTER_TIMEOUT_S):
                self._is_held = True
                attempt.is_late(self._answered)
                deaf.append(f"{gpu.label} (NVML does not answer)")
            elif attempt.problem is not None:
                deaf.append(f"{gpu.label}{attempt.problem}")
        if deaf:
            self._say(
                f"no GPU error events from {', '.join(deaf)}: faults are found by polling alone"
            )
        return len(deaf) < len(gpus)

    def _answered(self, attempt: _Attempt) -> None:
        """After all: it is heard if that set is listened to; else it is registered anew, or listening begins anew."""
        with self._lock:
            heard = attempt.problem is None and attempt.events is self._events
            self._is_revived = self._is_revived or heard
        if not heard:
            self.returned(attempt.gpu.uuid)

    def _listen(self, events: Any) -> bool:
        """Until the end; true if another set of events should be tried, since a GPU of this one is lost."""
        failures = 0
        while not self._closing:
            if returned := self._take_returned():
                self._register(events, returned)
            try:
                event = ask("nvmlEventSetWait_v2", events, int(WAIT_S * 1000))
                failures = 0
                self._hear(event)
            except NvmlTimeout:
                failures = 0
            except NvmlLost:
                self._threads.wait(self._never, BREATH_S)
                return not self._closing
            except NvmlError as error:
                failures += 1
                if failures == ERRORS_IN_A_ROW_MAX:
                    self._say(
                        f"GPU error events have ended ({error}): faults are found by polling alone"
                    )
                    return False
                self._threads.wait(self._never, BREATH_S)
        return False

    def _hear(self, event: Any) -> None:
        gpu = self._gpus.get(address(event.device)) or self._by_name(event.device)
        if gpu is None:
            return
        is_xid = event.eventType == pynvml.nvmlEventTypeXidCriticalError
        key = (gpu.uuid, int(event.eventData) if is_xid else DOUBLE_BIT_XID)
        with self._lock:
            self._counts[key] += 1
            if self._counts[key] == 1:
                self._news.append(key)

    def _by_name(self, handle: Any) -> Gpu | None:
        """After a reset NVML may know a GPU by another handle. One that hangs keeps nobody from being heard."""
        now = self._threads.now()
        if now < self._unknown.get(address(handle), now):
            return None
        uuids: list[str | None] = []

        def look_up() -> None:
            uuids.append(ask_if_supported("nvmlDeviceGetUUID", handle))

        run_in_thread(self._threads, look_up, "gpusched-xid-name", NAME_TIMEOUT_S)
        gpu = next((gpu for gpu in self._gpus.values() if gpu.uuid in uuids), None)
        if gpu is None:
            self._unknown[address(handle)] = self._threads.now() + UNKNOWN_FOR_S
        return gpu

    def _say(self, note: str) -> None:
        with self._lock:
            if note not in self._said:
                self._said.add(note)
                self._notes.append(note)


class _Attempt:
    """To have the events of one GPU. ``problem``: why there are none, if there are none."""

    def __init__(self, gpu: Gpu, events: Any) -> None:
        self.problem: str | None = None
        self.gpu = gpu
        self.events = events
        self._late = threading.Event()
        self._done = threading.Event()

    def run(self, tell: Callable[[_Attempt], None]) -> None:
        try:
            # Asking for an event that a card does not have would refuse the whole request.
            wanted = WANTED & int(ask("nvmlDeviceGetSupportedEventTypes", self.gpu.handle))
            if wanted & pynvml.nvmlEventTypeXidCriticalError:
                ask("nvmlDeviceRegisterEvents", self.gpu.handle, wanted, self.events)
            else:
                self.problem = ""
        except NvmlError as error:
            self.problem = f" ({error.text})"
        self._done.set()
        if self._late.is_set():
            tell(self)

    def is_late(self, tell: Callable[[_Attempt], None]) -> None:
        """Nobody waits any more: ``tell`` is called when it is done, once or twice."""
        self._late.set()
        if self._done.is_set():
            tell(self)


def address(handle: Any) -> int:
    """NVML hands out the same pointer for the same GPU, but Python makes a new object of it each time."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
