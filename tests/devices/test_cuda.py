"""``CudaDevices`` on a scripted driver: leases, poor drivers, what is listed, what is learnt."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpusched.devices.base import Quarantined
from gpusched.devices.helper import RETRY_S
from gpusched.devices.leases import Leases, lease_folder
from gpusched.errors import DeviceError
from tests.devices.box import Box, begin, gpu, run_trial
from tests.devices.fake_nvml import GIB, LIST, MIB

MakeBox = Callable[..., Box]


# ------------------------------------------------------------ leases


def test_two_experiments_share_a_box_by_leases(box: Box) -> None:
    first = box.devices("cuda:0", experiment=box.home / "one")
    first.open()
    second = box.devices("cuda", experiment=box.home / "two")
    held, free = second.open()
    assert not held.usable
    assert "leased by search" in held.why_not
    assert "/one (pid" in held.why_not
    assert free.usable
    first.close()
    box.clock.advance(15.0)
    assert second.recovered() == (held.id,)


def test_a_sick_gpu_is_not_given_back_without_its_lease(box: Box) -> None:
    devices = box.devices()
    theirs = Leases(lease_folder(), "runs/other")
    theirs.take(box.gpus[0].uuid)
    name = devices.open()[0].id
    box.gpus[0].recovery = 1
    box.clock.advance(2)
    box.gpus[0].recovery = 0
    box.clock.advance(RETRY_S + 10)
    assert devices.recovered() == ()
    theirs.close()
    box.clock.advance(15)
    assert devices.recovered() == (name,)


# ------------------------------------------------------------ containers and poor drivers


@pytest.mark.parametrize("pids", ["host", "absent"])
def test_in_a_container_memory_alone_tells(make_box: MakeBox, pids: str) -> None:
    """NVML's pids may be of outside, or hidden: what they name is shown, and nothing follows from it."""
    box = make_box(gpu(0), gpu(1, idle=304 * MIB), pids=pids)
    if pids == "absent":
        box.gpus[0].unsupported.add(LIST)
    devices = box.devices()
    first, second = devices.open()
    assert first.usable
    assert ["--pid=host" in note for note in devices.notes] == [True], "told once"
    assert second.why_not.startswith("GPU 1: 304 MiB of memory in use, and NVML names no process")
    run_trial(box, devices, first.id, 11)
    holders = ("pid 100011 outside this container, 10.00 GiB",) if pids == "host" else ()
    assert devices.readings()[0].holders == holders
    box.driver.end(11, 30.0, 1.0)
    assert devices.released([first.id], 0.8) is None
    assert devices.released([first.id], 1.0) is not None
    box.driver.start(box.gpus[0], 99, GIB, ours=False)
    box.clock.advance(2.0)
    (fault,) = devices.faults()
    assert "1.00 GiB more memory in use than when nobody was on it" in fault.reason
    named = "pid 100099 outside this container, 1.00 GiB" in fault.reason
    assert named == (pids == "host")


def test_in_a_container_a_resumed_search_waits_for_the_word_of_its_executor(
    make_box: MakeBox,
) -> None:
    """Memory may be a trial's that outlived the daemon: it is not taken for a stranger's before that is known."""
    box = make_box(gpu(0), gpu(1), pids="host")
    box.driver.start(box.gpus[0], 11, GIB)
    box.driver.start(box.gpus[1], 99, GIB, ours=False)
    devices = box.devices(known=[board.uuid for board in box.gpus])
    ours, strangers = devices.open()
    assert (ours.usable, strangers.usable) == (True, True)
    devices.take([ours.id])
    devices.drain([strangers.id])
    box.clock.advance(10.0)
    assert [fault.device for fault in devices.told(Quarantined)] == [strangers.id]
    box.driver.end(11, 0.2, 0.4)
    assert devices.released([ours.id], 2) is not None


def test_a_gpu_cut_by_mig_is_refused_in_one_sentence(make_box: MakeBox) -> None:
    box = make_box(gpu(0, mig=True), gpu(1))
    devices = box.devices()
    first, second = devices.open()
    assert "MIG has cut it into slices, which gpusched does not use" in first.why_not
    assert "nvidia-smi -i 0 -mig 0" in first.why_not
    assert second.usable
    box.clock.advance(RETRY_S + 10)
    assert devices.recovered() == ()
    with pytest.raises(DeviceError, match="MIG-1c is a MIG slice, which gpusched does not use"):
        box.devices("MIG-1c")


