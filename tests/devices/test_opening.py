"""Whose pids NVML names: the witness is looked for in its list (inside a container)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import Box, begin, gpu, run_trial
from fake_driver import GIB, MIB, FakeWitness

from gpusched.errors import DeviceError

MakeBox = Callable[..., Box]
ERROR = "error 802"


@pytest.mark.parametrize(
    ("pids", "resident", "said"),
    [
        ("same", False, ""),
        ("same", True, ""),
        ("host", False, "pids of outside"),
        ("host", True, "pids of outside"),
        ("absent", False, "names no processes"),
    ],
)
def test_findings(make_box: MakeBox, pids: str, resident: bool, said: str) -> None:
    box = make_box(gpu(0), pids=pids)
    box.processes.visible, box.processes.contained = False, True
    if resident:  # small enough to be part of the machine
        box.driver.start(box.gpus[0], 7, 30 * MIB, command="nvidia-cuda-mps-server", ours=False)
    devices, (name,) = begin(box, call_witness=FakeWitness(box.driver))
    assert [said in note and "--pid=host" in note for note in devices.notes] == [True] * bool(said)
    assert box.processes.visible is not bool(said)
    run_trial(box, devices, name, 11)
    if not said and not resident:
        assert devices.readings()[0].holders == ("pid 11 (me: python train.py, 10.00 GiB)",)
    box.driver.end(11, 1.0, 2.0)
    assert devices.released([name], 1.5) is None
    assert devices.released([name], 2.0) is not None
    assert len(devices.notes) == bool(said), "once"


@pytest.mark.parametrize("why", ["contexts leave", "a call hangs"])
def test_the_others_are_read_while_one_gpu_is_waited_for(make_box: MakeBox, why: str) -> None:
    """After 5 s their health counted as unknown, so CUDA was not tried on them, and a second later they were out."""
    hangs = [] if why == "contexts leave" else [(1.0, 20.0)]
    box = make_box(gpu(0, hangs=hangs), gpu(1))
    if not hangs:
        box.driver.start(box.gpus[0], 11, GIB)
        box.driver.end(11, 8.0, 8.0)
    witness = FakeWitness(box.driver, takes_s=8.0)
    devices = box.devices(call_witness=witness)
    if hangs:
        box.clock.advance(1.0)
    other = devices.open()[1]
    assert other.usable
    assert other.id in witness.called[0]
    assert other.id not in [fault.device for fault in devices.faults()]


def test_a_gpu_that_does_not_answer_is_busy_until_it_does(make_box: MakeBox) -> None:
    """It was listed as usable, and out only after a trial had been launched on it."""
    box = make_box(gpu(0, hangs=[(1.0, 50.0)]), gpu(1))
    devices = box.devices()
    box.clock.advance(1.0)
    silent, other = devices.open()
    assert (silent.why_not, other.usable) == ("GPU 0: NVML has not answered for 31 s", True)
    assert devices.faults() == ()
    box.clock.advance(30.0)
    assert devices.recovered() == (silent.id,)


def test_without_a_witness_it_is_unknown(make_box: MakeBox) -> None:
    devices, _ = begin(make_box(gpu(0), pids="host"))
    assert "no script was named to try CUDA for" in devices.notes[0]


def test_where_cuda_does_not_work_that_is_why(make_box: MakeBox) -> None:
    box = make_box(gpu(0), pids="host")
    witness = FakeWitness(box.driver, faults={box.gpus[0].uuid: ERROR})
    devices = box.devices(call_witness=witness)
    with pytest.raises(DeviceError, match=ERROR):
        devices.open()
    assert f"({ERROR})" in devices.notes[0]


def test_no_free_gpu_to_test_on_is_the_careful_answer(make_box: MakeBox) -> None:
    box = make_box(gpu(0), gpu(1, lost_from=2.0), pids="host")
    box.driver.start(box.gpus[0], 11, GIB)
    box.driver.start(box.gpus[1], 12, GIB)
    box.clock.advance(1.0)
    devices = box.devices()
    with pytest.raises(DeviceError, match="pid 100011 outside this container"):
        devices.open()
    assert "no GPU is free to test it on" in devices.notes[0]
