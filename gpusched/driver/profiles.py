"""What ``gpusched profile`` measured: s(a) and To of a recipe, from the journal of a profiling run, kept with a hash.

The hash is over the recipe's script and what of the recipe changes how fast a step is; a profile of something else is
never used. Where there is none, an earlier run of the same recipe tells at least what a hand-over takes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from gpusched.core.decisions import Launch, Yield
from gpusched.core.events import Event, Reported, TrialExited, TrialUp
from gpusched.errors import GpuschedError
from gpusched.folder.files import private_folder, write_durably
from gpusched.folder.paths import ExperimentPaths
from gpusched.journal.log import Entry, Journal
from gpusched.recipe.recipe import Recipe

#: Keys of a recipe that change the speed of a step.
_SPEED_KEYS = ("script", "args", "space", "batch", "devices", "gpus_per_atom", "env", "launch")
#: So many of the latest experiments are asked what a hand-over takes.
_LOOK_AT = 20


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


def handover_s(runs: Path, recipe: Recipe) -> float | None:
    """What it takes to save a trial of this recipe and load the next: profiled, or measured in the latest run of it."""
    known = find(runs, recipe)
    if known is not None:
        return known.overhead_s
    for paths in _earlier_runs(runs, recipe):
        with contextlib.suppress(GpuschedError):  # an earlier run that cannot be read tells nothing
            found = _handover_of(paths)
            if found is not None:
                return found
    return None


def _handover_of(paths: ExperimentPaths) -> float | None:
    journal = Journal.open(paths.journal)
    try:
        return measure_handover(journal.entries())
    finally:
        journal.close()


def _earlier_runs(runs: Path, recipe: Recipe) -> Iterator[ExperimentPaths]:
    """Experiments of the same recipe that are over, the latest first, while the script was what it is now."""
    wanted, changed_s = recipe_hash(recipe.for_disk()), recipe.script.stat().st_mtime
    candidates = [ExperimentPaths(path.parent.resolve()) for path in runs.glob("*/final.json")]
    candidates.sort(key=lambda paths: paths.final_view.stat().st_mtime, reverse=True)
    for paths in candidates[:_LOOK_AT]:
        try:
            if paths.recipe.stat().st_mtime < changed_s:
                continue
            resolved = Recipe.from_resolved(json.loads(paths.resolved.read_bytes()))
            if recipe_hash(resolved) == wanted and paths.journal.is_file():
                yield paths
        except (OSError, ValueError, TypeError, KeyError, GpuschedError):
            continue


def measure_handover(entries: Iterable[Entry]) -> float | None:
    """Save, exit and load, each the median over a run's trials; None if none was ever loaded again.

    Loading is from the launch of a trial that has run before to its first report, less the time of that step; saving
    from the yield of a trial to its exit.
    """
    launched: dict[int, float] = {}
    yielded: dict[int, float] = {}
    loads, leaves = list[float](), list[float]()
    for entry in entries:
        event = entry.event
        if isinstance(event, Reported) and event.trial in launched:
            loads.append(event.at - launched.pop(event.trial) - (event.step_time_s or 0.0))
        elif isinstance(event, TrialExited):
            launched.pop(event.trial, None)
            began = yielded.pop(event.trial, None)
            if began is not None and event.outcome == "yielded":
                leaves.append(event.at - began)
        for command in entry.commands:
            if isinstance(command, Launch) and command.incarnation > 1:
                launched[command.trial] = event.at
            elif isinstance(command, Yield) and command.save:
                yielded[command.trial] = event.at
    if not loads:
        return None
    return statistics.median(loads) + (statistics.median(leaves) if leaves else 0.0)


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
