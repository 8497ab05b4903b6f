"""``CudaDevices`` on a scripted driver: leases, containers, MIG, choice, baselines."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import Box, begin, gpu, run_trial, with_slices
from fake_driver import GIB, LIST, MEMORY, MIB

from gpusched.devices.base import Devices, require_sizes
from gpusched.devices.leases import Leases, lease_folder
from gpusched.errors import DeviceError

MakeBox = Callable[..., Box]


def test_it_is_a_kind_of_devices(box: Box) -> None:
    watched = box.devices()
    devices: Devices = watched.devices
    assert devices.kind == "cuda"
    first, second = devices.open(watched)
    assert (first.id, first.label, first.usable) == ("GPU-0a00-beef", "GPU 0", True)
    assert second.island == first.island


def test_nvml_is_initialised_once(box: Box) -> None:
    box.devices().open()
    box.made[0].close()
    box.devices().open()
    assert box.driver.inits == 1


# ------------------------------------------------------------ leases


def test_two_experiments_share_a_box_by_leases(box: Box) -> None:
    first = box.devices("cuda:0", experiment=box.home / "one")
    first.open()
    second = box.devices("cuda", experiment=box.home / "two")
    held, free = second.open()
    assert not held.usable
    assert "leased by experiment" in held.why_not
    assert "/one (pid" in held.why_not
    assert free.usable
    first.close()
    box.clock.advance(15.0)
    assert second.recovered() == (held.id,)


def test_a_sick_gpu_is_not_given_back_without_its_lease(box: Box) -> None:
    devices = box.devices()
    folder = lease_folder({"XDG_STATE_HOME": str(box.home)})
    theirs = Leases(folder, "runs/other")
    theirs.take(box.gpus[0].uuid)
    name = devices.open()[0].id
    box.driver.xid(box.gpus[0], 79)
    box.clock.advance(1)
    assert "XID 79" in devices.faults()[0].reason
    assert "leased by experiment runs/other" in str(devices.readmitted(name))
    theirs.close()
    assert devices.readmitted(name) is None


def test_a_trial_that_outlived_its_daemon_finishes_though_its_lease_is_lost(box: Box) -> None:
    box.driver.start(box.gpus[0], 11, GIB)
    folder = lease_folder({"XDG_STATE_HOME": str(box.home)})
    other = Leases(folder, "runs/other")
    assert other.take("GPU-0a00-beef") is None
    devices, (name, _) = begin(box)
    box.clock.advance(2)
    assert devices.faults() == ()
    box.driver.end(11)
    assert devices.released([name], 3) is None, "it is not ours to give out again"
    assert "leased by experiment runs/other" in str(devices.readmitted(name))
    other.close()


# ------------------------------------------------------------ containers and poor drivers


def test_a_driver_without_process_lists_is_judged_by_memory(make_box: MakeBox) -> None:
    box = make_box(gpu(0))
    box.gpus[0].unsupported.add(LIST)
    devices, (name,) = begin(box)
    assert "lists no processes" in devices.notes[0]
    run_trial(box, devices, name, 11)
    box.driver.end(11, 0, 3)
    assert devices.released([name], 2.5) is None
    assert devices.released([name], 2) is not None


def test_a_gpu_that_nobody_could_confirm_is_refused(make_box: MakeBox) -> None:
    box = make_box(gpu(0), gpu(1))
    box.gpus[1].unsupported |= {LIST, MEMORY}
    _, second = box.devices().open()
    assert "neither processes nor memory" in second.why_not


# ------------------------------------------------------------ MIG


def test_mig_slices_serve_one_atom_trials_only(make_box: MakeBox) -> None:
    box = make_box(with_slices(gpu(0), 2), gpu(1))
    devices = box.devices()
    inventory = devices.open()
    names = [device.id for device in inventory]
    assert names == ["MIG-0c-GPU-0a00-beef", "MIG-1c-GPU-0a00-beef", "GPU-1a00-beef"]
    assert [device.label for device in inventory] == ["GPU 0/0", "GPU 0/1", "GPU 1"]
    require_sizes(inventory, 1)
    require_sizes(inventory[2:], 4)
    with pytest.raises(DeviceError, match=r"max_atoms: 4.*nvidia-smi -mig 0"):
        require_sizes(inventory, 4)
    assert devices.place(names[:1]).rank_env[0]["CUDA_VISIBLE_DEVICES"] == names[0]
    with pytest.raises(DeviceError, match="gpus_per_atom: 2"):
        box.devices(gpus_per_atom=2)
    with pytest.raises(DeviceError, match="gpu_ids: index"):
        box.devices(gpu_ids="index")


def test_slices_are_released_each_for_itself(make_box: MakeBox) -> None:
    box = make_box(with_slices(gpu(0), 2))
    devices, (one, two) = begin(box)
    run_trial(box, devices, one, 11, 5 * GIB)
    run_trial(box, devices, two, 12, 5 * GIB)
    box.driver.end(11, 0.2, 0.2)
    assert devices.released([one], 2) is not None
    box.driver.end(12, 0.2, 50)
    assert devices.released([two], 2) is None
    assert devices.readings()[0].utilisation is None
    assert devices.readings()[0].memory_total_bytes == 10 * GIB


# ------------------------------------------------------------ choice and order


def test_an_experiment_that_goes_on_finds_its_atoms_again(make_box: MakeBox) -> None:
    box = make_box(gpu(0), gpu(1), gpu(2), gpu(3))
    devices, names = begin(box, gpus_per_atom=2)
    devices.close()
    box.gpus.pop(1)
    again = box.devices("whatever", gpus_per_atom=2, known=names)
    first, second = again.open()
    assert [first.id, second.id] == names
    assert first.why_not == "GPU-1a00-beef is not there any more"
    assert second.usable
    assert again.readmitted(first.id) == first.why_not
    assert again.released([first.id], 3) is None
    assert again.faults() == ()


def test_left_over_gpus_are_said(make_box: MakeBox) -> None:
    box = make_box(gpu(0), gpu(1), gpu(2))
    devices, names = begin(box, gpus_per_atom=2)
    assert names == ["GPU-0a00-beef+GPU-1a00-beef"]
    assert devices.notes == ["GPU 2 left over: an atom is 2 GPUs, and 3 are named"]
    with pytest.raises(DeviceError, match="names only 3"):
        box.devices(gpus_per_atom=4)


def test_an_unknown_device_is_named(box: Box) -> None:
    devices, _ = begin(box)
    with pytest.raises(DeviceError, match="GPU-x is not part of this experiment"):
        devices.confirm_release(["GPU-x"], 60.0)


# ------------------------------------------------------------ baselines on disk


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
    devices.close()
    with pytest.raises(DeviceError, match="more memory in use than when idle"):
        box.devices().open()  # the baseline on disk is of this boot


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


def test_the_load_of_the_last_minute_is_remembered(box: Box) -> None:
    devices, _ = begin(box, gpus_per_atom=2)
    box.gpus[0].utilisation = 100
    box.clock.advance(20.0)
    (reading,) = devices.readings()
    assert 8 <= len(reading.history) <= 30
    assert reading.history[0] == 0.0
    assert reading.history[-1] == 0.5, "of a bundle the mean"
    box.clock.advance(200.0)
    (reading,) = devices.readings()
    assert reading.history == (0.5,) * 30


def test_mig_without_slices_says_what_to_do(make_box: MakeBox) -> None:
    box = make_box(gpu(0, mig=True))
    with pytest.raises(DeviceError, match=r"MIG is on and has no slices.*nvidia-smi -mig 0"):
        box.devices("auto")
