"""Find experiments on disk: by folder, by name, or the ``last`` one; and whether a daemon holds one."""

from __future__ import annotations

import os
import re
import shlex
import time
from contextlib import suppress
from pathlib import Path

from gpusched.errors import InputError
from gpusched.folder.lock import lock_note
from gpusched.folder.paths import ExperimentPaths
from gpusched.text import did_you_mean

#: Folder in which experiments are made and looked for unless ``--dir`` says otherwise.
RUNS_VARIABLE = "GPUSCHED_RUNS"


_TIME = re.compile(r"-\d{8}-\d{6}(-\d+)?$")
"""Of an experiment's name, behind its recipe's: ``<recipe>-<day>-<time>[-<number>]``."""


def runs_folder(given: str | None = None) -> Path:
    """Return ``--dir``, else the environment's ``GPUSCHED_RUNS``, else ``runs`` here."""
    return Path(given or os.environ.get(RUNS_VARIABLE) or "runs")


def experiments(runs: Path) -> list[ExperimentPaths]:
    """List all experiments in a folder that are open to this user, the oldest first. Raises InputError."""
    try:
        found = [ExperimentPaths(path.resolve()) for path in runs.iterdir()]
    except PermissionError:
        raise InputError(f"{runs} is not open to this user; --dir DIR looks elsewhere") from None
    except OSError:
        return []
    return sorted((paths for paths in found if paths.is_experiment), key=_made)


def _made(paths: ExperimentPaths) -> tuple[str, float, str]:
    """Return when an experiment was made, to be compared: by its name, as the files of a copy are new."""
    written_at, told = 0.0, _TIME.search(paths.root.name)
    with suppress(OSError):
        written_at = paths.resolved.stat().st_mtime
    stamp = told[0] if told else time.strftime("-%Y%m%d-%H%M%S", time.localtime(written_at))
    return stamp, written_at, paths.root.name


def find(experiment: str | None, runs: Path, *, running_first: bool = False) -> ExperimentPaths:
    """Return the experiment that is meant: a folder, a name, or ``last``; of several with the name the latest.

    ``running_first``: of several, the latest that has a daemon, if one has.

    Raises InputError with the latest names.
    """
    wanted = experiment or "last"
    folder = Path(wanted)
    if ExperimentPaths(folder).is_experiment:
        return ExperimentPaths(folder.resolve())
    known = experiments(runs)
    if wanted == "last":
        if not known:
            raise InputError(
                f"{runs}/ has no search yet; 'gpusched run RECIPE' starts one, --dir DIR looks elsewhere"
            )
        matches = known
    else:
        matches = [p for p in known if p.root.name == wanted] or [
            p
            for p in known
            if p.root.name.startswith(wanted) and _TIME.fullmatch(p.root.name, len(wanted))
        ]
    if not matches and folder.is_dir() and folder.name != wanted:
        is_open = os.access(folder, os.X_OK)
        why = "no journal.db is in it" if is_open else "it is not open to this user"
        raise InputError(f"{folder} is not a search: {why}")
    if not matches:
        names = [paths.root.name for paths in known]
        latest = f"; the latest are {', '.join(names[-5:])}" if names else ", which has none"
        hint = did_you_mean(wanted, names) or latest
        if re.fullmatch(r"\d{1,5}", wanted):
            hint = f"; trial {wanted} is meant by 'gpusched explain {wanted}' and 'gpusched stop --trial {wanted}'"
        raise InputError(f"no search is called '{wanted}' in {runs}/{hint}")
    if running_first:
        matches = list(filter(has_daemon, matches)) or matches
    return matches[-1]


def as_argument(paths: ExperimentPaths) -> str:
    """Return a search's word behind a command, after a blank; empty for the newest of the folder that is looked in."""
    known: list[ExperimentPaths] = []
    with suppress(InputError):  # the folder here may be of another user
        known = experiments(runs_folder())
    if paths not in known:
        return f" {shlex.quote(str(paths.root))}"
    return f" {paths.root.name}" if paths != known[-1] else ""


def ways(paths: ExperimentPaths) -> str:
    """Say how a search in the background is shown and ended."""
    name = as_argument(paths)
    return f"'gpusched watch{name}' shows it, 'gpusched stop{name}' ends it"


def has_daemon(paths: ExperimentPaths) -> bool:
    """Tell whether a daemon holds the experiment's lock."""
    return lock_note(paths.lock) is not None
