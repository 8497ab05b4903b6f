"""Find experiments on disk: by folder, by name, or the ``last`` one; and whether a daemon holds one."""

from __future__ import annotations

import os
import re
from pathlib import Path

from gpusched.errors import DamagedState, GpuschedError, InputError
from gpusched.folder.lock import is_locked
from gpusched.folder.paths import ExperimentPaths
from gpusched.text import did_you_mean

#: Folder in which experiments are made and looked for unless ``--dir`` says otherwise.
RUNS_VARIABLE = "GPUSCHED_RUNS"


_REST = re.compile(r"-\d{8}-\d{6}(-\d+)?|(?<=-\d{8})-\d{6}(-\d+)?")
"""Of an experiment's name, behind its recipe's or behind its day: ``<recipe>-<day>-<time>[-<number>]``."""

#: Entries of a folder that a message names.
FILES_NAMED = 5


def runs_folder(given: str | None = None) -> Path:
    """Return ``--dir``, else the environment's ``GPUSCHED_RUNS``, else ``runs`` here."""
    return Path(given or os.environ.get(RUNS_VARIABLE) or "runs")


def experiments(runs: Path) -> list[ExperimentPaths]:
    """List all experiments in a folder that are open to this user, the oldest first. Raises InputError."""
    if _is_closed(runs):
        raise InputError(f"{runs} is not open to this user; --dir DIR looks elsewhere")
    if not runs.is_dir():
        return []
    found = [ExperimentPaths(path.resolve()) for path in runs.iterdir()]
    found = [paths for paths in found if paths.is_experiment]
    return sorted(found, key=lambda paths: (paths.resolved_time, paths.root.name))


def find(experiment: str | None, runs: Path, *, running_first: bool = False) -> ExperimentPaths:
    """Return the experiment that is meant: a folder, a name, or ``last``; of several with the name the latest.

    ``running_first``: of several, the latest that has a daemon, if one has.

    Raises InputError with the latest names, and DamagedState for an experiment that has lost its journal.
    """
    wanted = experiment or "last"
    folder = Path(wanted)
    if ExperimentPaths(folder).is_experiment:
        return ExperimentPaths(folder.resolve())
    known = experiments(runs)
    if wanted == "last":
        if not known:
            raise InputError(
                f"{runs}/ has no experiment yet; 'gpusched run RECIPE' starts one, --dir DIR looks elsewhere"
            )
        return known[-1]
    matches = [p for p in known if p.root.name == wanted] or [
        p for p in known if _is_called(p.root.name, wanted)
    ]
    if not matches and (closed := next(filter(_is_closed, (folder, runs / wanted)), None)):
        raise InputError(f"{closed} is not open to this user: an experiment is its owner's alone")
    if not matches and folder.is_dir() and folder.name != wanted:
        raise _not_an_experiment(folder)
    if not matches:
        names = [paths.root.name for paths in known]
        latest = f"; the latest are {', '.join(names[-5:])}" if names else ", which has none"
        hint = did_you_mean(wanted, names)
        raise InputError(f"no experiment is called '{wanted}' in {runs}/{hint or latest}")
    if running_first:
        matches = list(filter(has_daemon, matches)) or matches
    return matches[-1]


def _is_closed(folder: Path) -> bool:
    """Tell whether a folder of another user is closed to this one."""
    try:
        return folder.is_dir() and not os.access(folder, os.R_OK | os.X_OK)
    except PermissionError:
        return True


def _not_an_experiment(folder: Path) -> GpuschedError:
    """Say what a folder lacks to be an experiment, and what is in it instead."""
    if ExperimentPaths(folder).resolved.exists():
        return DamagedState(
            f"{folder}: its journal.db is missing; the experiment cannot be read without it"
        )
    names = sorted(path.name for path in folder.iterdir())
    more = f" and {len(names) - FILES_NAMED} more" if len(names) > FILES_NAMED else ""
    inside = f"but {', '.join(names[:FILES_NAMED])}{more}" if names else "the folder is empty"
    if inner := [paths.root.name for paths in experiments(folder)]:
        inside = f"but the experiments {', '.join(inner[-FILES_NAMED:])}; name one of them, as in {folder / inner[-1]}"
    return InputError(f"{folder} is not an experiment: no journal.db is in it, {inside}")


def _is_called(name: str, wanted: str) -> bool:
    """Tell whether ``wanted`` is the recipe's name in an experiment's name, or all of that up to the day."""
    return name.startswith(wanted) and _REST.fullmatch(name, len(wanted)) is not None


def has_daemon(paths: ExperimentPaths) -> bool:
    """Tell whether a daemon holds the experiment's lock."""
    return is_locked(paths.lock)
