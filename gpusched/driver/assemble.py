"""A search made from its resolved recipe, its folder, and answers read from its files.

Without YAML: the daemon and the quick commands start from ``resolved.json``, which was validated when the
experiment was made.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from gpusched import policies
from gpusched.core.experiment import Experiment
from gpusched.core.rules import Rules
from gpusched.driver.loop import replay
from gpusched.errors import DamagedState, InputError
from gpusched.folder.files import private_folder, write_durably
from gpusched.folder.paths import ExperimentPaths
from gpusched.journal import rows
from gpusched.processes.identity import boot_id
from gpusched.recipe.recipe import Recipe


@dataclass(slots=True)
class Assembled:
    """A search, its recipe and its folder."""

    experiment: Experiment
    recipe: Recipe
    paths: ExperimentPaths

    def require_policy(self, atoms: int) -> None:
        """Raise InputError if the policy's options make no sense in this search on so many atoms."""
        found = list(self.experiment.policy.problems(self.experiment.state.rules, atoms))
        if found:
            lines = [f"policy.{option}: {message}" for option, message in found]
            raise InputError("\n".join(lines))


def read_recipe(paths: ExperimentPaths) -> Recipe:
    """Read the recipe as resolved when the search was made. Raises DamagedState."""
    try:
        resolved = json.loads(paths.resolved.read_bytes())
    except (OSError, ValueError) as error:
        raise DamagedState(
            f"{paths.resolved}: cannot be read ({error}); the search cannot continue"
        ) from None
    try:
        return Recipe.from_resolved(resolved)
    except DamagedState as error:
        raise DamagedState(f"{paths.resolved}: {error}") from None


def recorded_recipe(paths: ExperimentPaths) -> Recipe:
    """Read the recipe for a replay by the policy that has decided: the user's file may have been edited since."""
    recipe = read_recipe(paths)
    if not paths.policy.is_file():
        return recipe
    file, _, name = recipe.policy_name.rpartition(":")
    sys.path.append(str(Path(file).parent))  # where the modules beside it are
    return replace(recipe, policy_name=f"{paths.policy}:{name}")


def rules(recipe: Recipe) -> Rules:
    """Return the core's part of a recipe."""
    return Rules(
        deadline_s=recipe.deadline_s,
        mode=recipe.mode,
        max_atoms=recipe.max_atoms,
        sizes=recipe.sizes,
        islands_apart=recipe.cluster is not None,
        scaling=recipe.scaling,
        max_trials=recipe.max_trials,
        target=recipe.target,
        max_failures=recipe.max_failures,
        hang_limit_s=recipe.hang_limit_s,
        save_every_s=recipe.save_every_s,
    )


def make_experiment(recipe: Recipe, obeyed: Rules) -> Experiment:
    """Make a fresh experiment of this recipe, live or simulated."""
    policy = policies.make(recipe.policy_name, recipe.policy_options)
    draw = None if recipe.has_memory else recipe.configurations().sample
    return Experiment(obeyed, policy, draw)


def assemble(
    recipe: Recipe, paths: ExperimentPaths, simulated: Mapping[str, Any] | None = None
) -> Assembled:
    """Assemble a fresh experiment. ``simulated``: rules in which a simulated one differs from a live one."""
    obeyed = replace(rules(recipe), **(simulated or {}))
    return Assembled(make_experiment(recipe, obeyed), recipe, paths)


def from_journal(paths: ExperimentPaths) -> Assembled:
    """Rebuild the search from its journal, which is only read. Raises DamagedState."""
    meta = rows.read_meta(paths.journal)
    assembled = assemble(recorded_recipe(paths), paths, meta.get("rules"))
    replay(assembled.experiment, rows.read(paths.journal))
    return assembled


def fresh_folder(runs: Path, name: str) -> ExperimentPaths:
    """Make the folder of a new search, with a number behind a name that is taken. Raises OSError."""
    private_folder(runs)
    for number in range(1, 1000):
        root = runs / (name if number == 1 else f"{name}-{number}")
        with contextlib.suppress(FileExistsError):
            root.mkdir(mode=0o700)
            paths = ExperimentPaths(root.resolve())
            private_folder(paths.trials)
            return paths
    raise InputError(f"{runs}: a thousand searches are called {name}")


def write_recipe(paths: ExperimentPaths, recipe: Recipe, began: Beginning) -> None:
    """Write everything a search starts from; ``resolved.json`` last. Raises OSError."""
    write_durably(paths.began, json.dumps(asdict(began)).encode())
    resolved = json.dumps(recipe.resolved(), ensure_ascii=False, indent=1)
    write_durably(paths.resolved, resolved.encode())


# ---------------------------------------------------------------- seconds since the search began


boottime_s = partial(time.clock_gettime, time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class Beginning:
    """The instant when the search began, in both clocks; moved where it continues after its end."""

    wall_s: float
    boottime_s: float
    boot_id: str

    @classmethod
    def now(cls) -> Beginning:
        return cls(time.time(), boottime_s(), boot_id())

    @classmethod
    def ago(cls, seconds: float) -> Beginning:
        """Return the instant so many seconds before now."""
        now = cls.now()
        return cls(now.wall_s - seconds, now.boottime_s - seconds, now.boot_id)


class ExperimentClock:
    """A clock that is called for the seconds since the beginning, across daemons, suspends and reboots.

    Within one boot it is ``CLOCK_BOOTTIME`` (counts suspend, ignores every step of the wall clock); across a reboot the
    wall clock bridges the gap, once, when the new daemon starts (reliability F9). It never goes back:
    ``at_least_s`` is the time of the last journaled event: after a reboot with a wrong wall clock time continues there.
    """

    def __init__(self, beginning: Beginning, at_least_s: float = 0.0) -> None:
        if beginning.boot_id == boot_id():
            self._zero = beginning.boottime_s
        else:
            self._zero = boottime_s() - (time.time() - beginning.wall_s)
        self._zero = min(self._zero, boottime_s() - at_least_s)

    def __call__(self) -> float:
        return boottime_s() - self._zero
