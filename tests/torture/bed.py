"""A real experiment under load whose daemon is killed: start, kill, resume, and check what must be true.

The oracle is what the trials themselves wrote down. ``reports.jsonl`` holds every report that was ever acknowledged (a
line is appended before it is sent), so: nothing lost and nothing twice means that the journal has exactly these lines,
in order. Scores follow from configuration and step alone, so rungs can be computed again without any daemon.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpusched.core.events import Reported
from gpusched.core.experiment import Experiment
from gpusched.daemon import start as launchpad
from gpusched.daemon.session import Client, DaemonGone
from gpusched.driver.assemble import Beginning, assemble, read_recipe
from gpusched.errors import GpuschedError
from gpusched.failpoints import VARIABLE
from gpusched.folder.files import read_json
from gpusched.recipe.load import load_recipe
from tests.helpers import replayed, rungs_of
from tests.rig import PATIENCE_S, Search, by_incarnation, end_all, marked, wait_until

SCRIPTS = Path(__file__).parent / "scripts"
SCALE = float(os.environ.get("GPUSCHED_TORTURE", "1"))
"""Factor by which the long forms run longer than by default."""


def times(count: int) -> int:
    """``count`` at the default length."""
    return max(1, round(count * SCALE))


@dataclass
class Bed(Search):
    """One experiment. ``keys`` go into its recipe."""

    keys: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    daemon: subprocess.Popen[bytes] | None = None
    #: Seconds from the start of each resumed daemon until it served.
    resumed_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        defaults = {
            "deadline": "2h",
            "space": {"x": {"uniform": [0, 1]}, "step_s": 0.1},
            "policy": {"name": "asha", "r": 4, "R": 100_000, "eta": 3},
            "devices": "cpu:4",
        }
        recipe = self.write_recipe(SCRIPTS / "load.py", {**defaults, **self.keys})
        launchpad.make_experiment(self.runs, load_recipe(recipe), Beginning.now())

    # ------------------------------------------------------------ daemons

    def start(
        self,
        *,
        resume: bool = False,
        failpoint: str = "",
        wish: Mapping[str, Any] | None = None,
    ) -> Any:
        """Start a daemon; what it says of its start, or None if it died before. ``wish``: to go on with."""
        reading, writing = os.pipe()
        words = [sys.executable, "-m", "gpusched.daemon.start", str(self.paths.root)]
        words += ["--ready-fd", str(writing)] + ["--resume"] * resume
        words += ["--wish", json.dumps(wish)] if wish is not None else []
        armed = {VARIABLE: failpoint} if failpoint else {}
        began = time.monotonic()
        self.paths.log.touch(0o600)
        with self.paths.log.open("ab") as log:
            self.daemon = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environment, **armed},
                pass_fds=(writing,),
                start_new_session=True,
            )
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            ready, _, _ = select.select([pipe], [], [], PATIENCE_S)
            assert ready, f"no daemon within {PATIENCE_S:.0f} s; its log says:\n{self.log()}"
            line = next((text for text in pipe if "say" not in json.loads(text)), b"")
        if line and resume:
            self.resumed_s.append(time.monotonic() - began)
        return json.loads(line) if line else None

    def begin(self, reports: int = 0) -> None:
        """Start the first daemon, and wait until trials have reported this often."""
        assert "ok" in self.start()
        self.wait_for_reports(reports)

    def resume(self, **options: Any) -> Any:
        answer = self.start(resume=True, **options)
        assert answer is None or "ok" in answer, f"{answer}\n{self.log()}"
        return answer

    def kill(self) -> None:
        """SIGKILL to the daemon."""
        self.daemon.send_signal(signal.SIGKILL)
        self.daemon.wait()

    def wait_for_death(self, patience_s: float = PATIENCE_S) -> int | None:
        """The status of the daemon, or None if it lives on."""
        assert self.daemon is not None
        with suppress(subprocess.TimeoutExpired):
            return self.daemon.wait(patience_s)
        return None

    # ------------------------------------------------------------ asking it

    def ask(self, verb: str, **arguments: Any) -> Any:
        """The answer, or None where the daemon is away or refuses."""
        client = Client.connect(self.paths.socket)
        if client is None:
            return None
        with client, suppress(DaemonGone, GpuschedError, TimeoutError):
            return client.ask(verb, **arguments)
        return None

    def view(self) -> Any:
        return wait_until(lambda: self.ask("view"), "a view")

    def reports(self) -> int:
        return sum(len(self.lines(number)) for number in self.numbers())

    def wait_for_reports(self, more: int) -> None:
        before = self.reports()
        wait_until(lambda: self.reports() >= before + more, f"{more} more reports\n{self.log()}")

    def numbers(self) -> list[int]:
        return self.paths.trial_numbers

    # ------------------------------------------------------------ processes

    def processes(self) -> dict[tuple[int, int], list[int]]:
        """Live processes by (trial, incarnation); servers under (-1, -1)."""
        return by_incarnation(self.paths.root)

    def shim_of(self, trial: int, incarnation: int) -> dict[str, Any] | None:
        return read_json(self.paths.trial(trial).shim(incarnation))

    def finish(self) -> Experiment:
        """Stop in good order and compare all that was written with all that is known."""
        self.check_one_incarnation_each()
        self.ask("stop")
        assert self.wait_for_death() == 0, self.log()
        return self.check_end()

    def check_end(self) -> Experiment:
        """After the end: the journal replays, holds every line that was ever written, and no process is left."""
        again = self.check()
        assert again.state.finished
        for number in self.numbers():
            written, known = len(self.lines(number)), again.state.trials[number].seq
            assert written == known, f"trial {number}: {known} of {written} reports are known"
        wait_until(lambda: not self.processes(), "no process left")
        return again

    def end(self) -> None:
        """Kill all that is left of it."""
        if self.daemon is not None and self.daemon.poll() is None:
            self.kill()
        end_all(lambda: marked(self.paths.root))

    # ------------------------------------------------------------ what must be true

    def check(self) -> Experiment:
        """While no daemon lives: the journal replays, invariants hold after each event, nothing is lost or twice."""
        entries = self.entries()
        again = replayed(assemble(read_recipe(self.paths), self.paths).experiment, entries)
        told = [entry.event for entry in entries if isinstance(entry.event, Reported)]
        for number in self.numbers():
            self._check_reports(number, [event for event in told if event.trial == number])
        self._check_rungs(again)
        return again

    def _check_reports(self, number: int, told: list[Reported]) -> None:
        written = [
            (line["n"], line["k"], _finite(line["m"]["score"])) for line in self.lines(number)
        ]
        journaled = [(event.seq, event.step, event.metric) for event in told]
        assert [seq for seq, _, _ in journaled] == list(range(1, len(journaled) + 1)), (
            f"trial {number}: a report is missing or was applied twice"
        )
        assert journaled == written[: len(journaled)], f"trial {number}: another report"

    def _check_rungs(self, again: Experiment) -> None:
        """Scores as without any crash: they follow from configuration and milestone alone."""
        state = again.state
        for rung in rungs_of(again.policy):
            for trial in rung._entries:
                x = state.trials[trial].hparams["x"]
                expected = x * (1.0 - 0.97**rung.milestone)
                assert abs(rung.score(trial) - expected) < 1e-12, (trial, rung.milestone)

    def check_one_incarnation_each(self) -> None:
        """No trial has processes of two incarnations. Asked twice: one may be ending at this very moment."""

        def doubled() -> list[int]:
            trials = [trial for trial, _ in self.processes() if trial >= 0]
            return [trial for trial in trials if trials.count(trial) > 1]

        wait_until(lambda: not doubled(), "one incarnation a trial")


def _finite(value: float | str) -> float | None:
    return None if isinstance(value, str) else value


MakeBed = Callable[..., Bed]
"""The fixture of ``conftest.py``: ``make_bed(environment, **keys)``."""


def count(folder: str) -> int:
    """How many entries a folder has."""
    return sum(1 for _ in Path(folder).iterdir())


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
