"""An experiment seen from outside: which folder is meant, whether its daemon lives, and where it stands.

What the commands share. Reads through the daemon's socket while one lives; straight from the files only when none does
(the journal has one connection, the daemon's).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpusched.client import Client, DaemonGone
from gpusched.errors import DamagedState, GpuschedError, InputError
from gpusched.paths import ExperimentPaths

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


def view(paths: ExperimentPaths) -> dict[str, Any]:
    """Where the experiment stands, as JSON: from its daemon, or from its files when none lives."""
    answer = _from_daemon(paths, "view")
    if answer is not None:
        return answer
    if paths.final_view.is_file():
        try:
            kept: dict[str, Any] = json.loads(paths.final_view.read_bytes())
        except ValueError:
            pass
        else:
            # The folder may have been moved or copied since.
            return {**kept, "experiment": paths.root.name, "folder": str(paths.root)}
    from gpusched.assemble import view_from_journal

    return view_from_journal(paths)


def explanation(paths: ExperimentPaths, trial: int) -> dict[str, Any]:
    """Why a trial is where it is: ``{"data": .., "lines": [..]}``. Raises InputError for an unknown trial."""
    answer = _from_daemon(paths, "explain", trial=trial)
    if answer is not None:
        return answer
    from gpusched.assemble import explain_from_journal

    return explain_from_journal(paths, trial)


def _from_daemon(paths: ExperimentPaths, verb: str, **arguments: Any) -> dict[str, Any] | None:
    """What the daemon answers; None once there is none, which includes one that ends while it is being asked."""
    until = time.monotonic() + COMING_OR_GOING_S
    while has_daemon(paths):
        client = Client.connect(paths.socket)
        if client is not None:
            with client, contextlib.suppress(DaemonGone):
                answer: dict[str, Any] = client.ask(verb, **arguments)
                return answer
        # It holds the lock before it listens, and for a moment after it has stopped.
        if time.monotonic() > until:
            raise GpuschedError(
                f"{paths.root.name}: its daemon holds the lock but does not answer; see {paths.log}"
            )
        time.sleep(0.02)
    return None


def ask(paths: ExperimentPaths, verb: str, **arguments: Any) -> Any:
    """Ask the daemon of an experiment. Raises InputError if none lives."""
    client = Client.connect(paths.socket)
    if client is None and paths.final_view.exists():
        raise InputError(
            f"{paths.root.name} is over; 'gpusched best {paths.root.name}' shows its model"
        )
    if client is None:
        raise InputError(
            f"{paths.root.name} is not running; 'gpusched resume {paths.root.name}' goes on with it"
        )
    with client:
        return client.ask(verb, **arguments)


def trial_number(text: str, known: int | None = None) -> int:
    """``7``, ``0007`` or ``trial-7``. Raises InputError."""
    digits = text.removeprefix("trial").lstrip("-_ ")
    if not digits.isdigit():
        raise InputError(f"'{text}' is no trial; give its number, as 'gpusched status' shows it")
    number = int(digits)
    if known is not None and number >= known:
        raise InputError(f"there is no trial {number}; there are {known} so far (0 to {known - 1})")
    return number


def trial_folders(paths: ExperimentPaths) -> Iterator[int]:
    """Numbers of the trials that have a folder."""
    if paths.trials.is_dir():
        for folder in sorted(paths.trials.iterdir()):
            if folder.name.isdigit():
                yield int(folder.name)
