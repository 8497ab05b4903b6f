"""The cluster's executor keeps the contract: everything is in ``contract.py``."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.executors.cluster.bed import Bed
from tests.executors.contract import ExecutorContract, Rig


@pytest.fixture(scope="module")
def bed() -> Iterator[Bed]:
    bed = Bed(Path(tempfile.mkdtemp(prefix="gpusched-cluster-")), "local:1x4")
    yield bed
    bed.close()


class TestClusterExecutor(ExecutorContract):
    """Over one node: a trial of two ranks needs torch on each node that has one."""

    @pytest.fixture
    def rig(self, bed: Bed) -> Rig:
        return bed.rig
