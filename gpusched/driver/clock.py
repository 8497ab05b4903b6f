"""The experiment's clock: seconds since it began, across daemons, suspends and reboots.

Within one boot it is ``CLOCK_BOOTTIME`` (counts suspend, ignores every step of the wall clock); across a reboot the
wall clock bridges the gap, once, when the new daemon starts. No decision ever hangs on a wall-clock reading within a
boot (reliability F9).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gpusched.processes.identity import boot_id


def boottime_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class Beginning:
    """The instant when the experiment began, in both clocks. Kept in the journal."""

    wall_s: float
    boottime_s: float
    boot_id: str

    @classmethod
    def now(cls) -> Beginning:
        return cls(time.time(), boottime_s(), boot_id())

    @classmethod
    def ago(cls, seconds: float) -> Beginning:
        """Return the instant so many seconds before now."""
        now = cls.now()
        return cls(now.wall_s - seconds, now.boottime_s - seconds, now.boot_id)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Beginning:
        return cls(float(value["wall_s"]), float(value["boottime_s"]), str(value["boot_id"]))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class ExperimentClock:
    """A clock that is called for the seconds since the beginning and never goes back.

    ``at_least_s`` is the time of the last journaled event: after a reboot with a wrong wall clock time goes on there.
    """

    def __init__(self, beginning: Beginning, at_least_s: float = 0.0) -> None:
        if beginning.boot_id == boot_id():
            self._zero = beginning.boottime_s
        else:
            elapsed_s = max(time.time() - beginning.wall_s, at_least_s)
            self._zero = boottime_s() - elapsed_s
        self._zero = min(self._zero, boottime_s() - at_least_s)

    def __call__(self) -> float:
        return boottime_s() - self._zero
