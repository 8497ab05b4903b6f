"""The time and the threads of ``watch.py``, as an argument: what waits here can be driven by any clock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """Seconds that only grow, waiting, and threads that wait."""

    def now(self) -> float: ...

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Until the event is set or the time is over; whether it is set."""
        ...

    def spawn(self, target: Callable[[], None], name: str) -> None:
        """Run ``target`` in a thread of its own that never keeps the process alive."""
        ...


class MachineClock:
    """The machine's monotonic clock and ordinary threads."""

    def now(self) -> float:
        return time.monotonic()

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        return event.wait(timeout_s)

    def spawn(self, target: Callable[[], None], name: str) -> None:
        threading.Thread(target=target, name=name, daemon=True).start()
