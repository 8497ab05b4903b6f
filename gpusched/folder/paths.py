"""The folder of an experiment: every path in it, in one class.

Folders are made 0700 and files of ours 0600: what a search tries is nobody else's business.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


def numbered(folder: Path) -> list[int]:
    """List the numbers that name entries of a folder, the lowest first; none where the folder is not there."""
    try:
        return sorted(int(entry.name) for entry in folder.iterdir() if entry.name.isdigit())
    except OSError:
        return []


@dataclass(frozen=True, slots=True)
class TrialPaths:
    """The folder of one trial, ``trials/0007``."""

    root: Path

    @property
    def hparams(self) -> Path:
        return self.root / "hparams.json"

    @property
    def reports(self) -> Path:
        return self.root / "reports.jsonl"

    @property
    def own(self) -> Path:
        """The folder for files of the script's own (``trial.folder``)."""
        return self.root / "files"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"step-{step:08d}"

    def newest_checkpoint(self) -> int:
        """Return the step of the newest checkpoint that is committed on disk; 0: none is."""
        try:
            names = [entry.name for entry in self.checkpoints.iterdir()]
        except OSError:
            return 0
        steps = (name.removeprefix("step-") for name in names if name.startswith("step-"))
        return max((int(step) for step in steps if step.isdigit()), default=0)

    @property
    def fence(self) -> Path:
        """Number of the newest incarnation that must not write (``lock.py``); there on a cluster alone."""
        return self.root / "fence"

    @property
    def waits(self) -> Path:
        """Number and devices of an incarnation that waits for the one before it to leave; absent otherwise."""
        return self.root / "waits"

    @property
    def incarnations(self) -> list[int]:
        """The incarnations that have a folder of logs; one that was put aside does not count."""
        return numbered(self.root / "logs")

    def logs(self, incarnation: int) -> Path:
        return self.root / "logs" / str(incarnation)

    def log(self, incarnation: int, rank: int, stream: str) -> Path:
        """``stream`` is ``out`` or ``err``."""
        return self.logs(incarnation) / f"rank-{rank}.{stream}"

    def error_file(self, incarnation: int, rank: int) -> Path:
        return self.logs(incarnation) / f"error-{rank}.json"

    def last_word(self, incarnation: int) -> Path:
        return self.logs(incarnation) / "last-word.json"

    def leave(self, incarnation: int) -> Path:
        """Made by the shim when no daemon comes back: the trial is to save and leave."""
        return self.logs(incarnation) / "leave"

    def stacks(self, incarnation: int, rank: int) -> Path:
        """Return the file in which a rank writes its stacks when asked to (``processes/stacks.py``)."""
        return self.logs(incarnation) / f"stacks-{rank}.txt"

    def seen(self, incarnation: int, rank: int) -> Path:
        """Return the file in which a rank of a rehearsal writes what it does (``worker/witness.py``)."""
        return self.logs(incarnation) / f"seen-{rank}.jsonl"

    def exit(self, incarnation: int) -> Path:
        return self.logs(incarnation) / "exit.json"

    def shim(self, incarnation: int) -> Path:
        """Return the file that identifies the shim: pid, start time, boot id."""
        return self.logs(incarnation) / "shim.json"


@dataclass(frozen=True, slots=True)
class ExperimentPaths:
    """The folder of an experiment, ``runs/<name>-<time>``."""

    root: Path

    @property
    def recipe(self) -> Path:
        return self.root / "recipe.yaml"

    @property
    def resolved(self) -> Path:
        return self.root / "resolved.json"

    @property
    def source(self) -> Path:
        """The path that the recipe was read from."""
        return self.root / "source.json"

    @property
    def code(self) -> Path:
        """The code at the start: git commit, versions of packages."""
        return self.root / "code.json"

    @property
    def diff(self) -> Path:
        """Changes at the start that were not committed, as a patch; absent without any."""
        return self.root / "uncommitted.diff"

    @property
    def began(self) -> Path:
        """The beginning of the experiment, in both clocks."""
        return self.root / "began.json"

    @property
    def profile(self) -> Path:
        """Measurements of this recipe from an earlier profile, if there are any."""
        return self.root / "profile.json"

    @property
    def worker(self) -> Path:
        return self.root / "worker.json"

    @property
    def journal(self) -> Path:
        return self.root / "journal.db"

    @property
    def whatif(self) -> Path:
        """The last answer of ``gpusched whatif``, as JSON; absent before the first."""
        return self.root / "whatif.json"

    @property
    def reserve(self) -> Path:
        """Room that the journal gets back when the disk is full."""
        return self.root / "reserve"

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    @property
    def socket(self) -> Path:
        return self.root / "daemon.sock"

    @property
    def log(self) -> Path:
        return self.root / "daemon.log"

    def logger_log(self, name: str) -> Path:
        """Return the log of the process that feeds a logger, ``tensorboard`` or ``mine.py:MyLogger``."""
        return self.root / f"log-to-{name.rpartition('/')[2].replace(':', '-')}.log"

    @property
    def written(self) -> Path:
        """Notes of which trial was the first to write a path outside the experiment (``worker/files.py``)."""
        return self.root / "written"

    @property
    def trials(self) -> Path:
        return self.root / "trials"

    @property
    def best(self) -> Path:
        """A link into ``bests``; swapping it is what makes a new best model atomic."""
        return self.root / "best"

    @property
    def bests(self) -> Path:
        return self.root / ".best"

    @property
    def final_view(self) -> Path:
        """The standing of the experiment at its end."""
        return self.root / "final.json"

    @property
    def failure(self) -> Path:
        """Reason why the latest daemon failed, with its exit code; absent while a daemon runs and after a good end."""
        return self.root / "failure.json"

    @property
    def report(self) -> Path:
        return self.root / "report.html"

    @property
    def trial_numbers(self) -> list[int]:
        """The trials that have a folder; a folder that a salvage put aside does not count."""
        return numbered(self.trials)

    def trial(self, trial: int) -> TrialPaths:
        return TrialPaths(self.trials / f"{trial:04d}")

    @property
    def resolved_time(self) -> float:
        """Time when the experiment was made; 0 if unknown."""
        try:
            return self.resolved.stat().st_mtime
        except OSError:
            return 0.0

    @property
    def is_experiment(self) -> bool:
        return self.journal.exists()


@contextmanager
def socket_address(path: Path) -> Iterator[str]:
    """Name the socket at ``path`` through its folder's descriptor: a path may be longer than an address can be.

    Raises OSError if the folder is not there.
    """
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
