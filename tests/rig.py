"""Processes of an experiment, for rigs that start real ones: who is there, waiting for them, and ending them all."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from gpusched.daemon import session
from gpusched.folder.paths import ExperimentPaths
from gpusched.journal.rows import Entry
from gpusched.processes.identity import MARK, all_pids, identify, read_file, send_signal, start_time
from tests.journal_samples import read

PATIENCE_S = 120.0
"""How long any test waits for what it asserts: no test takes part of it, however busy the machine or slow the disk."""

T = TypeVar("T")


def wait_until(asked: Callable[[], T], what: str | Callable[[], str] = "this") -> T:
    """Ask until the answer is true, and return that answer. ``what``: words for a wait in vain."""
    until = time.monotonic() + PATIENCE_S
    while not (answer := asked()):
        if time.monotonic() > until:
            words = what() if callable(what) else what
            raise AssertionError(f"waited {PATIENCE_S:.0f} s in vain for {words}")
        time.sleep(0.01)
    return answer


def by_incarnation(experiment: Path) -> dict[tuple[int, int], list[int]]:
    """Live processes by (trial, incarnation); servers under (-1, -1)."""
    name = f"GPUSCHED_DIR={experiment}".encode()
    found: dict[tuple[int, int], list[int]] = {}
    for pid in all_pids():
        variables = (read_file(f"/proc/{pid}/environ") or b"").split(b"\0")
        if name not in variables or start_time(pid) is None:
            continue
        mark = next((v for v in variables if v.startswith(MARK.encode() + b"=")), b"").strip()
        words = mark.decode().split(":")
        whose = (int(words[-2]), int(words[-1])) if len(words) == 4 else (-1, -1)
        found.setdefault(whose, []).append(pid)
    return found


def marked(experiment: Path) -> list[int]:
    """Every process of the experiment in this folder, its servers included."""
    return [pid for pids in by_incarnation(experiment).values() for pid in pids]


def end_all(left: Callable[[], Iterable[int]]) -> None:
    """Kill these until none is left: the end of one may be the end, or the beginning, of another."""

    def none_left() -> bool:
        there = identify(left())
        for process in there:
            send_signal(process, signal.SIGKILL)
        return not there

    wait_until(none_left, "the end of everything")


def run_python(
    *words: object, folder: Path | None = None, told: str = "", **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run an interpreter to its end, with these variables beside ours; ``told`` is its standard input."""
    command, env = [sys.executable, *map(str, words)], {**os.environ, **variables}
    return subprocess.run(command, env=env, cwd=folder, input=told, capture_output=True, text=True)


def refusing(number: int) -> Callable[..., Any]:
    """Stand for a call that fails with this error whatever it is asked."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return refuse


def as_nobody(do: Callable[[], str]) -> str:
    """Return the answer, or the error, in a process of another user; without root of this one, for whom modes count."""
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            os.chdir("/")
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            os.write(writing, f"{do()}\n".encode())
        except BaseException as error:
            os.write(writing, f"{type(error).__name__}: {error}\n".encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        told = pipe.read()
    os.waitpid(pid, 0)
    assert told.endswith("\n"), "it never answered"
    return told.removesuffix("\n")


@dataclass
class Search:
    """One experiment of real processes, in a folder of its own."""

    root: Path

    @property
    def runs(self) -> Path:
        return self.root / "runs"

    @property
    def experiment(self) -> Path:
        """The only experiment there is."""
        (found,) = self.runs.iterdir()
        return found

    @property
    def paths(self) -> ExperimentPaths:
        return ExperimentPaths(self.experiment)

    def write_recipe(self, script: Path, keys: Mapping[str, Any]) -> Path:
        path = self.root / f"{script.stem}.yaml"
        space = {"x": {"uniform": [0, 1]}}
        path.write_text(
            json.dumps({"script": str(script), "metric": "score", "space": space, **keys})
        )
        return path

    def log(self) -> str:
        return "".join(path.read_text() for path in self.runs.glob("*/daemon.log"))

    def lines(self, trial: int) -> list[dict[str, Any]]:
        """The reports of a trial that are whole; the last may be on its way to the file."""
        try:
            text = self.paths.trial(trial).reports.read_text()
        except OSError:
            return []
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def entries(self) -> list[Entry]:
        """Return what the journal holds; only while no daemon lives."""
        return read(self.paths.journal)

    def view(self) -> Any:
        """Return what ``status --json`` prints, asked for in this process: half a second quicker."""
        return session.view(self.paths)

    def wait_for(self, condition: Callable[[Any], Any]) -> Any:
        """Poll the status until the condition holds; return the view."""

        def holds() -> Any:
            # Its socket is there while its daemon is, its last view afterwards.
            there = [*self.runs.glob("*/daemon.sock"), *self.runs.glob("*/final.json")]
            return there and condition(view := self.view()) and view

        return wait_until(holds, lambda: f"the view that a test waits for\n{self.log()}")
