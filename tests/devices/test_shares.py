"""Several trials on a GPU (``atoms_per_gpu``): each released for itself, the GPU judged as one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpusched.devices.base import Quarantined
from gpusched.errors import DeviceError
from tests.devices.box import LIMIT_S, Box, Watched, begin, gpu, run_trial
from tests.devices.fake_nvml import GIB

MakeBox = Callable[..., Box]
ONE, TWO = "GPU-0a00-beef#1", "GPU-0a00-beef#2"


@pytest.fixture
def shared(box: Box) -> Watched:
    """GPU 0 with a trial on either share: pids 11 and 12, 5 GiB each."""
    devices, names = begin(box, atoms_per_gpu=2)
    assert names[:2] == [ONE, TWO]
    run_trial(box, devices, ONE, 11, 5 * GIB)
    run_trial(box, devices, TWO, 12, 5 * GIB)
    return devices


@pytest.mark.parametrize(("listed_s", "memory_s"), [(0.5, 1.5), (1.5, 0.5)])
def test_released_beside_a_trial_that_goes_on(
    box: Box, shared: Watched, listed_s: float, memory_s: float
) -> None:
    """A trial's processes are gone, and the memory they had is: neither alone is enough."""
    box.driver.end(11, listed_s, memory_s)
    assert shared.released([ONE], 1.4) is None
    box.gpus[0].contexts[1].memory = 6 * GIB  # the other one grows meanwhile
    assert shared.released([ONE], 1.0) is not None
    run_trial(box, shared, ONE, 13)
    assert shared.told(Quarantined) == []


def test_memory_that_does_not_come_back_beside_another_trial(box: Box, shared: Watched) -> None:
    box.driver.end(11, 0.1, 100.0)
    shared.confirm_release([ONE], LIMIT_S)
    box.clock.advance(2.0)
    assert "5.00 GiB more memory in use than when nobody was on it" in shared.waits_for(ONE)
    box.clock.advance(LIMIT_S)
    (fault,) = shared.told(Quarantined)
    assert fault.device == ONE
    box.clock.advance(50.0)
    assert shared.recovered() == (ONE,)


def test_memory_that_no_process_is_named_for_takes_all_free_shares_out(box: Box) -> None:
    devices, _ = begin(box, atoms_per_gpu=2)
    box.gpus[0].idle += 3 * GIB
    box.clock.advance(2.5)
    assert {fault.device for fault in devices.told(Quarantined)} == {ONE, TWO}


def test_shares_that_drain_side_by_side_wait_for_the_memory_of_both(
    box: Box, shared: Watched
) -> None:
    for pid in (11, 12):
        box.driver.end(pid, 0.1, 8.0)
    assert shared.released([ONE, TWO], 6.0) is None
    assert shared.released([ONE, TWO], 4.0) is not None


def test_a_process_that_has_escaped_is_in_the_way_beside_a_share_never_used(box: Box) -> None:
    """Such a share is not taken for one whose trial outlived the daemon."""
    devices, _ = begin(box, atoms_per_gpu=2)
    run_trial(box, devices, ONE, 11, 5 * GIB)
    assert devices.released([ONE], 10.0) is None
    assert TWO in {fault.device for fault in devices.told(Quarantined)}


@pytest.mark.parametrize(("listed_s", "memory_s"), [(8.0, 0.5), (0.5, 8.0), (8.0, 8.0)])
@pytest.mark.parametrize("was_used", [False, True])
def test_a_free_share_is_given_out_beside_one_that_drains(
    box: Box, listed_s: float, memory_s: float, was_used: bool
) -> None:
    """Memory left on the GPU is the other trial's: this share was proven free. The other's release stays strict."""
    devices, _ = begin(box, atoms_per_gpu=2)
    if was_used:
        run_trial(box, devices, TWO, 10, GIB)
        box.driver.end(10)
        assert devices.released([TWO], 2.0) is not None
    run_trial(box, devices, ONE, 11, 5 * GIB)
    box.driver.end(11, listed_s, memory_s)
    assert devices.released([ONE], 4.0) is None
    assert devices.told(Quarantined) == []
    run_trial(box, devices, TWO, 12, 5 * GIB)
    assert devices.released([ONE], 2.0) is None
    assert devices.released([ONE], 3.5) is not None
    assert devices.told(Quarantined) == []


def test_a_stranger_beside_one_that_drains(box: Box) -> None:
    """A share that is given out meanwhile is still looked at for strangers."""
    devices, _ = begin(box, atoms_per_gpu=2)
    run_trial(box, devices, ONE, 11, 5 * GIB)
    box.driver.end(11, 20.0, 20.0)
    devices.confirm_release([ONE], LIMIT_S)
    box.driver.start(box.gpus[0], 77, GIB, user="bob", command="python his.py", ours=False)
    box.clock.advance(2.5)
    assert [fault.device for fault in devices.told(Quarantined)] == [TWO]
    box.driver.end(77)
    box.clock.advance(35.0)
    assert devices.recovered() == (TWO,)


def test_a_free_share_beside_a_release_given_up(box: Box) -> None:
    """Such memory may never come back: no trial is to be short of it."""
    devices, _ = begin(box, atoms_per_gpu=2)
    run_trial(box, devices, ONE, 11, 5 * GIB)
    box.driver.end(11, 0.1, 100.0)
    devices.confirm_release([ONE], LIMIT_S)
    box.clock.advance(LIMIT_S - 1.0)
    assert devices.told(Quarantined) == []
    box.clock.advance(3.0)
    assert [fault.device for fault in devices.told(Quarantined)] == [ONE, TWO]
    box.clock.advance(50.0)
    assert set(devices.recovered()) == {ONE, TWO}


def test_a_stranger_is_everybodys(box: Box, shared: Watched) -> None:
    box.driver.start(box.gpus[0], 77, GIB, user="bob", command="python his.py", ours=False)
    box.clock.advance(2.0)
    assert {one.device for one in shared.readings() if one.strangers} == {ONE, TWO}
    box.driver.end(11)
    assert shared.released([ONE], 3.0) is None
    box.driver.end(77)
    assert shared.released([ONE], 3.0) is not None


def test_what_cannot_be_shared_is_refused(make_box: MakeBox) -> None:
    with pytest.raises(
        DeviceError, match="cannot be shared in this container: the processes on it"
    ):
        begin(make_box(gpu(0), pids="host"), atoms_per_gpu=2)
