"""Measurements of ``gpusched profile``: s(a) and To of a recipe, from the journal of a profiling run, kept with a hash.

The hash is over the recipe's script and what of the recipe changes how fast a step is; a profile of something else is
never used.
"""

from __future__ import annotations

import hashlib
import json
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path

from gpusched.folder.files import private_folder, write_durably
from gpusched.journal.timeline import Timeline
from gpusched.recipe.recipe import Recipe

#: Keys of a recipe that change the speed of a step.
_SPEED_KEYS = (
    *("script", "args", "space", "batch", "devices"),
    *("gpus_per_atom", "atoms_per_gpu", "env", "launch", "python"),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """``step_s`` and ``scaling``: by number of atoms; ``overhead_s``: To, the median of all launches and resizes."""

    step_s: dict[int, float]
    overhead_s: float

    @property
    def scaling(self) -> dict[int, float]:
        """s(a), relative to the smallest size measured."""
        smallest = min(self.step_s)
        return {
            atoms: round(self.step_s[smallest] / time_s, 4) for atoms, time_s in self.step_s.items()
        }


def measure(told: Timeline) -> Measured:
    """Measure a profiling run: the first step of every incarnation warms up and is not counted."""
    times: dict[int, list[float]] = {}
    overheads: list[float] = []
    for trial in told.trials.values():
        before_at: float | None = None
        for incarnation in trial.incarnations:
            for place, step in enumerate(incarnation.steps):
                step_s = step.report.step_time_s or 0.0
                if place:
                    times.setdefault(len(incarnation.devices), []).append(step_s)
                else:
                    since = incarnation.launched_at if before_at is None else before_at
                    overheads.append(step.at - since - step_s)
                before_at = step.at
    medians = {size: statistics.median(found) for size, found in sorted(times.items())}
    return Measured(medians, statistics.median(overheads) if overheads else 0.0)


def recipe_hash(recipe: Recipe) -> str:
    """Hash the script's text and the keys that change the speed of a step."""
    resolved = recipe.resolved()
    text = json.dumps({key: resolved[key] for key in _SPEED_KEYS}, sort_keys=True)
    digest = hashlib.sha256(text.encode())
    digest.update(recipe.script.read_bytes())
    return digest.hexdigest()[:16]


def _file(runs: Path, recipe: Recipe) -> Path:
    return runs / ".profiles" / f"{recipe_hash(recipe)}.json"


def keep(runs: Path, recipe: Recipe, profile: Measured) -> Path:
    """Store a profile for later runs of this recipe."""
    path = _file(runs, recipe)
    private_folder(path.parent)
    write(path, profile)
    return path


def find(runs: Path, recipe: Recipe) -> Measured | None:
    """Return the profile of exactly this recipe and script; None without a readable one."""
    return read(_file(runs, recipe))


def read(path: Path) -> Measured | None:
    """Return the profile in a file; None without a readable one."""
    try:
        found = json.loads(path.read_bytes())
        times = {int(atoms): float(time_s) for atoms, time_s in found["step_s"].items()}
        return Measured(times, float(found["overhead_s"])) if times else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def write(path: Path, profile: Measured) -> None:
    """Write a profile durably."""
    write_durably(path, json.dumps(asdict(profile)).encode())
