"""``best/``: the best model so far, whole at every moment.

Built aside under ``bests/<n>`` from hard links to the checkpoint (so it outlives the trial's own clean-up and costs no
space), synced, then one rename of the link ``best`` makes it the best. Older ones go after that.
"""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpusched import failpoints
from gpusched.core.commands import KeepBest
from gpusched.folder.files import private_folder, read_json, sealed, sync, write_durably
from gpusched.folder.paths import ExperimentPaths, numbered


def keep_best(paths: ExperimentPaths, best: KeepBest, metric: str) -> bool:
    """Make ``best/`` this checkpoint. False without that checkpoint (nothing is changed then).

    ``metric.json``: ``{"trial", "step", "metric", "value", "atoms"}`` and checksums of itself and of ``hparams.json``.
    Raises OSError, e.g. when the disk is full.
    """
    trial, step, value = best.trial, best.step, best.metric
    facts = {"trial": trial, "step": step, "metric": metric, "value": value, "atoms": best.atoms}
    kept = read_json(paths.best / "metric.json") or {}
    if (kept.get("trial"), kept.get("step"), kept.get("value")) == (trial, step, value):
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
        if entry.is_dir():
            _link_folder(entry, target / entry.name)
        else:
            (target / entry.name).hardlink_to(entry)
    sync(target)


def _point_to(link: Path, folder: Path) -> None:
    aside = link.with_name(f".{link.name}.tmp")
    aside.unlink(missing_ok=True)
    aside.symlink_to(folder.relative_to(link.parent))
    if link.is_dir() and not link.is_symlink():  # of a copy that followed links, as scp -r does
        link.rename(folder.with_name(".followed"))
    aside.replace(link)
    sync(link.parent)
