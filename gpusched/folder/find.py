"""Find experiments on disk: by folder, by name, or the ``last`` one; and whether a daemon holds one."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from gpusched.errors import DamagedState, InputError
from gpusched.folder.paths import ExperimentPaths

#: Where experiments are made and looked for unless ``--dir`` says otherwise.
RUNS_VARIABLE = "GPUSCHED_RUNS"


#: How long a daemon may hold its lock without answering before that is called an error.
COMING_OR_GOING_S = 5.0


def runs_folder(given: str | None = None) -> Path:
    """``--dir``, else the environment's ``GPUSCHED_RUNS``, else ``runs`` here."""
    return Path(given or os.environ.get(RUNS_VARIABLE) or "runs")


def experiments(runs: Path) -> list[ExperimentPaths]:
    """All experiments in a folder, the oldest first."""
    if not runs.is_dir():
        return []
    found = [ExperimentPaths(p.resolve()) for p in runs.iterdir() if (p / "journal.db").is_file()]
    return sorted(found, key=lambda paths: (paths.resolved_time, paths.root.name))


def find(experiment: str | None, runs: Path) -> ExperimentPaths:
    """The experiment that is meant: a folder, a name, or ``last``. Raises InputError with what there is."""
    wanted = experiment or "last"
    folder = Path(wanted)
    if folder.is_dir() and (wanted not in ("last",) or (folder / "journal.db").exists()):
        paths = ExperimentPaths(folder.resolve())
        if not paths.is_experiment:
            raise DamagedState(
                f"{folder}: this folder is no experiment (there is no journal.db in it)"
            )
        return paths
    known = experiments(runs)
    if wanted == "last":
        if not known:
            raise InputError(
                f"there is no experiment in {runs}/ yet; 'gpusched run RECIPE' starts one"
            )
        return known[-1]
    matches = [
        p for p in known if p.root.name == wanted or p.root.name.rpartition("-")[0] == wanted
    ]
    if not matches:
        matches = [p for p in known if p.root.name.startswith(f"{wanted}-")]
    if not matches:
        names = ", ".join(p.root.name for p in known[-5:]) or "none"
        raise InputError(f"there is no experiment '{wanted}' in {runs}/; the latest there: {names}")
    return matches[-1]


def has_daemon(paths: ExperimentPaths) -> bool:
    """Whether somebody holds the experiment's lock."""
    try:
        descriptor = os.open(paths.lock, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def trial_folders(paths: ExperimentPaths) -> Iterator[int]:
    """Numbers of the trials that have a folder."""
    if paths.trials.is_dir():
        for folder in sorted(paths.trials.iterdir()):
            if folder.name.isdigit():
                yield int(folder.name)
