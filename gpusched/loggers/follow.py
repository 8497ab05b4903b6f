"""From a journal to a logger: each point once, whatever happened between; a process for each logger.

``python -m gpusched.loggers.follow FOLDER NAME`` is the daemon's child, ``Loggers`` the daemon's end. The journal is
read every second, and once more when the standard input ends, as the daemon is over or was killed. The options are
those of the recipe: on a command line they would be for all to see.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import shlex
import signal
import subprocess
import sys
import time
import traceback
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from gpusched.folder import files
from gpusched.folder.files import last_line, read_json
from gpusched.folder.paths import ExperimentPaths
from gpusched.journal.timeline import JournalTail
from gpusched.loggers import Logger, Point, Search, load
from gpusched.text import first_line

EVERY_S = 1.0
#: The process of a tool that fails is started again so long after its last start.
RETRY_S = 60.0
#: The daemon that is over waits so long until a tool has everything; the process may take as long as the second.
LAST_WORDS_S, HANDING_OVER_S = 15.0, 600
_ENDED: Mapping[str | None, str] = {"finished": "completed", "failed": "failed"}


class Follower:
    """One journal, one logger."""

    def __init__(self, paths: ExperimentPaths, name: str) -> None:
        self._paths = paths
        self._tail = JournalTail(paths.journal)
        recipe, began = (json.loads(file.read_bytes()) for file in (paths.resolved, paths.began))
        about = (recipe["name"], paths.root, recipe["metric"], recipe["mode"], began["wall_s"])
        self._search = Search(*about)
        # A class need not call Logger.__init__.
        self._logger: Logger = load(name)(self._search, **recipe["log_to"].get(name, {}))
        #: The last step in the tool of each trial whose run is open.
        self._sent: dict[int, int] = {}
        self._best: dict[int, float] = {}

    def send_news(self) -> None:
        """Hand on what the journal has more than before."""
        found: dict[int, list[Point]] = {}
        better = min if self._search.mode == "min" else max
        news = self._tail.read()
        for number, trial in self._tail.trials.items():
            if number not in self._sent:
                self._sent[number] = self._logger.begin(number, trial.hparams)
        for trial, incarnation, step in news:
            if step.metric is not None:
                self._best[trial.id] = better(step.metric, self._best.get(trial.id, step.metric))
            # A step that was trained again, after a crash, is logged as it was the first time.
            if step.report.step > self._sent[trial.id]:
                self._sent[trial.id] = step.report.step
                told = {name: float(value) for name, value in step.report.metrics.items()}
                told["gpusched/atoms"] = float(len(incarnation.devices))
                told["gpusched/step_time_s"] = step.report.step_time_s
                point = Point(step.report.step, self._search.began_s + step.at, told)
                found.setdefault(trial.id, []).append(point)
        for number, points in found.items():
            self._logger.write(number, points)

    def finish(self) -> None:
        """Hand on the rest, tell the state of each trial if the search is over, and let go of the tool."""
        self.send_news()
        view = read_json(self._paths.final_view) or {}
        if "trials" in view:  # 200 at most: the others are told by the outcome of their last launch
            states = {trial["id"]: trial["state"] for trial in view["trials"]}
            for number, trial in self._tail.trials.items():
                state = states.get(number) or _ENDED.get(trial.outcome, "stopped")
                self._logger.end(number, state, self._best.get(number))
        self._logger.close()


# ---------------------------------------------------------------- the process


def _is_over(wait_s: float) -> bool:
    """Wait, unless the daemon has let go of this process's standard input."""
    readable, _, _ = select.select([0], [], [], wait_s)
    return bool(readable) and not os.read(0, 1)


def main(folder: str, name: str) -> None:
    """Follow until the daemon is over, then hand over the rest. What the tool raises ends this process."""
    paths = ExperimentPaths(Path(folder))
    # A process before this one, of a daemon that died, holds the lock while it hands over what it has.
    signal.alarm(HANDING_OVER_S)
    with suppress(OSError):
        log = os.open(paths.logger_log(name), os.O_WRONLY | os.O_CREAT, 0o600)
        fcntl.flock(log, fcntl.LOCK_EX)
    signal.alarm(0)
    follower = Follower(paths, name)
    follower.send_news()
    while not _is_over(EVERY_S):
        follower.send_news()
    signal.alarm(HANDING_OVER_S)
    follower.finish()


# ---------------------------------------------------------------- the daemon's end


class Loggers:
    """The loggers of one search, each in a process, which is started again where its tool fails.

    ``names``: those of ``log_to`` in the recipe; ``folder``: the base of relative paths among their options.
    """

    def __init__(self, paths: ExperimentPaths, names: Iterable[str], folder: Path) -> None:
        self._folder = folder
        self._paths = paths
        self._names = tuple(names)
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        #: The earliest time of the next start of a logger whose process has ended.
        self._again_at: dict[str, float] = {}
        self._failing: set[str] = set()
        #: Problems, for the daemon's log.
        self.complaints: deque[str] = deque(maxlen=20)

    def look(self) -> None:
        """Start what does not run, and note what has ended; never waits."""
        for name, process in list(self._running.items()):
            if (status := process.poll()) is not None:
                self._running.pop(name).communicate()  # lets go of its standard input
                why = f": {last_line(self._paths.logger_log(name))}" if status > 0 else ""
                self._complain(
                    name, f"its process ended (status {status}), and is started again{why}"
                )
        for name in self._names:
            if name not in self._running and time.monotonic() >= self._again_at.get(name, 0.0):
                self._start(name)

    def _command(self, name: str) -> list[str]:
        return [sys.executable, "-P", "-m", __name__, str(self._paths.root), name]

    def _start(self, name: str) -> None:
        self._again_at[name] = time.monotonic() + RETRY_S
        try:
            with self._paths.logger_log(name).open("ab") as log:
                self._running[name] = subprocess.Popen(
                    self._command(name),
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    cwd=self._folder,
                    start_new_session=True,
                    umask=files.users_umask,
                )
        except OSError as error:
            self._complain(name, f"its process cannot be started ({error}), and is tried again")

    def _complain(self, name: str, why: str) -> None:
        """Complain of a logger that is tried again and again, once; at the end once more."""
        if name not in self._failing:
            self._failing.add(name)
            self.complaints.append(f"log_to {name}: {why}; see {self._paths.logger_log(name).name}")

    def finish(self, limit_s: float = LAST_WORDS_S) -> None:
        """Have every tool get the rest; a process that takes longer than ``limit_s`` goes on by itself."""
        self._again_at.clear()
        self.look()
        self._failing.clear()
        for process in self._running.values():
            assert process.stdin is not None
            process.stdin.close()
        until_s = time.monotonic() + limit_s
        for name, process in self._running.items():
            why = ""
            try:
                if process.wait(max(0.0, until_s - time.monotonic())):
                    why = "not everything was handed over"
            except subprocess.TimeoutExpired:
                why = f"it is still being handed what is left, for {HANDING_OVER_S // 60} minutes"
                process.returncode = 0  # it may outlive this process
            if why:
                later = shlex.join(["env", "-C", str(self._folder), *self._command(name)])
                self._complain(name, f"{why}; `{later} < /dev/null` hands over the rest later")
        self._running.clear()


if __name__ == "__main__":
    os.nice(10)
    try:
        main(*sys.argv[1:])
    except Exception as error:
        traceback.print_exc()
        # The last line of the log, which the daemon tells.
        sys.exit(f"{type(error).__name__}: {first_line(str(error))}")
