"""Whose pids NVML names: the witness is looked for in its list (inside a container)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest
from conftest import Box, begin, gpu
from fake_driver import GIB, MIB

from gpusched.errors import DeviceError

MakeBox = Callable[..., Box]
ERROR = "error 802"


class Working:
    """A witness whose context is listed under ``pid``, if it has one."""

    pid = 42

    def __init__(self, box: Box, wrong: str = "") -> None:
        self.box, self.wrong, self.is_closed = box, wrong, False

    def __call__(self, uuids: Sequence[str]) -> Working:
        self.uuids = uuids
        for board in () if self.wrong else self.box.gpus:
            self.box.driver.start(board, self.pid, 500 * MIB)
        return self

    def said(self) -> Mapping[str, str]:
        return dict.fromkeys(self.uuids, self.wrong)

    def close(self) -> None:
        self.is_closed = True
        if not self.wrong:
            self.box.driver.end(self.pid, 0.1, 0.3)


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
    witness = Working(box)
    devices, _ = begin(box, call_witness=witness)
    assert [said in note for note in devices.notes] == ([True] if said else [])
    assert box.processes.visible is not bool(said)
    assert witness.is_closed


def test_without_a_witness_it_is_unknown(make_box: MakeBox) -> None:
    devices, _ = begin(make_box(gpu(0), pids="host"))
    assert "no script to try CUDA for" in devices.notes[0]


def test_where_cuda_does_not_work_that_is_why(make_box: MakeBox) -> None:
    box = make_box(gpu(0), pids="host")
    devices = box.devices(call_witness=Working(box, ERROR))
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
