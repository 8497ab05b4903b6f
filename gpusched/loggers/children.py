"""The daemon's end of the processes that log to other tools: started, looked at now and then, waited for at the end."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpusched.folder.paths import ExperimentPaths

#: A process that ends is started again after 1, 2, 4, .. seconds, and given up after so many ends.
DEATHS_MAX = 5
#: The daemon that is over waits so long until a tool has everything.
LAST_WORDS_S = 15.0


@dataclass(slots=True)
class _Child:
    name: str
    options: Mapping[str, Any]
    process: subprocess.Popen[bytes] | None = None
    deaths: int = 0
    start_at_s: float = 0.0


class Loggers:
    """The loggers of one search.

    ``log_to``: names and options, as in the recipe; ``folder``: the base of relative paths among them.
    """

    def __init__(
        self, paths: ExperimentPaths, log_to: Mapping[str, Mapping[str, Any]], folder: Path
    ) -> None:
        self._folder = folder
        self._paths = paths
        self._children = [_Child(name, options) for name, options in log_to.items()]
        #: Problems, for the daemon's log.
        self.complaints: deque[str] = deque(maxlen=20)

    def look(self) -> None:
        """Start what is not running; never waits."""
        now_s = time.monotonic()
        for child in self._children:
            if child.process is not None and child.process.poll() is not None:
                self._ended(child, now_s)
            if child.process is None and child.deaths < DEATHS_MAX and now_s >= child.start_at_s:
                self._start(child, now_s)

    def _start(self, child: _Child, now_s: float) -> None:
        command = [sys.executable, "-m", "gpusched.loggers.follow", str(self._paths.root)]
        try:
            with self._paths.logger_log(child.name).open("ab") as log:
                child.process = subprocess.Popen(
                    [*command, child.name, json.dumps(dict(child.options))],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    cwd=self._folder,
                    start_new_session=True,
                )
        except OSError as error:
            self._failed(child, now_s, f"its process cannot be started ({error})")

    def _ended(self, child: _Child, now_s: float) -> None:
        assert child.process is not None
        status = child.process.wait()
        self._let_go(child)
        self._failed(child, now_s, f"its process ended (status {status})")

    def _failed(self, child: _Child, now_s: float, why: str) -> None:
        child.deaths += 1
        child.start_at_s = now_s + 2.0 ** (child.deaths - 1)
        again = (
            "the process is started again"
            if child.deaths < DEATHS_MAX
            else "given up; the search goes on"
        )
        log = self._paths.logger_log(child.name).name
        self.complaints.append(f"log_to {child.name}: {why}, see {log}; {again}")

    @staticmethod
    def _let_go(child: _Child) -> None:
        if child.process is not None and child.process.stdin is not None:
            child.process.stdin.close()
        child.process = None

    def finish(self, limit_s: float = LAST_WORDS_S) -> None:
        """Have every tool get the rest; a process that takes longer than ``limit_s`` is ended."""
        running = [(child, child.process) for child in self._children if child.process is not None]
        for child, _ in running:
            self._let_go(child)
        until_s = time.monotonic() + limit_s
        for child, process in running:
            try:
                status = process.wait(max(0.0, until_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                status = process.wait()
            if status:
                log = self._paths.logger_log(child.name).name
                self.complaints.append(
                    f"log_to {child.name}: not everything was handed over, see {log}; "
                    "the journal still has the whole search"
                )
