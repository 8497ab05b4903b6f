"""What ``gpusched profile`` measured: s(a) and To of a recipe, from the journal of a profiling run, kept with a hash.

The hash is over the recipe's script and what of the recipe changes how fast a step is; a profile of something else is
never used.
"""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from gpusched.config import Recipe
from gpusched.core.events import Event, Reported, TrialUp
from gpusched.journal import Entry
from gpusched.paths import private_folder, write_durably

#: Keys of a recipe that change the speed of a step.
_SPEED_KEYS = ("script", "args", "space", "batch", "devices", "gpus_per_atom", "env", "launch")


@dataclass(frozen=True, slots=True)
class Profile:
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


def measure(entries: Iterable[Entry]) -> Profile:
    """From the journal of a profiling run: the first step of every incarnation warms up and is not counted."""
    times: dict[int, list[float]] = {}
    overheads: list[float] = []
    atoms = steps = 0
    last_report_at: float | None = None
    for entry in entries:
        for command in entry.commands:
            if type(command).__name__ == "Launch":
                atoms, steps = len(command.devices), 0  # type: ignore[union-attr]
                if last_report_at is None:
                    last_report_at = entry.event.at
        event: Event = entry.event
        if isinstance(event, Reported):
            step_s = event.step_time_s or 0.0
            if steps == 0 and last_report_at is not None:
                overheads.append(event.at - last_report_at - step_s)
            elif steps > 0:
                times.setdefault(atoms, []).append(step_s)
            steps, last_report_at = steps + 1, event.at
        elif isinstance(event, TrialUp):
            steps = 0
    medians = {size: statistics.median(found) for size, found in sorted(times.items())}
    return Profile(medians, statistics.median(overheads) if overheads else 0.0)


def recipe_hash(recipe: Recipe) -> str:
    """Of the script's text and the keys that change the speed of a step."""
    resolved = recipe.resolved()
    text = json.dumps({key: resolved[key] for key in _SPEED_KEYS}, sort_keys=True)
    digest = hashlib.sha256(text.encode())
    digest.update(recipe.script.read_bytes())
    return digest.hexdigest()[:16]


def _file(runs: Path, recipe: Recipe) -> Path:
    return runs / ".profiles" / f"{recipe_hash(recipe)}.json"


def keep(runs: Path, recipe: Recipe, profile: Profile) -> Path:
    """Store a profile for later runs of this recipe."""
    path = _file(runs, recipe)
    private_folder(path.parent)
    write(path, profile)
    return path


def find(runs: Path, recipe: Recipe) -> Profile | None:
    """The profile of exactly this recipe and script; None if there is none that can be read."""
    return read(_file(runs, recipe))


def read(path: Path) -> Profile | None:
    """The profile in a file; None if there is none that can be read."""
    try:
        found = json.loads(path.read_bytes())
        times = {int(atoms): float(time_s) for atoms, time_s in found["step_s"].items()}
        return Profile(times, float(found["overhead_s"])) if times else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def write(path: Path, profile: Profile) -> None:
    """Durably."""
    write_durably(path, json.dumps(asdict(profile)).encode())
