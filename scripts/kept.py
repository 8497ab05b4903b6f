"""A simulated run as an experiment's folder: the journal and all that ``status``, ``explain`` and ``report`` open.

Imported by ``papers/whatif.py`` and by tests.
The journal is written as in a live run, only that it is synced at the end and not before each effect: nothing outside
depends on it. ``rules`` in its ``meta`` says how the experiment differed from a live one (``setup.QUIET``).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from gpusched.core.commands import Command, Launch
from gpusched.core.events import Event, Reported
from gpusched.daemon.clients import standing
from gpusched.driver.assemble import Assembled, Beginning, fresh_folder, write_recipe
from gpusched.errors import InputError
from gpusched.executors.local.launching import seed_of
from gpusched.folder.files import private_folder
from gpusched.folder.paths import ExperimentPaths
from gpusched.folder.reports import line_of
from gpusched.journal.log import Journal
from gpusched.policies import label
from gpusched.sim.setup import QUIET, Setup, recipe
from gpusched.sim.study import Result, run

#: Events are written to the journal in batches of this size.
_BATCH = 5000


class _LazyJournal(Journal):
    """A journal that is written in large batches."""

    def commit(self) -> None:
        if len(self._pending) >= _BATCH:
            super().commit()

    def close(self) -> None:
        super().commit()
        super().close()


class _TrialFiles:
    """The trials' own files; an observer of the driver."""

    def __init__(self, paths: ExperimentPaths, seed: int) -> None:
        self._paths = paths
        self._seed = seed
        self._lines: dict[int, list[bytes]] = {}

    def __call__(self, event: Event, commands: Sequence[Command]) -> None:
        if isinstance(event, Reported):
            self._lines[event.trial].append(line_of(event.report))
        for command in commands:
            if isinstance(command, Launch) and command.trial not in self._lines:
                self._lines[command.trial] = []
                trial = self._paths.trial(command.trial)
                private_folder(trial.root)
                hparams = {"trial": command.trial, "seed": seed_of(self._seed, command.trial)}
                _write(trial.hparams, json.dumps({**hparams, "hparams": command.hparams}))

    def write(self) -> None:
        for trial, lines in self._lines.items():
            if lines:
                _write(self._paths.trial(trial).reports, b"".join(lines).decode())


def _write(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.write_text(text)


def simulate_into(runs: Path, setup: Setup) -> tuple[Result, Path]:
    """Run a setup and keep everything in a new folder in ``runs``. Raises InputError if ``runs`` cannot be written."""
    of = dataclasses.replace(recipe(setup), name=_name(setup))
    began = Beginning.now()
    try:
        paths = fresh_folder(runs, of.name)
        write_recipe(paths, of, began)
    except OSError as error:
        raise InputError(f"{runs}: runs cannot be kept here ({error.strerror})") from None
    files = _TrialFiles(paths, setup.seed)
    journal = _LazyJournal.create(paths.journal, _meta(setup, began))
    try:
        search, found = run(setup, of, journal=journal, observer=files)
    finally:
        journal.close()
        files.write()
    _write(paths.final_view, json.dumps(standing(Assembled(search, of, paths))))
    return found, paths.root


def _name(setup: Setup) -> str:
    return f"sim-{label(setup.policy)}-n{setup.atoms}-t{setup.deadline_s:g}-s{setup.seed}"


def _meta(setup: Setup, began: Beginning) -> dict[str, object]:
    return {
        "began": dataclasses.asdict(began),
        "epoch": 1,
        "simulated": dataclasses.asdict(setup),
        "rules": QUIET,
    }