# ------------------------------------------------------------ what is listed


def test_a_resumed_search_finds_its_devices_again(make_box: MakeBox) -> None:
    box = make_box(gpu(0), gpu(1), gpu(2))
    names = [board.uuid for board in (box.gpus[2], box.gpus[0])]
    gone = box.gpus.pop(0)
    devices = box.devices("whatever", known=names)
    first, second = devices.open()
    assert [first.id, second.id] == names
    assert first.usable
    assert second.why_not == f"{gone.uuid}: the driver or CUDA_VISIBLE_DEVICES hides it"
    assert devices.released([second.id], 3) is None
    assert devices.faults() == ()
    box.gpus.insert(0, gone)
    devices.close()
    again = box.devices("whatever", known=names)
    again.open()
    again.keep_out(second.id, second.why_not)  # as a daemon does that comes back
    again.drain(names)
    box.clock.advance(6.0)
    assert again.recovered() == (second.id,)


def test_a_search_that_is_resumed_on_another_machine_takes_its_gpus(make_box: MakeBox) -> None:
    """A machine of the cloud that was stopped comes back with others: nothing could be used, ever."""
    box = make_box(gpu(1), gpu(2), gpu(3))
    devices = box.devices("cuda", known=["GPU-gone", box.gpus[0].uuid])
    assert [device.usable for device in devices.open()] == [False, True], "one is lost, no more"
    devices.close()
    devices = box.devices("cuda", known=["GPU-gone", "GPU-too"])
    found = devices.open()
    assert [device.id for device in found[2:]] == [board.uuid for board in box.gpus[:2]]
    assert [device.usable for device in found] == [False] * 2 + [True] * 2, "as many as it had"


def test_a_resume_keeps_to_the_gpus_that_its_shell_leaves(
    make_box: MakeBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A colleague has been given the other one since, and has not begun yet."""
    box = make_box(gpu(0), gpu(1))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,7")
    devices = box.devices(known=[board.uuid for board in box.gpus])
    assert [device.usable for device in devices.open()] == [False, True]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    (other,) = box.devices(experiment=box.home / "other").open()
    assert other.usable, "its lease is left to another search, too"


def test_a_search_whose_gpus_others_have_taken_is_resumed_on_others(
    make_box: MakeBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A colleague took them while no daemon ran, and the others that the user named were free."""
    box = make_box(*map(gpu, range(5)))
    one, two, busy, three, _ = (board.uuid for board in box.gpus)
    for pid, board in enumerate(box.gpus[:3], 90):
        box.driver.start(board, pid, GIB, ours=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3,4")
    found = box.devices("cuda", known=[one]).open()
    assert [(device.id, device.usable) for device in found] == [
        (one, False),
        (busy, False),
        (three, True),
    ]
    with pytest.raises(DeviceError, match="no GPU can be used now"):
        box.devices("cuda:0", known=[two]).open()


# ------------------------------------------------------------ what is in use when nobody is there


def test_what_leaks_from_trial_to_trial_adds_up_and_is_noticed(make_box: MakeBox) -> None:
    box = make_box(gpu(0, total=24 * GIB))
    devices, (name,) = begin(box)
    for trial in range(20):
        run_trial(box, devices, name, 100 + trial)
        box.driver.end(100 + trial, 0.1, 0.1)
        if devices.released([name], 3) is None:
            break
        box.gpus[0].idle += 15 * MIB
    assert 4 <= trial <= 6


def test_the_contexts_of_a_search_that_has_just_ended_are_waited_for(box: Box) -> None:
    box.driver.start(box.gpus[0], 7, 3 << 30)
    box.driver.end(7, listed_s=4.0, memory_s=4.5)
    assert [device.usable for device in box.devices().open()] == [True, True]
    assert 4.0 <= box.clock.now() < 6.0


def test_a_context_that_never_goes_is_not_waited_for_long(box: Box) -> None:
    box.driver.start(box.gpus[0], 7, 3 << 30)
    box.driver.end(7, listed_s=1e9)
    first, second = box.devices().open()
    assert not first.usable
    assert "which has ended but still has a context" in first.why_not
    assert second.usable
    assert box.clock.now() < 15.0
