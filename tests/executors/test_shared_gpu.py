"""Two trials on shares of one GPU: the end of one that is out of memory names the other one."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from gpusched.core.decisions import Kill, Launch
from gpusched.core.events import TrialExited
from gpusched.devices.base import Placement
from gpusched.devices.choose import CpuDevices
from tests.executors.conftest import Lab, train
from tests.executors.contract import exit_of, report_of


class Shares(CpuDevices):
    """CPU slots under the names of a GPU's shares."""

    def place(self, devices: Sequence[str]) -> Placement:
        return super().place([f"cpu:{name.rpartition('#')[2]}" for name in devices])


@pytest.fixture
def lab() -> Iterator[Lab]:
    lab = Lab(Path(tempfile.mkdtemp(prefix="gpusched-lab-")), Shares(4))
    yield lab
    lab.clean()


def test_out_of_memory_names_the_trial_beside_it(lab: Lab) -> None:
    rig, executor = lab.rig, lab.executor
    executor.execute(Launch(0, 1, ("GPU-a#1",), train(10**6, pause_s=0.05)))
    rig.watch(report_of(0, 1))
    greedy = train(9, fails_at=2, error="CUDA out of memory. Tried to allocate 9.00 GiB")

    executor.execute(Launch(1, 1, ("GPU-a#2",), greedy))
    event = rig.watch(exit_of(1))[-1]
    assert isinstance(event, TrialExited)
    assert (event.outcome, event.barred, event.beside) == ("failed", True, (0,))
    assert "out of GPU memory: 9.00 GiB wanted on 1 atom with " in str(event.error)
    assert " beside trial 0. Smaller batches" in str(event.error)
    executor.execute(Kill(0, 1, 0.0))
    rig.watch(exit_of(0))
