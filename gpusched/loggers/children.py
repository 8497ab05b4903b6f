"""The daemon's end of the processes that log to other tools: started, and waited for at the end."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpusched.folder.paths import ExperimentPaths

#: The daemon that is over waits so long until a tool has everything.
LAST_WORDS_S = 15.0


class Loggers:
    """The loggers of one search, each in a process that tries again by itself where its tool fails.

    ``log_to``: names and options, as in the recipe; ``folder``: the base of relative paths among them.
    """

    def __init__(
        self, paths: ExperimentPaths, log_to: Mapping[str, Mapping[str, Any]], folder: Path
    ) -> None:
        self._folder = folder
        self._paths = paths
        self._waiting = dict(log_to)
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        #: Problems, for the daemon's log.
        self.complaints: deque[str] = deque(maxlen=20)

    def look(self) -> None:
        """Start what has not been started, and note what has ended; never waits."""
        while self._waiting:
            self._start(*self._waiting.popitem())
        for name, process in list(self._running.items()):
            if (status := process.poll()) is not None:
                del self._running[name]
                self._complain(name, f"its process ended (status {status}); the search continues")

    def _start(self, name: str, options: Mapping[str, Any]) -> None:
        command = [sys.executable, "-m", "gpusched.loggers.follow", str(self._paths.root)]
        try:
            with self._paths.logger_log(name).open("ab") as log:
                self._running[name] = subprocess.Popen(
                    [*command, name, json.dumps(dict(options))],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    cwd=self._folder,
                    start_new_session=True,
                )
        except OSError as error:
            self._complain(name, f"its process cannot be started ({error})")

    def _complain(self, name: str, why: str) -> None:
        self.complaints.append(f"log_to {name}: {why}; see {self._paths.logger_log(name).name}")

    def finish(self, limit_s: float = LAST_WORDS_S) -> None:
        """Have every tool get the rest; a process that takes longer than ``limit_s`` is ended."""
        for process in self._running.values():
            assert process.stdin is not None
            process.stdin.close()
        until_s = time.monotonic() + limit_s
        for name, process in self._running.items():
            try:
                status = process.wait(max(0.0, until_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                status = process.wait()
            if status:
                self._complain(name, "not everything was handed over")
        self._running.clear()
