"""``best/``: the best model so far, whole at every moment.

Built aside under ``.best/<n>`` from hard links to the checkpoint (so it outlives the trial's own clean-up and costs no
space), synced, then one rename of the link ``best`` makes it the best. Older ones go after that. ``BestKeeper`` tries
again where the disk refuses.
"""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpusched import failpoints
from gpusched.core.commands import KeepBest
from gpusched.executors.base import Setting
from gpusched.folder.files import FULL, private_folder, read_json, sealed, sync, write_durably
from gpusched.folder.paths import ExperimentPaths, numbered

_AGAIN_S = 2.0


def keep_best(
    paths: ExperimentPaths, trial: int, step: int, *, metric: str, value: float, atoms: int | None
) -> bool:
    """Make ``best/`` the checkpoint of this step. False without that checkpoint (nothing is changed then).

    ``metric.json``: ``{"trial", "step", "metric", "value", "atoms"}`` and checksums of itself and of ``hparams.json``.
    Raises OSError, e.g. when the disk is full.
    """
    facts = {"trial": trial, "step": step, "metric": metric, "value": value, "atoms": atoms}
    now_best = read_json(paths.best / "metric.json")
    if now_best is not None and now_best.get("trial") == trial and now_best.get("step") == step:
        return True
    source = paths.trial(trial).checkpoint(step)
    if not source.is_dir():
        return False
    private_folder(paths.bests)
    number = 1 + max(numbered(paths.bests), default=0)
    folder = paths.bests / str(number)
    aside = paths.bests / f".{number}.tmp"
    shutil.rmtree(aside, ignore_errors=True)
    try:
        _build(aside, source, paths.trial(trial).hparams, facts)
        failpoints.reach("best.built")
        aside.replace(folder)
        sync(paths.bests)
        failpoints.reach("best.renamed")
        _point_to(paths.best, folder)
        failpoints.reach("best.pointed")
    except OSError:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    for entry in paths.bests.iterdir():
        if entry != folder:
            shutil.rmtree(entry, ignore_errors=True)
    return True


def give_back(paths: ExperimentPaths, trial: int, step: int) -> None:
    """Give a trial whose checkpoints were removed the best model's, which is its own. Raises OSError."""
    home = paths.trial(trial).checkpoint(step)
    facts = read_json(paths.best / "metric.json") or {}
    if home.is_dir() or (facts.get("trial"), facts.get("step")) != (trial, step):
        return
    aside = home.with_name(f".staging-{home.name}")
    shutil.rmtree(aside, ignore_errors=True)
    _link_folder(paths.best / "checkpoint", aside)
    aside.replace(home)
    sync(home.parent)


def _build(folder: Path, source: Path, hparams: Path, facts: Mapping[str, Any]) -> None:
    _link_folder(source, folder / "checkpoint")
    sums = {}
    with suppress(FileNotFoundError):
        data = hparams.read_bytes()
        sums["hparams_crc32"] = zlib.crc32(data)
        write_durably(folder / "hparams.json", data)
    write_durably(folder / "metric.json", sealed(json.dumps({**facts, **sums}).encode()) + b"\n")


def _link_folder(source: Path, target: Path) -> None:
    """Give the files of a folder names in another folder, too."""
    private_folder(target)
    for entry in source.iterdir():
        (_link_folder if entry.is_dir() else _link)(entry, target / entry.name)
    sync(target)


def _link(source: Path, target: Path) -> None:
    """Make a hard link, or a copy where the file system has no links."""
    try:
        target.hardlink_to(source)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copyfile(source, target)
        sync(target)


def _point_to(link: Path, folder: Path) -> None:
    aside = link.with_name(f".{link.name}.tmp")
    aside.unlink(missing_ok=True)
    aside.symlink_to(folder.relative_to(link.parent))
    aside.replace(link)
    sync(link.parent)


class BestKeeper:
    """Keeps ``best/`` what was asked for last, however long the disk refuses.

    ``after`` calls an action so many seconds later.
    """

    def __init__(
        self, setting: Setting, after: Callable[[float, Callable[[], None]], None]
    ) -> None:
        self._setting = setting
        self._after = after
        #: The number of atoms with each: the trial may be resized before the disk has room.
        self._wanted: tuple[KeepBest, int | None] | None = None
        self._is_waiting = self._has_complained = False

    def keep(self, command: KeepBest) -> None:
        """Make ``best/`` this; where the disk refuses, try until it does not, or something better is asked for."""
        self._wanted = command, self._setting.atoms_of(command.trial)
        self._try()

    def _try_again(self) -> None:
        self._is_waiting = False
        self._try()

    def _try(self) -> None:
        if self._wanted is None:
            return
        command, atoms = self._wanted
        try:
            kept = keep_best(
                self._setting.paths,
                command.trial,
                command.step,
                metric=self._setting.recipe.metric,
                value=command.metric,
                atoms=atoms,
            )
        except OSError as problem:
            if problem.errno in FULL and self._setting.spare():
                self._try()
                return
            if not self._has_complained:
                self._setting.say(f"best/ stays as it was: {problem}; trying again")
                self._has_complained = True
            if not self._is_waiting:
                self._is_waiting = True
                self._after(_AGAIN_S, self._try_again)
            return
        self._wanted, self._has_complained = None, False
        if not kept:
            self._setting.say(
                f"best/ stays: trial {command.trial} has no checkpoint of step {command.step}"
            )
