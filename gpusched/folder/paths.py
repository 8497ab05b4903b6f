"""The folder of an experiment: every path in it, in one class.

Folders are made 0700 and files of ours 0600: other users see nothing of a search.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path


def numbered(folder: Path) -> list[int]:
    """List the numbers that name entries of a folder, the lowest first; none where the folder is not there."""
    try:
        return sorted(int(entry.name) for entry in folder.iterdir() if entry.name.isdigit())
    except OSError:
        return []


HELD = ".held-step-"
"""Beginning of the name of a checkpoint that is whole, but in the page cache alone."""


def commit_left(checkpoints: Path, boot: str) -> None:
    """Commit the best copy that a killed writer of this boot has left; its manifest was written last."""
    for held in checkpoints.glob(f"{HELD}*"):
        with suppress(OSError, ValueError):
            if json.loads((held / "manifest.json").read_bytes()).get("boot") == boot:
                held.rename(checkpoints / held.name.removeprefix(".held-"))


class Below:
    """An attribute that is the path of this name below the owner's ``root``."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, owner: TrialPaths | ExperimentPaths, kind: type | None = None) -> Path:
        return owner.root / self._name


@dataclass(frozen=True, slots=True)
class TrialPaths:
    """The folder of one trial, ``trials/0007``."""

    root: Path

    hparams = Below("hparams.json")
    reports = Below("reports.jsonl")
    checkpoints = Below("checkpoints")
    #: Files of the script's own (``trial.folder``).
    own = Below("files")
    #: Number of the newest incarnation that must not write (``lock.py``); there on a cluster alone.
    fence = Below("fence")

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"step-{step:08d}"

    def newest_checkpoint(self) -> int:
        """Return the step of the newest checkpoint that is committed on disk; 0: none is."""
        return max(self.checkpoint_steps(), default=0)

    def checkpoint_steps(self) -> list[int]:
        """List the steps of the committed checkpoints, the newest last."""
        return [int(path.name.rpartition("-")[2]) for path in self.committed_checkpoints()]

    def committed_checkpoints(self) -> list[Path]:
        """List the committed checkpoints, the newest last, with one whose successor was on its way into its place."""
        prefixes = ("step-", ".replaced-step-")
        found: list[tuple[int, Path]] = []
        with suppress(OSError):
            for entry in self.checkpoints.iterdir():
                step = entry.name.rpartition("-")[2]
                if entry.name.startswith(prefixes) and step.isdigit():
                    found.append((int(step), entry))
        return [entry for _, entry in sorted(found) if (entry / "manifest.json").is_file()]

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
        """Return the file in which a rank of a rehearsal writes what it does (``worker/onlooker.py``)."""
        return self.logs(incarnation) / f"seen-{rank}.jsonl"

    def exit(self, incarnation: int) -> Path:
        return self.logs(incarnation) / "exit.json"

    def shim(self, incarnation: int) -> Path:
        """Return the file that identifies the shim and its ranks (``processes/claim.py``)."""
        return self.logs(incarnation) / "shim.json"

    def shim_log(self, incarnation: int) -> Path:
        return self.logs(incarnation) / "shim.log"


@dataclass(frozen=True, slots=True)
class ExperimentPaths:
    """The folder of an experiment, ``runs/<name>-<time>``."""

    root: Path

    #: The recipe with every key, as the daemon reads it.
    resolved = Below("resolved.json")
    #: The part of the recipe that ranks read.
    worker = Below("worker.json")
    #: Where recipe and code came from: the recipe's file, git commit, versions of packages.
    code = Below("code.json")
    #: The beginning of the experiment, in both clocks.
    began = Below("began.json")
    #: Copy of the file of a policy of the user's own, as it was when the last daemon began.
    policy = Below("policy.py")
    journal = Below("journal.db")
    #: Room that the journal gets back when the disk is full.
    reserve = Below("reserve")
    lock = Below("lock")
    socket = Below("daemon.sock")
    log = Below("daemon.log")
    trials = Below("trials")
    #: A link into ``bests``; swapping it is what makes a new best model atomic.
    best = Below("best")
    bests = Below("bests")
    #: The standing of the experiment at its end.
    final_view = Below("final.json")
    #: Reason why the latest daemon failed, with its exit code; absent while a daemon runs and after a good end.
    failure = Below("failure.json")
    report = Below("report.html")

    def logger_log(self, name: str) -> Path:
        """Return the log of the process that feeds a logger, ``tensorboard`` or ``mine.py:MyLogger``."""
        return self.root / f"log-to-{name.rpartition('/')[2].replace(':', '-')}.log"

    @property
    def trial_numbers(self) -> list[int]:
        """The trials that have a folder."""
        return numbered(self.trials)

    def trial(self, trial: int) -> TrialPaths:
        return TrialPaths(self.trials / f"{trial:04d}")

    @property
    def is_experiment(self) -> bool:
        try:
            return self.journal.is_file() or self.journal.is_symlink()
        except PermissionError:  # an experiment of another user
            return False


@contextmanager
def socket_address(path: Path) -> Iterator[str]:
    """Name the socket at ``path`` through its folder's descriptor: a path may be longer than an address can be.

    Raises OSError if the folder is not there.
    """
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
