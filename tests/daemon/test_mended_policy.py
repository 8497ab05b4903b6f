"""A policy of the user's own that was changed decides at a resume only where it would have decided as before.

That it does then: ``tests/e2e/test_policies.py``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gpusched import plugins
from gpusched.core.decisions import Policy
from gpusched.core.events import DevicesJoined
from gpusched.daemon.resuming import settle_policy
from gpusched.driver.assemble import Assembled, Beginning, assemble, write_recipe
from gpusched.driver.loop import Driver, replay
from gpusched.errors import InputError
from gpusched.folder.paths import ExperimentPaths
from gpusched.journal.log import Journal
from gpusched.recipe.load import load_recipe
from gpusched.sim.physics import Delays
from gpusched.sim.workload import Synthetic
from tests.faults import FaultyExecutor

POLICY = """\
from gpusched.policies import Complete, Policy, Start

class Mine(Policy):
    def __init__(self, options):
        self.options, self.seen = options, 0
    def on_report(self, view, trial):
        self.seen += 1
        {rule}
    def on_capacity(self, view):
        return [Start({atoms}, "mine")] if view.atoms_free >= {atoms} else []
"""
BROKEN = POLICY.format(rule="return [] if self.seen < 20 else [Stop(trial.id)]", atoms=1)
MENDED = POLICY.format(rule="return [] if self.seen < 20 else [Complete(trial.id)]", atoms=1)
RECIPE = """\
script: train.py
deadline: 20s
metric: accuracy
space: {b0_quantile: {uniform: [0, 0.9]}, b1: {uniform: [0, 1]}, b2: {uniform: [0, 1]}}
policy: mine.py:Mine
"""


class Search:
    """One search in a folder, each of its daemons a new journal and a new experiment."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "mine.py"
        self.file.write_text(BROKEN)
        (folder / "train.py").touch()
        (folder / "recipe.yaml").write_text(RECIPE)
        recipe = load_recipe(folder / "recipe.yaml", [])
        self.executor = FaultyExecutor(Synthetic(), 4, delays=Delays(), seed=1)
        (folder / "run").mkdir()
        self.recipe, self.paths = recipe, ExperimentPaths(folder / "run")
        write_recipe(self.paths, recipe, Beginning.now())
        Journal.create(self.paths.journal, {"epoch": 1}).close()

    def settle(self) -> list[str]:
        plugins.module.cache_clear()  # a daemon is a process of its own
        return settle_policy(self.paths, self.recipe)

    def replayed(self) -> tuple[Assembled, Journal]:
        plugins.module.cache_clear()
        assembled, journal = assemble(self.recipe, self.paths), Journal.open(self.paths.journal)
        replay(assembled.experiment, journal.entries())
        return assembled, journal

    def play(self) -> None:
        """Let the first daemon play until its policy fails."""
        assembled, journal = self.replayed()
        driver = Driver(assembled.experiment, self.executor, journal, check=True)
        devices = tuple(device.id for device in self.executor.inventory())
        try:
            driver.handle([DevicesJoined(at=0.0, devices=devices)])
            driver.run()
        finally:
            journal.close()


def name_of(policy: Policy) -> str:
    return Path(sys.modules[type(policy).__module__].__file__).name


def test_a_policy_that_would_have_decided_otherwise_does_not_count(tmp_path: Path) -> None:
    search = Search(tmp_path)
    with pytest.raises(InputError):
        search.play()
    for other in (POLICY.format(rule="return []", atoms=2), "1 / 0\n", MENDED.replace("seen", "")):
        search.file.write_text(other)
        (remark,) = search.settle()
        assert "its copy decides" in remark
        assert search.paths.policy.read_text() == BROKEN
    assembled, journal = search.replayed()
    journal.close()
    assert name_of(assembled.experiment.policy) == "policy.py"


def test_a_file_that_is_gone_leaves_the_copy(tmp_path: Path) -> None:
    search = Search(tmp_path)
    search.file.unlink()
    assert search.settle() == []
    assembled, journal = search.replayed()
    journal.close()
    assert name_of(assembled.experiment.policy) == "policy.py"
