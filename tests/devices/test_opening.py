"""The test of whether NVML's pids are ours."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from conftest import Box, gpu

from gpusched.devices import opening
from gpusched.devices.gpu import GpuProcess, GpuUsage


class ContextProcess:
    def __init__(self) -> None:
        self.pid = 42
        self.closed = False

    def close(self) -> None:
        self.closed = True


def usage(*pids: int) -> GpuUsage:
    return GpuUsage("GPU-a", 1, 0.0, tuple(GpuProcess(pid, 1) for pid in pids))


NO_LIST = GpuUsage("GPU-a", 1, 0.0)


@pytest.mark.parametrize(
    ("before", "during", "finding"),
    [
        (usage(), usage(42), "visible"),
        (usage(7), usage(7, 42), "visible"),
        (usage(), usage(100042), "hidden"),
        (usage(), usage(), "absent"),
        (usage(7), usage(7), "absent"),
        (NO_LIST, NO_LIST, "absent"),
        (None, None, "absent"),
        (usage(), None, "unknown"),
        (usage(), NO_LIST, "unknown"),
    ],
)
def test_findings(before: GpuUsage | None, during: GpuUsage | None, finding: str) -> None:
    readings: Iterator[GpuUsage | None] = iter((before, during))
    child = ContextProcess()
    found, _ = opening.self_test(lambda: child, lambda: next(readings))
    assert found == finding
    listed_at_all = before is not None and before.processes is not None
    assert child.closed is listed_at_all


def test_a_child_that_gets_no_context_is_cleaned_up_and_said() -> None:
    """Here, without a GPU, the real child ends at once; on a box with one it would be visible."""

    def fail() -> opening.ContextProcess:
        return opening.ContextChild("GPU-nowhere")

    found, why = opening.self_test(fail, lambda: usage())
    assert (found, why) == ("unknown", "no CUDA context could be opened")


def test_no_free_gpu_to_test_on_is_the_careful_answer(make_box) -> None:  # type: ignore[no-untyped-def]
    box: Box = make_box(gpu(0), gpu(1, lost_from=2.0), pids="host")
    box.driver.start(box.gpus[0], 11, 1 << 30)
    box.driver.start(box.gpus[1], 12, 1 << 30)
    box.clock.advance(1.0)
    devices = box.devices()
    with pytest.raises(Exception, match="pid 100011 outside this container"):
        devices.open()
    assert "no GPU is free to test it on" in devices.notes[0]
