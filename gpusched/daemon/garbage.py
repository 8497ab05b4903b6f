"""Checkpoints that nothing needs any more, and their removal (reliability F26).

Needed are: of a trial that may go on, its two newest committed checkpoints; everything of a trial whose processes still
live, daemon or not; and as long as ``best/`` does not hold the best model, the checkpoints of the trial that does. What
is removed is renamed first, so that a crash leaves nothing half-deleted under its old name.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from gpusched.core.state import State
from gpusched.folder.files import read_json
from gpusched.folder.paths import ExperimentPaths
from gpusched.processes.claim import read_claim

KEEP = 2
TRASH = ".trash-"
_COMMITTED = ("step-", ".replaced-step-")


def unneeded(paths: ExperimentPaths, state: State, only_final: bool = False) -> list[Path]:
    """Checkpoint folders that neither the best model nor a resume needs. ``only_final``: of trials that are over."""
    found: list[Path] = []
    for number in _trials(paths):
        trial = state.trials.get(number)
        if trial is None:
            continue  # the journal knows nothing of it; a salvage may have lost that
        if only_final and not trial.is_final:
            continue
        folder = paths.trial(number).checkpoints
        try:
            there = sorted(entry for entry in folder.iterdir() if entry.is_dir())
        except OSError:
            continue
        if _is_alive(paths, number):
            continue
        keep = _newest(there) if not trial.is_final or _holds_the_best(paths, state, number) else ()
        found += [entry for entry in there if entry not in keep]
    return found


def remove(
    folders: Iterable[Path], delete: Callable[[Path], None] = shutil.rmtree
) -> tuple[int, int]:
    """Remove these; how many, and how many bytes that gives. What cannot be removed stays."""
    count = size_bytes = 0
    for folder in folders:
        size = size_of(folder)
        trash = folder
        if not folder.name.startswith(TRASH):
            trash = folder.with_name(f"{TRASH}{folder.name.lstrip('.')}")
        with suppress(OSError):
            if trash != folder:
                shutil.rmtree(trash, ignore_errors=True)
                folder.rename(trash)
            delete(trash)
            count, size_bytes = count + 1, size_bytes + size
    return count, size_bytes


def size_of(folder: Path) -> int:
    """Bytes that removing it gives back: of files that have no other name."""
    total = 0
    with suppress(OSError):
        for path in folder.rglob("*"):
            if path.is_file() and path.stat().st_nlink == 1:
                total += path.stat().st_size
    return total


def _trials(paths: ExperimentPaths) -> list[int]:
    try:
        return sorted(int(entry.name) for entry in paths.trials.iterdir() if entry.name.isdigit())
    except OSError:
        return []


def _newest(there: list[Path]) -> tuple[Path, ...]:
    """The newest committed ones; also one whose successor was on its way into its place."""
    committed = [
        entry
        for entry in there
        if entry.name.startswith(_COMMITTED) and (entry / "manifest.json").is_file()
    ]
    return tuple(
        sorted(committed, key=lambda entry: entry.name.rpartition("-")[2].zfill(20))[-KEEP:]
    )


def _holds_the_best(paths: ExperimentPaths, state: State, number: int) -> bool:
    """Whether the best model is this trial's and is not in ``best/`` yet."""
    best = state.best
    if best is None or best.trial != number:
        return False
    kept = read_json(paths.best / "metric.json")
    return kept is None or (kept.get("trial"), kept.get("step")) != (best.trial, best.step)


def _is_alive(paths: ExperimentPaths, number: int) -> bool:
    """Whether an incarnation of it still has processes, perhaps without any daemon."""
    trial = paths.trial(number)
    try:
        incarnations = [
            int(entry.name) for entry in (trial.root / "logs").iterdir() if entry.name.isdigit()
        ]
    except OSError:
        return False
    for incarnation in incarnations:
        if not trial.exit(incarnation).exists():
            claim = read_claim(trial.shim(incarnation))
            if claim is not None and claim.is_alive:
                return True
    return False
