"""Kills what an incarnation left behind when neither its shim nor the server that forked it is there to do it."""

from __future__ import annotations

import time
from pathlib import Path

from gpusched.executors.local.incarnation import Incarnation
from gpusched.processes.identity import (
    Identity,
    command_of,
    kill_each,
    mark_of,
    of_incarnation,
)
from gpusched.processes.segments import Segments


class Hunt:
    """Knows what belongs to the incarnation even after it is forgotten elsewhere."""

    def __init__(self, experiment: Path, it: Incarnation) -> None:
        self._mark = mark_of(experiment, it.trial, it.number)
        claim = it.claim()
        self._leaders = claim.leaders if claim is not None else ()
        self._left: list[Identity] = []
        self._began_s = time.monotonic()
        self._segments = Segments(began_s=_claimed_at(it))
        for leader in self._leaders:
            self._segments.reaped(leader.pid)

    @property
    def since_s(self) -> float:
        """How long it has been going on."""
        return time.monotonic() - self._began_s

    def round(self) -> int:
        """Kill all that is there now; how many that were. Zero: nothing is left."""
        self._left = of_incarnation(self._mark, self._leaders)
        if self._left:
            self._segments.note_all(lambda: [who.pid for who in self._left])
            for who in self._left:
                self._segments.reaped(who.pid)
            kill_each(self._left)
        else:
            self._segments.remove()
        return len(self._left)

    def describe(self) -> str:
        """Who is left, in words."""
        left = self._left or of_incarnation(self._mark, self._leaders)
        names = ", ".join(
            f"{who.pid} ({command_of(who.pid)[:60] or 'no name'})" for who in left[:5]
        )
        more = f" and {len(left) - 5} more" if len(left) > 5 else ""
        return f"process{'es' * (len(left) > 1)} {names}{more}" if left else "its process tree"


def _claimed_at(it: Incarnation) -> float | None:
    """By the wall clock; None where nothing of it has begun."""
    try:
        return it.paths.shim(it.number).stat().st_ctime
    except OSError:
        return None
