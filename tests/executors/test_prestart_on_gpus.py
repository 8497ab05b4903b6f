"""The next ranks of a resize on GPUs: set up beside those that train, and held back at their first touch of CUDA."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import pytest
import torch

from gpusched.core.commands import ConfirmRelease
from gpusched.core.events import DevicesReleased
from gpusched.devices.base import Placement
from gpusched.devices.choose import CpuDevices
from gpusched.executors.local import prestart
from gpusched.executors.local.prestart import Stage
from tests.executors.conftest import Lab, wait_for
from tests.executors.contract import exit_of, report_of
from tests.executors.test_prestart import Resize, nothing_is_left, poll_until

pytestmark = pytest.mark.skipif(
    torch.backends.cuda.is_built(), reason="a torch built for CUDA finds no GPU behind a CPU slot"
)


class PretendGpus(CpuDevices):
    """CPU slots that ranks take for GPUs."""

    kind: Literal["cpu", "cuda"] = "cuda"

    def __init__(self) -> None:
        super().__init__(4)
        self.taken: list[tuple[str, ...]] = []

    def place(self, devices: Sequence[str]) -> Placement:
        placement = super().place(devices)
        rank_env = tuple({**one, "GPUSCHED_DEVICE": "cuda"} for one in placement.rank_env)
        return Placement("cuda", rank_env, placement.rank_cpus, placement.threads_per_rank)

    def take(self, devices: Sequence[str]) -> None:
        self.taken.append(tuple(devices))


@pytest.fixture(scope="module")
def gpu_lab() -> Iterator[Lab]:
    lab = Lab(Path(tempfile.mkdtemp(prefix="gpusched-lab-")), PretendGpus())
    yield lab
    lab.clean()


def resize_on(lab: Lab, **more: object) -> Resize:
    lab.executor.prestarts.failures = 0
    return Resize(lab, scenario="on_gpu", **more)


def test_they_are_set_up_beside_the_old_ranks_and_touch_no_gpu_before_they_are_due(
    gpu_lab: Lab,
) -> None:
    """Imports and data are done before the old ranks leave; CUDA is touched when the launch is in the journal."""
    resize = resize_on(gpu_lab, set_up_s=0.5)
    assert isinstance(gpu_lab.devices, PretendGpus)
    gpu_lab.devices.taken.clear()
    folder = gpu_lab.trial_folder(resize.trial)
    resize.decide()
    resize.see(exit_of(resize.trial))
    assert any(report.stays for report in resize.reports), "the old ranks train meanwhile"
    assert resize.stage is Stage.AT_GPU
    for rank in range(2):
        wait_for(folder / f"set-up-2-{rank}")
    devices = resize.next.devices
    gpu_lab.executor.execute(ConfirmRelease(devices[:1]))
    resize.see(lambda event: isinstance(event, DevicesReleased))
    assert not list(folder.glob("touched-2-*"))
    assert gpu_lab.devices.taken == [], "nobody has them"
    resize.launch_next()
    assert gpu_lab.devices.taken == [devices]
    resize.see(report_of(resize.trial, resize.reports[-1].step + 3))
    for rank in range(2):
        assert wait_for(folder / f"touched-2-{rank}") > wait_for(folder / f"set-up-2-{rank}")
    resize.goes_on_without_a_gap()
    resize.end()


def test_a_script_that_uses_cuda_without_torch_goes_the_usual_way(gpu_lab: Lab) -> None:
    resize = resize_on(gpu_lab, is_eager=True)
    resize.decide()
    resize.see(exit_of(resize.trial))
    poll_until(gpu_lab, lambda: nothing_is_left(resize))
    (said,) = [text for text in gpu_lab.said if "cannot be set up beside" in text]
    assert "the script used CUDA, and not through torch" in said
    resize.launch_next()
    resize.see(report_of(resize.trial, resize.reports[-1].step + 3))
    resize.goes_on_without_a_gap()
    resize.end()


def test_a_prestart_that_may_be_in_the_way_of_a_release_is_dropped(
    gpu_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prestart, "RELEASE_PATIENCE_S", 0.2)
    resize = resize_on(gpu_lab)
    resize.decide()
    resize.see(exit_of(resize.trial))
    assert resize.prepared
    poll_until(gpu_lab, lambda: nothing_is_left(resize))
    assert "their GPUs are not released after 0 s" in gpu_lab.said[-1]
    resize.launch_next()
    resize.see(report_of(resize.trial, resize.reports[-1].step + 3))
    resize.goes_on_without_a_gap()
    resize.end()
