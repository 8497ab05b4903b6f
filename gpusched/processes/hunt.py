"""The hunt for what is left of an incarnation whose shim is gone: its processes, then their shared memory."""

from __future__ import annotations

import time
from pathlib import Path

from gpusched.folder.paths import ExperimentPaths
from gpusched.processes.claim import read_claim
from gpusched.processes.identity import (
    Identity,
    command_of,
    kill_each,
    mark_of,
    of_incarnation,
)
from gpusched.processes.segments import Segments

_ROUND_S = 0.02


class Hunt:
    """The processes that an incarnation left behind, known even after the incarnation is forgotten elsewhere."""

    def __init__(self, paths: ExperimentPaths, trial: int, incarnation: int) -> None:
        shim = paths.trial(trial).shim(incarnation)
        claim = read_claim(shim)
        self._mark = mark_of(paths.root, trial, incarnation)
        self._leaders = claim.leaders if claim is not None else ()
        self._left: list[Identity] = []
        self._began_s = time.monotonic()
        self._segments = Segments(began_s=_changed_at(shim))
        for leader in self._leaders:
            self._segments.reaped(leader.pid)

    @property
    def since_s(self) -> float:
        """Seconds since the hunt began."""
        return time.monotonic() - self._began_s

    def round(self) -> int:
        """Kill every process that is left and return their number; 0: none is left."""
        self._left = of_incarnation(self._mark, self._leaders)
        if self._left:
            self._segments.note_all(lambda: [who.pid for who in self._left])
            for who in self._left:
                self._segments.reaped(who.pid)
            kill_each(self._left)
        else:
            self._segments.remove()
        return len(self._left)

    def end(self, limit_s: float) -> tuple[int, str]:
        """Kill until nothing is left, at most for ``limit_s``; return the number of processes, and what is left."""
        killed = 0
        while left := self.round():
            killed = max(killed, left)
            if self.since_s > limit_s:
                return killed, self.describe()
            time.sleep(_ROUND_S)
        return killed, ""

    def describe(self) -> str:
        """Name the processes that are left."""
        left = self._left or of_incarnation(self._mark, self._leaders)
        names = ", ".join(
            f"{who.pid} ({command_of(who.pid)[:60] or 'no name'})" for who in left[:5]
        )
        more = f" and {len(left) - 5} more" if len(left) > 5 else ""
        return f"process{'es' * (len(left) > 1)} {names}{more}" if left else "its process tree"


def _changed_at(path: Path) -> float | None:
    """Return when a file was last changed, by the wall clock; None where there is none."""
    try:
        return path.stat().st_ctime
    except OSError:
        return None
