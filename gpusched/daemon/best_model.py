"""The best model of a search: what is known of it, and its state, ready for ``load_state_dict``."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from gpusched.errors import DamagedState, GpuschedError, NoTrialSucceeded
from gpusched.folder import find
from gpusched.folder.files import is_sound
from gpusched.folder.paths import ExperimentPaths

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Description:
    """The best model so far: its score, the step it was scored at, and the configuration that gave it."""

    experiment: str
    trial: int
    metric: str
    value: float
    step: int
    atoms: int
    seed: int | None
    hparams: dict[str, Any]
    checkpoint: str


@dataclass(frozen=True, slots=True)
class Best(Description):
    """The best model with its state.

    Attributes:
        state: What ``trial.track`` or ``trial.steps`` was given, by name, with tensors on the CPU. An object that was
            tracked as pickled gets it back by ``gpusched.pickled(clf).load_state_dict(state["clf"])``.
        folder: Files that the script wrote inside ``trial.checkpoint_dir()``; None without any. While the search runs,
            a better model may replace the folder: copy what is needed.
    """

    state: dict[str, Any]
    folder: Path | None = None


def load(experiment: str | os.PathLike[str] | None = None) -> Best:
    """Load the best model of a search, verified against the hashes it was written with: ``gpusched.load``."""
    from gpusched.worker.checkpoint import Damaged, verify
    from gpusched.worker.state import unportable

    paths = find.find(None if experiment is None else os.fspath(experiment), find.runs_folder())

    def read(folder: Path) -> Best:
        known = _read(paths, folder)
        try:
            checkpoint = verify(folder / "checkpoint", known.step)
            has_state = "state.pt" in checkpoint.files
            state = unportable(checkpoint.load("state.pt")["tracked"]) if has_state else {}
        except (Damaged, OSError, ValueError, KeyError) as error:
            raise DamagedState(f"{folder}: the best model cannot be loaded: {error}") from None
        fields = {name: getattr(known, name) for name in Description.__slots__}
        return Best(**fields, state=state, folder=checkpoint.script_folder)

    return _undisturbed(paths, read)


def describe(paths: ExperimentPaths) -> Description:
    """Describe the best model so far. Raises NoTrialSucceeded, DamagedState."""
    return _undisturbed(paths, lambda folder: _read(paths, folder))


def _undisturbed(paths: ExperimentPaths, read: Callable[[Path], T]) -> T:
    """Read from what ``best`` points to; again if that failed because another took its place meanwhile."""
    while True:
        folder = paths.best.resolve()
        try:
            return read(folder)
        except GpuschedError:
            if folder == paths.best.resolve():
                raise


def _read(paths: ExperimentPaths, folder: Path) -> Description:
    try:
        text = (folder / "metric.json").read_bytes().strip()
        metric, drawn = json.loads(text), (folder / "hparams.json").read_bytes()
        crc = zlib.crc32(drawn)
        if not is_sound(text) or crc != metric.get("hparams_crc32", crc):
            raise ValueError("it is not as it was written")
        where = {"experiment": paths.root.name, "checkpoint": str(paths.best / "checkpoint")}
        known = {"seed": None, "hparams": {}, **json.loads(drawn), **metric, **where}
        return msgspec.convert(known, Description)
    except FileNotFoundError:
        is_over = paths.final_view.is_file()
        why = "no trial left a model" if is_over else "no trial has saved a model yet"
        shows = f"'gpusched status{find.as_argument(paths)}' shows its trials"
        raise NoTrialSucceeded(f"{paths.root.name}: {why}; {shows}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedState(
            f"{folder}: the best model's description cannot be read ({error})"
        ) from None
