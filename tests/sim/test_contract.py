"""The simulated executor passes the contract that the live one passes."""

from __future__ import annotations

import itertools

import pytest

from gpusched.sim.executor import SimExecutor
from gpusched.sim.physics import SimulatedCurve
from tests.executors.contract import ExecutorContract, Rig


class Scripted:
    """Does what its hyperparameters say: ``steps`` steps of 0.1 s, and fails in step ``fails_at``."""

    name, metric, mode, defaults = "scripted", "accuracy", "max", {}

    def space(self, seed):
        return {}

    def curve(self, trial, hparams, seed):
        fails_at = hparams.get("fails_at")
        length = hparams["steps"] if fails_at is None else fails_at - 1
        ending = "finished" if fails_at is None else "failed"
        return SimulatedCurve(lambda step: 0.1 * step, lambda step: 0.1, length, ending)


class TestSimExecutor(ExecutorContract):
    """Everything is in ``contract.py``."""

    @pytest.fixture
    def rig(self) -> Rig:
        numbers = itertools.count()
        executor = SimExecutor(Scripted(), 4)
        return Rig(executor, lambda: next(numbers), lambda steps, **more: {"steps": steps, **more})
