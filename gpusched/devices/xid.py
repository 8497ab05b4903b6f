"""Threads that hear of XIDs (critical GPU errors) as the driver reports them: one thread, and one set of events, a GPU.

With a set of its own, a GPU that hangs or is lost does not silence the others, and an event needs no name:
a GPU may have another handle after a reset. A storm of events costs a counter, not memory: each XID is passed on once,
until it is forgotten. Where the driver gives no events (containers, old cards, no rights) that is said once, and the
vitals are all there is.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable
from typing import Any

import pynvml

from gpusched.devices.gpu import Gpu
from gpusched.devices.nvml import NvmlError, NvmlTimeout, NvmlUnsupported, ask
from gpusched.devices.watch import Threads

WAIT_S = 1.0
REGISTER_TIMEOUT_S = 2.0
FAILURES_MAX = 3
"""So many failures in a row are said."""
RETRY_S = 60.0
"""The longest time before a set that has failed is made anew: a GPU that is lost makes every wait fail at once."""

WANTED = pynvml.nvmlEventTypeXidCriticalError | pynvml.nvmlEventTypeDoubleBitEccError
DOUBLE_BIT_XID = 48
"""A double-bit error event carries no XID; this is the one that goes with it."""


class XidWatch:
    """Listens to these GPUs. No method blocks."""

    def __init__(self, gpus: Iterable[Gpu], threads: Threads) -> None:
        self._listeners = {gpu.uuid: _Listener(gpu, threads) for gpu in gpus}

    def news(self) -> list[tuple[str, int]]:
        """Return (UUID, XID) of what came since the last call."""
        return [(uuid, xid) for uuid, one in self._listeners.items() for xid in one.take_news()]

    def notes(self) -> list[str]:
        """Return what must be said: of which GPUs no events come. Says the same for as long as it is so."""
        deaf: dict[str, list[str]] = {}
        for listener in self._listeners.values():
            if why := listener.why_deaf():
                deaf.setdefault(why, []).append(listener.gpu.label)
        return [
            f"no GPU error events from {', '.join(labels)} ({why}): faults are found by polling alone"
            for why, labels in deaf.items()
        ]

    def forget(self, uuid: str) -> None:
        """Drop what the GPU did before: it is asked for, and what it does again is told again."""
        self._listeners[uuid].forget()

    def returned(self, uuid: str) -> None:
        """Listen anew: the GPU is in use again after it was lost or reset."""
        self._listeners[uuid].wake.set()

    def close(self) -> None:
        """Have the threads end when their waits do."""
        for listener in self._listeners.values():
            listener.is_closing = True
            listener.wake.set()


class _Listener:
    """The events of one GPU."""

    def __init__(self, gpu: Gpu, threads: Threads) -> None:
        self.gpu = gpu
        self.wake = threading.Event()
        self.is_closing = False
        self._threads = threads
        self._lock = threading.Lock()
        self._heard: set[int] = set()
        self._news: list[int] = []
        self._problem = ""
        self._failures = 0
        self._asked_at: float | None = threads.now()
        threads.spawn(self._run, f"gpusched-xid-{gpu.index}")

    def take_news(self) -> list[int]:
        with self._lock:
            news, self._news = self._news, []
        return news

    def forget(self) -> None:
        with self._lock:
            self._heard.clear()
            self._news.clear()

    def why_deaf(self) -> str:
        """Say why no events come; empty if they do, or while that is not known yet."""
        asked_at = self._asked_at
        if asked_at is not None and self._threads.now() - asked_at > REGISTER_TIMEOUT_S:
            return "NVML does not answer"
        return self._problem

    # ---------------------------------------------------------------- the thread

    def _run(self) -> None:
        handle = self.gpu.handle
        while not self.is_closing:
            try:
                self._asked_at = self._threads.now()
                self._listen(handle or ask("nvmlDeviceGetHandleByUUID", self.gpu.uuid))
            except NvmlError as error:
                self._failures += 1
                self._asked_at = None
                if isinstance(error, NvmlUnsupported) or self._failures >= FAILURES_MAX:
                    self._problem = error.text
            handle = None  # it may be another one after a reset
            if not self.is_closing:
                self._threads.wait(self.wake, min(RETRY_S, 2.0**self._failures))
            self.wake.clear()

    def _listen(self, handle: Any) -> None:
        """Listen until the end, or an error of NVML."""
        events = ask("nvmlEventSetCreate")
        try:
            # Asking for an event that a card does not have would refuse the whole request.
            wanted = WANTED & int(ask("nvmlDeviceGetSupportedEventTypes", handle))
            if not wanted & pynvml.nvmlEventTypeXidCriticalError:
                self._problem, self._asked_at = "not supported", None
                return
            ask("nvmlDeviceRegisterEvents", handle, wanted, events)
            self._problem, self._asked_at = "", None
            while not self.is_closing and not self.wake.is_set():
                with contextlib.suppress(NvmlTimeout):
                    self._hear(ask("nvmlEventSetWait_v2", events, int(WAIT_S * 1000)))
                self._failures = 0
        finally:
            with contextlib.suppress(NvmlError):
                ask("nvmlEventSetFree", events)

    def _hear(self, event: Any) -> None:
        is_xid = event.eventType == pynvml.nvmlEventTypeXidCriticalError
        number = int(event.eventData) if is_xid else DOUBLE_BIT_XID
        with self._lock:
            if number not in self._heard:
                self._heard.add(number)
                self._news.append(number)
