"""Keeps ``best/`` what was asked for last, however long the disk refuses."""

from __future__ import annotations

from collections.abc import Callable

from gpusched.core.decisions import KeepBest
from gpusched.executors.local.best import keep_best
from gpusched.executors.local.timers import Timers
from gpusched.folder.paths import ExperimentPaths
from gpusched.folder.reserve import FULL

_AGAIN_S = 2.0


class Keeping:
    """``atoms_of``: how many a trial has now; None if it has none."""

    def __init__(
        self,
        paths: ExperimentPaths,
        metric: str,
        timers: Timers,
        now: Callable[[], float],
        say: Callable[[str], None],
        atoms_of: Callable[[int], int | None],
    ) -> None:
        self._paths = paths
        self._metric = metric
        self._timers = timers
        self._now = now
        self._say = say
        self._atoms_of = atoms_of
        #: Asked for room on a full disk; False: there is none.
        self.spare: Callable[[], bool] = lambda: False
        self._wanted: KeepBest | None = None
        self._again_at: float | None = None

    def keep(self, command: KeepBest) -> None:
        """Make ``best/`` this; where the disk refuses, try until it does not, or something better is asked for."""
        self._wanted = command
        self._try()

    def _again(self) -> None:
        if self._again_at is not None:
            self._try()

    def _try(self) -> None:
        command = self._wanted
        if command is None:
            return
        try:
            kept = keep_best(
                self._paths,
                command.trial,
                command.step,
                metric=self._metric,
                value=command.metric,
                atoms=self._atoms_of(command.trial),
            )
        except OSError as problem:
            if problem.errno in FULL and self.spare():
                self._try()
                return
            if self._again_at is None:
                self._say(f"best/ stays as it was: {problem}; trying again")
            if self._again_at is None or self._again_at <= self._now():
                self._again_at = self._now() + _AGAIN_S
                self._timers.after(_AGAIN_S, self._again)
            return
        self._wanted = self._again_at = None
        if not kept:
            self._say(
                f"best/ stays: trial {command.trial} has no checkpoint of step {command.step}"
            )
