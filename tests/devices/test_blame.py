"""A trial fails with a CUDA error: was it the trial, or the GPU under it?"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import Box, Watched, begin, gpu, run_trial

from gpusched.core.events import TrialExited
from gpusched.devices.base import Examined
from gpusched.devices.cuda import EXAMINE_PATIENCE_S
from gpusched.executors.local.endings import may_be_the_gpus, with_blame
from tests.events import exited

MakeBox = Callable[..., Box]

LAUNCH_FAILURE = (
    "torch.AcceleratorError: CUDA error: unspecified launch failure\n"
    "CUDA kernel errors might be asynchronously reported at some other API call"
)
ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
NCCL = "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3356, unhandled cuda error"


def settle(box: Box, devices: Watched, names: list[str], error: str) -> tuple[TrialExited, float]:
    """How it ended after all, and how long that took to find out."""
    ending, begun = exited("failed", step=3, error=error), box.clock.now()
    assert may_be_the_gpus(ending)
    devices.examine(names)
    while not (told := devices.told(Examined)):
        assert box.clock.now() - begun < 2 * EXAMINE_PATIENCE_S
        box.clock.advance(0.05)
    assert [event.devices for event in told] == [tuple(names)]
    return with_blame(ending, told[0].fault), box.clock.now() - begun


@pytest.mark.parametrize("error", [LAUNCH_FAILURE, NCCL])
def test_a_lost_gpu_is_to_blame_though_nobody_had_noticed_yet(box: Box, error: str) -> None:
    devices, names = begin(box)
    run_trial(box, devices, names[1], 11)
    box.gpus[1].lost_from = box.clock.now()
    ending, took_s = settle(box, devices, names, error)
    assert ending.outcome == "lost"
    assert ending.error is not None
    assert "GPU 1: the GPU is lost" in ending.error
    assert error.partition("\n")[0] in ending.error
    assert "\n" not in ending.error
    assert took_s < 1.0
    assert [fault.device for fault in devices.faults()] == [names[1]]


def test_on_a_whole_gpu_it_was_the_trial(box: Box) -> None:
    devices, (name, _) = begin(box)
    run_trial(box, devices, name, 11)
    ending, took_s = settle(box, devices, [name], LAUNCH_FAILURE)
    assert ending == exited("failed", step=3, error=LAUNCH_FAILURE)
    assert took_s < EXAMINE_PATIENCE_S


def test_a_gpu_that_asks_for_a_reset_is_to_blame(box: Box) -> None:
    devices, (name, _) = begin(box)
    run_trial(box, devices, name, 11)
    box.gpus[0].recovery = 4  # drain and reset: its trial might have gone on
    ending, _ = settle(box, devices, [name], LAUNCH_FAILURE)
    assert ending.outcome == "lost"


def test_a_contained_memory_error_ends_a_trial_and_not_the_gpu(box: Box) -> None:
    devices, (name, _) = begin(box)
    run_trial(box, devices, name, 11)
    box.driver.xid(box.gpus[0], 94)
    ending, _ = settle(box, devices, [name], LAUNCH_FAILURE)
    assert ending.outcome == "lost"
    assert "XID 94" in str(ending.error)
    assert devices.faults() == ()
    box.driver.end(11)
    assert devices.released([name], 5.0) is not None
    run_trial(box, devices, name, 12)
    ending, _ = settle(box, devices, [name], LAUNCH_FAILURE)
    assert ending.outcome == "failed", "that was another trial's"


def test_an_error_that_names_the_hardware_is_believed(make_box: MakeBox) -> None:
    box = make_box(gpu(0, event_types=0))
    devices, (name,) = begin(box)
    run_trial(box, devices, name, 11)
    ending, _ = settle(box, devices, [name], ECC)
    assert ending.outcome == "lost"
    assert "uncorrectable ECC error" in str(ending.error)


def test_a_driver_that_hangs_proves_nothing_against_the_trial(box: Box) -> None:
    devices, (name, _) = begin(box)
    run_trial(box, devices, name, 11)
    box.gpus[0].hangs.append((box.clock.now(), box.clock.now() + 60))
    ending, took_s = settle(box, devices, [name], LAUNCH_FAILURE)
    assert ending.outcome == "lost"
    assert EXAMINE_PATIENCE_S <= took_s < EXAMINE_PATIENCE_S + 1


@pytest.mark.parametrize(
    ("error", "may"),
    [
        (LAUNCH_FAILURE, True),
        (NCCL, True),
        ("RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", True),
        ("RuntimeError: cuFFT error: CUFFT_INTERNAL_ERROR", True),
        ("RuntimeError: Triton Error [CUDA]: an illegal memory access was encountered", True),
        ("RuntimeError: No CUDA GPUs are available", True),
        ("ValueError: expected 3 channels, got 1", False),
        ('KeyError: 0\n    raise RuntimeError("CUDA error: my own")', False),
        (None, False),
    ],
)
def test_which_errors_may_be_a_gpus(error: str | None, may: bool) -> None:
    assert may_be_the_gpus(exited("failed", error=error)) is may


@pytest.mark.parametrize(
    "ending",
    [
        exited("failed", error=LAUNCH_FAILURE, barred=True),
        exited("killed", error=LAUNCH_FAILURE),
        exited("finished"),
    ],
)
def test_any_other_ending_is_as_it_is(ending: TrialExited) -> None:
    assert not may_be_the_gpus(ending)
