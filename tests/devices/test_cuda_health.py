"""Sick GPUs and sick drivers, one story at a time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import LIMIT_S, Box, begin, gpu, run_trial
from fake_driver import GIB, Context

from gpusched.devices.base import Quarantined, ReadmitRefused, Readmitted, Released
from gpusched.errors import DeviceError

MakeBox = Callable[..., Box]


# ------------------------------------------------------------ health


def test_a_lost_gpu_is_a_fault_at_once_and_returns_only_when_asked(box: Box) -> None:
    devices, (name, other) = begin(box)
    run_trial(box, devices, name, 11)
    box.gpus[0].lost_from = box.clock.now()
    box.clock.advance(1.2)
    (fault,) = devices.faults()
    assert fault.device == name
    assert "lost" in fault.reason
    box.driver.end(11)
    devices.drain([name])
    box.gpus[0].lost_until = box.clock.now()
    box.clock.advance(20)
    assert devices.recovered() == ()
    assert devices.readmitted(name) is None
    run_trial(box, devices, name, 12)
    assert devices.readings()[1].device == other


def test_readmission_is_refused_while_it_is_still_lost(box: Box) -> None:
    devices, (name, _) = begin(box)
    box.gpus[0].lost_from = box.clock.now()
    box.clock.advance(2)
    devices.faults()
    assert "lost" in str(devices.readmitted(name))
    box.gpus[0].lost_until = box.clock.now()  # somebody has reset it
    box.clock.advance(2)
    devices.readmit(name)
    assert devices.recovered() == (), "looked up anew first"
    assert devices.readmitted(name) is None


def test_asked_for_while_a_trial_is_on_it_it_is_not_given_away(box: Box) -> None:
    devices, (name, _) = begin(box)
    box.gpus[0].lost_from, box.gpus[0].lost_until = box.clock.now(), box.clock.now() + 2
    box.clock.advance(3)
    assert devices.faults()
    assert devices.readmitted(name) is None
    run_trial(box, devices, name, 11)
    assert devices.readmitted(name) == "a trial is using it"
    devices.confirm_release([name], LIMIT_S)
    assert devices.told(Released) == []
    box.clock.advance(1)
    assert "pid 11" in devices.waits_for(name)


@pytest.mark.parametrize("drains", [False, True])
def test_a_trial_that_overtakes_a_request_keeps_its_gpu(box: Box, drains: bool) -> None:
    """Asked for as it had just come back by itself: it was marked free under its trial, which was then killed."""
    devices, (name, _) = begin(box)
    box.clock.advance(2)
    devices.readmit(name)
    devices.take([name])
    if drains:
        box.driver.start(box.gpus[0], 11, GIB)
        box.driver.end(11, 6.0, 6.0)
        devices.confirm_release([name], LIMIT_S)
    box.clock.advance(5)
    (refused,) = devices.told(ReadmitRefused)
    assert refused.reason == ("it is being released" if drains else "a trial is using it")
    box.driver.start(box.gpus[0], 12, 0)
    box.driver.end(12)
    box.clock.advance(5)
    assert devices.events == ([Released((name,))] if drains else [])


@pytest.mark.parametrize("asked", [True, False], ids=["asked back", "by itself"])
def test_a_gpu_is_not_back_before_the_trial_that_dies_of_it_has_ended(
    box: Box, asked: bool
) -> None:
    """Its context was still to come, so the GPU looked clean, and another trial was launched beside it."""
    devices, (name, _) = begin(box)
    devices.take([name])
    if asked:
        box.driver.xid(box.gpus[0], 79)
        box.clock.advance(1.2)
        assert devices.faults()
        assert devices.readmitted(name) == "the trial on it has not ended yet"
        devices.readmit(name)
    else:
        devices.keep_out(name, "busy when the last daemon ended")
        box.clock.advance(10.0)
    assert devices.recovered() == (), "it lives"
    box.driver.start(box.gpus[0], 11, GIB)
    box.clock.advance(0.01)
    box.driver.end(11, 0.5, 0.8)
    devices.drain([name])
    box.clock.advance(0.7)
    assert devices.recovered() == (), "memory is not back"
    box.clock.advance(10.0)
    assert devices.recovered() == (name,)


def test_a_gpu_that_no_trial_has_any_more_comes_back_after_the_daemon(box: Box) -> None:
    """A process that outlived its trial and the daemon was taken for a trial, and nobody told of that trial's end."""
    box.driver.start(box.gpus[0], 11, GIB)
    devices, (name, other) = begin(box)
    devices.keep_out(name, "not released after 60 s")
    devices.drain([name, other])  # as the executor does, which knows the trials
    box.clock.advance(10.0)
    assert "pid 11" in str(devices.readmitted(name))
    box.driver.end(11)
    box.clock.advance(10.0)
    assert devices.recovered() == (name,)


def test_an_xid_that_comes_while_it_is_asked_for_keeps_it_out(box: Box) -> None:
    devices, (name, _) = begin(box)
    box.driver.xid(box.gpus[0], 79)
    box.clock.advance(1.2)
    assert devices.faults()
    box.driver.start(box.gpus[0], 11, GIB)  # so that the answer takes a second
    box.driver.end(11, 1.0, 1.0)
    devices.readmit(name)
    box.clock.advance(0.01)
    box.driver.xid(box.gpus[0], 79)  # again, after it was asked for
    box.clock.advance(4.2)
    assert devices.recovered() == ()
    (refused,) = devices.told(ReadmitRefused)
    assert "XID 79" in refused.reason
    assert devices.readmitted(name) is None, "who asks once more takes it as it is"


def test_a_late_release_can_be_readmitted(box: Box) -> None:
    devices, (name, _) = begin(box)
    run_trial(box, devices, name, 11)
    box.driver.end(11, 0.0, 90.0)
    assert devices.released([name], 60) is None
    assert "more memory in use" in str(devices.readmitted(name))
    box.clock.advance(30)
    assert devices.readmitted(name) is None


@pytest.mark.parametrize(
    ("xid", "recovery", "bad"),
    [
        *((79, True, True), (48, False, True), (48, True, False), (999, False, False)),
        *((31, False, False), (13, True, False)),
    ],
)
def test_xids(box: Box, xid: int, recovery: bool, bad: bool) -> None:
    if not recovery:
        box.gpus[0].unsupported.add("recovery")
    devices, (name, _) = begin(box)
    box.clock.advance(1)
    for _ in range(500):  # a storm
        box.driver.xid(box.gpus[0], xid)
    box.clock.advance(1)
    faults = devices.faults()
    assert [fault.device for fault in faults] == ([name] if bad else [])
    if bad:
        assert f"XID {xid}" in faults[0].reason
    noted = ["GPU 0: XID 999: see NVIDIA's XID catalogue; noted, nothing follows from it"]
    assert devices.notes == (noted if xid == 999 else [])
    box.clock.advance(5)
    assert devices.faults() == ()


def test_a_contained_memory_error_is_not_overruled_by_the_one_it_contains(box: Box) -> None:
    """Mend 5: 94 with 48, on a driver without a recovery action."""
    box.gpus[0].unsupported.add("recovery")
    devices, _ = begin(box)
    box.driver.xid(box.gpus[0], 48)
    box.driver.xid(box.gpus[0], 94)
    box.clock.advance(15)
    assert devices.faults() == ()


def test_a_gpu_that_is_let_go_can_be_reset_and_taken_up_again(box: Box) -> None:
    """Mend 1: a reset wants every client gone, and the daemon was one for its life."""
    devices, (name, other) = begin(box)
    box.gpus[0].recovery = 1
    box.clock.advance(4)
    (fault,) = devices.faults()
    assert "gpusched gpus --let-go 0" in fault.reason
    assert "nvidia-smi -pm 0" in fault.reason
    before = [helper for helper in box.clock.helpers if not helper.killed]
    devices.let_go(name)
    assert len([helper for helper in before if helper.killed]) == 1, "that GPU's and no other"
    box.driver.calls.clear()
    box.clock.advance(5)
    run_trial(box, devices, other, 11)
    with pytest.raises(DeviceError, match="GPU 1 cannot be let go: a trial is using it"):
        devices.let_go(other)
    box.gpus[0].recovery = 0  # reset
    assert devices.readmitted(name) is None
    run_trial(box, devices, name, 12)


def test_a_gpu_that_was_lost_under_its_trial_can_be_let_go(box: Box) -> None:
    devices, (name, _) = begin(box)
    run_trial(box, devices, name, 11)
    box.gpus[0].lost_from = box.clock.now()
    box.clock.advance(3)
    assert devices.told(Quarantined), "its trial is killed, and nobody asks for a release"
    devices.let_go(name)


def test_a_lost_gpu_is_closed_at_once(box: Box) -> None:
    begin(box)
    box.gpus[0].lost_from = box.clock.now()
    before = [helper for helper in box.clock.helpers if not helper.killed]
    box.clock.advance(2)
    assert [helper.killed for helper in before] == [True, False]


def test_a_free_gpu_that_is_let_go_is_quarantined(box: Box) -> None:
    devices, (name, _) = begin(box)
    devices.let_go(name)
    assert devices.told(Quarantined) == [
        Quarantined(name, "GPU 0: let go on request, so that it can be reset")
    ]
    box.clock.advance(30)
    assert devices.events == []
    assert devices.readmitted(name) is None


@pytest.mark.parametrize("xid", [63, 94, 154])
def test_announcing_xids_are_judged_by_what_the_driver_asks_for(box: Box, xid: int) -> None:
    devices, (first, second) = begin(box)
    box.gpus[1].recovery = 1
    box.driver.xid(box.gpus[0], xid)
    box.driver.xid(box.gpus[1], xid)
    box.clock.advance(4)
    (fault,) = devices.faults()
    assert fault.device == second
    assert "nvidia-smi --gpu-reset -i 1" in fault.reason


def test_a_gpu_to_be_reset_when_empty_may_finish_its_trial(box: Box) -> None:
    devices, (name, _) = begin(box)
    run_trial(box, devices, name, 11)
    box.gpus[0].recovery = 4
    box.clock.advance(5)
    assert devices.faults() == ()
    box.driver.end(11)
    assert devices.released([name], 3) is None
    assert "reset once the GPU is empty" in devices.faults()[0].reason


def test_a_recovery_action_that_lies_can_be_overruled(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mend 13."""
    monkeypatch.setenv("GPUSCHED_IGNORE_RECOVERY", "GPU-9, GPU-0a00, ")
    devices, (_, second) = begin(box)
    for board in box.gpus:
        board.recovery = 1
    box.clock.advance(5)
    assert [fault.device for fault in devices.faults()] == [second]


def test_cards_that_differ_are_said(make_box: MakeBox) -> None:
    """Mend 13: CUDA orders them by speed unless told."""
    mixed = make_box(gpu(0), gpu(1, name="NVIDIA RTX A2000"))
    devices, _ = begin(mixed)
    (note,) = devices.notes
    devices.close()
    assert "NVIDIA H100 80GB HBM3, NVIDIA RTX A2000" in note
    told, _ = begin(mixed, environ={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    assert told.notes == []


def test_memory_errors_and_bad_rows(make_box: MakeBox) -> None:
    box = make_box(gpu(0, ecc_uncorrected=3), gpu(1), gpu(2, remapped=(0, 0, 1, 0)))
    box.gpus[0].unsupported.add("recovery")
    devices, (first, second, third) = begin(box)
    assert "3 uncorrectable memory errors" in " ".join(devices.readings()[0].notes)
    assert "next reset" in " ".join(devices.readings()[2].notes)
    box.gpus[0].ecc_uncorrected = 4
    box.gpus[1].remapped = (0, 9, 0, 1)
    box.clock.advance(3)
    faults = {fault.device: fault.reason for fault in devices.faults()}
    assert set(faults) == {first, second}
    assert "1 uncorrectable memory errors since the start" in faults[first]
    assert "row remapping failed" in faults[second]
    box.gpus[0].ecc_uncorrected = 0  # reset, and counted anew
    assert devices.readmitted(first) is None
    box.gpus[0].ecc_uncorrected = 1
    box.clock.advance(3)
    assert [fault.device for fault in devices.faults()] == [first]


def test_a_gpu_without_its_fabric_manager_is_not_used(make_box: MakeBox) -> None:
    """Mend 3: CUDA refuses it with error 802, and NVML is well."""
    box = make_box(gpu(0, fabric=3), gpu(1, fabric=2))
    first, second = box.devices().open()
    assert first.usable
    assert "nvidia-fabricmanager" in second.why_not


def test_prohibited_compute_mode(make_box: MakeBox) -> None:
    box = make_box(gpu(0), gpu(1, compute_mode=2))
    _, second = box.devices().open()
    assert "nvidia-smi -c DEFAULT" in second.why_not


def test_throttling_is_shown(box: Box) -> None:
    import pynvml

    devices, _ = begin(box)
    box.gpus[0].throttle = pynvml.nvmlClocksEventReasonHwThermalSlowdown
    box.gpus[0].temperature, box.gpus[0].power_mw, box.gpus[0].utilisation = 91, 650_000, 77
    box.clock.advance(3)
    reading = devices.readings()[0]
    assert reading.notes == ("slowed by heat",)
    assert (reading.temperature_c, reading.power_w, reading.utilisation) == (91.0, 650.0, 0.77)
    assert devices.faults() == ()


def test_no_events_is_said_once(make_box: MakeBox) -> None:
    box = make_box(gpu(0, event_types=0), gpu(1))
    devices, _ = begin(box)
    box.clock.advance(1)
    for _ in range(3):
        devices.faults()
    assert [
        n for n in devices.notes if n.startswith("GPU 0: no GPU error events (")
    ] == devices.notes
    assert len(devices.notes) == 1


def test_the_events_of_the_others_are_heard_after_one_gpu_is_lost(box: Box) -> None:
    devices, names = begin(box)
    box.clock.advance(1)
    box.gpus[0].lost_from = box.clock.now()
    box.clock.advance(7)
    assert [fault.device for fault in devices.faults()] == [names[0]]
    box.driver.xid(box.gpus[1], 79)
    box.clock.advance(1)
    (fault,) = devices.faults()
    assert fault.device == names[1]
    assert "XID 79" in fault.reason


def test_a_gpu_that_was_lost_and_is_back_is_heard_again(make_box: MakeBox) -> None:
    box = make_box(gpu(0))
    devices, (name,) = begin(box)
    box.gpus[0].lost_from, box.gpus[0].lost_until = box.clock.now(), box.clock.now() + 5
    box.clock.advance(6)
    assert devices.faults()
    assert devices.readmitted(name) is None
    box.clock.advance(2)
    box.driver.xid(box.gpus[0], 79)
    box.clock.advance(1)
    assert [fault.device for fault in devices.faults()] == [name]


def test_an_event_under_a_new_handle_is_the_same_gpus(box: Box) -> None:
    devices, (name, _) = begin(box)
    box.clock.advance(1)
    box.gpus[0].address = 0x77770
    box.driver.xid(box.gpus[0], 79)
    box.clock.advance(1)
    assert [fault.device for fault in devices.faults()] == [name]


def test_a_gpu_that_hung_when_it_was_to_be_registered_is_heard_once_it_answers(box: Box) -> None:
    """Schedule 7236: one GPU was lost while the other hung for a while, and nobody was heard any more."""
    devices, names = begin(box)
    box.clock.advance(1)
    now = box.clock.now()
    box.gpus[1].hangs.append((now, now + 10))
    box.gpus[0].lost_from = now
    box.clock.advance(15)
    devices.faults()
    box.driver.xid(box.gpus[1], 79)
    box.clock.advance(2)
    faults = {fault.device: fault.reason for fault in devices.faults()}
    assert "XID 79" in faults[names[1]]


def test_an_event_of_a_gpu_that_cannot_be_named_keeps_nobody_from_being_heard(box: Box) -> None:
    """Schedule 4875: the driver of a GPU under a new handle hung, and with it who heard the others."""
    devices, names = begin(box)
    box.clock.advance(1)
    box.gpus[0].address = 0x77770
    box.gpus[0].hangs.append((box.clock.now(), box.clock.now() + 60))
    for _ in range(3):
        box.driver.xid(box.gpus[0], 79)
    box.driver.xid(box.gpus[1], 79)
    box.clock.advance(2)
    assert names[1] in [fault.device for fault in devices.faults()]


# ------------------------------------------------------------ told to the executor


def test_what_the_inventory_has_told_is_not_told_again(box: Box) -> None:
    box.driver.start(box.gpus[0], 99, GIB, user="alice", command="python hers.py", ours=False)
    devices, names = begin(box)
    box.clock.advance(5.0)
    assert devices.events == []
    box.gpus[0].lost_from = box.clock.now()
    box.clock.advance(5.0)
    (lost,) = devices.told(Quarantined)
    assert (lost.device, lost.passing) == (names[0], False), "that is news"


def test_what_was_out_before_a_restart_is_taken_up_when_it_is_clean(box: Box) -> None:
    box.driver.start(box.gpus[0], 99, GIB, user="alice", command="python hers.py", ours=False)
    devices, names = begin(box)
    for name in names:
        devices.keep_out(name, "busy when the last daemon ended")
    box.clock.advance(6.0)
    assert devices.events == [Readmitted(names[1])], "the other one is still hers"
    box.driver.end(99)
    box.clock.advance(8.0)
    assert devices.events[1:] == [Readmitted(names[0])]


def test_two_who_ask_at_the_same_time_get_one_answer_and_one_device(box: Box) -> None:
    devices, names = begin(box)
    box.driver.xid(box.gpus[0], 79)
    box.clock.advance(2.0)
    assert devices.told(Quarantined)
    devices.readmit(names[0])
    devices.readmit(names[0])
    box.clock.advance(6.0)
    assert devices.events == [Readmitted(names[0])]


def test_of_two_faults_that_of_the_idle_gpu_is_told_first(box: Box) -> None:
    """Who has to leave the other one must not be sent there."""
    devices, names = begin(box)
    run_trial(box, devices, names[0], 11)
    box.driver.start(box.gpus[1], 99, GIB, user="alice", command="python hers.py", ours=False)
    box.gpus[0].lost_from = box.clock.now()
    box.clock.advance(5.0)
    assert [event.device for event in devices.told(Quarantined)] == [names[1], names[0]]


# ------------------------------------------------------------ a driver that hangs or fails


def test_a_hanging_gpu_is_out_and_comes_back_and_others_do_not_notice(box: Box) -> None:
    devices, (name, other) = begin(box)
    run_trial(box, devices, other, 12)
    box.gpus[0].hangs.append((box.clock.now(), box.clock.now() + 40))
    box.clock.advance(4)
    assert devices.faults() == ()
    box.clock.advance(2)
    (fault,) = devices.faults()
    assert fault.device == name
    assert "NVML has not answered for" in fault.reason
    box.driver.end(12, 0.2, 0.3)
    assert devices.released([other], 1.0) is not None
    box.clock.advance(50)
    assert devices.recovered() == (name,)


def test_a_daemon_that_was_stopped_for_a_while_takes_nobody_out(box: Box) -> None:
    devices, _ = begin(box)
    box.clock.skip(300.0)  # its helpers were asked nothing
    assert devices.faults() == ()
    box.clock.advance(0.5)
    assert devices.faults() == ()


def test_a_trial_goes_on_while_its_driver_hangs_but_its_release_waits(box: Box) -> None:
    devices, (name, _) = begin(box)
    run_trial(box, devices, name, 11)
    box.gpus[0].hangs.append((box.clock.now(), box.clock.now() + 30))
    box.clock.advance(15)
    assert devices.faults() == ()
    box.driver.end(11)
    assert devices.released([name], 10) is None
    assert "NVML has not answered for" in devices.waits_for(name)
    assert devices.released([name], 20) is not None


def test_one_failed_query_is_not_a_fault_but_several_are(box: Box) -> None:
    devices, (name, _) = begin(box)
    now = box.clock.now()
    box.gpus[0].failures.append((now, now + 1.2, "nvmlDeviceGetMemoryInfo_v2", 999))
    box.gpus[0].failures.append((now, now + 1.2, "nvmlDeviceGetMemoryInfo", 999))
    box.clock.advance(2)
    assert devices.faults() == ()
    box.gpus[0].failures.append((now, now + 30, "nvmlDeviceGetComputeRunningProcesses_v3", 999))
    box.clock.advance(5)
    (fault,) = devices.faults()
    assert "cannot be read" in fault.reason


def test_health_that_was_known_and_cannot_be_read_now_is_not_good_health(box: Box) -> None:
    devices, (name, other) = begin(box)
    for board, function in zip(
        box.gpus, ("nvmlDeviceGetRemappedRows", "nvmlDeviceGetPowerUsage"), strict=True
    ):
        board.failures.append((1.0, 20.0, function, 999))
    run_trial(box, devices, name, 11)
    box.driver.end(11)
    assert devices.released([name], 4) is None
    assert "health cannot be read" in devices.waits_for(name)
    assert devices.faults() == (), "nobody needs to know its power"
    assert devices.released([name], 20) is not None
    box.clock.advance(30.0 - box.clock.now())
    box.gpus[1].failures.append((30.0, 45.0, "nvmlDeviceGetFieldValues", 999))
    box.clock.advance(10)
    (fault,) = devices.faults()
    assert (fault.device, "health cannot be read" in fault.reason) == (other, True)
    box.clock.advance(20)
    assert devices.recovered() == (other,)


def test_a_slow_answer_is_thrown_away(box: Box) -> None:
    """Its beginning and its end do not belong together."""
    devices, (name, _) = begin(box)
    run_trial(box, devices, name, 11)
    now = box.clock.now()
    box.gpus[0].hangs.append((now + 0.1, now + 9.0))
    box.clock.advance(1.0)
    box.driver.end(11)
    assert devices.released([name], 7.5) is None
    assert devices.released([name], 3) is not None


def test_a_gpu_that_cannot_be_found_out_about_is_left_out_and_named(make_box: MakeBox) -> None:
    box = make_box(gpu(0), gpu(1, lost_from=0.0), gpu(2, hangs=[(0.0, 100.0)]))
    devices, names = begin(box)
    assert names == ["GPU-0a00-beef"]
    assert any(note.startswith("GPU 1 is left out: NVML: GPU is lost") for note in devices.notes)
    assert "GPU 2 is left out: NVML did not answer" in devices.notes


def test_a_driver_that_never_answers_is_an_error(make_box: MakeBox) -> None:
    box = make_box(gpu(0))
    box.driver.init_blocks_until = 500.0
    with pytest.raises(DeviceError, match="did not answer within 60 s"):
        box.devices()


def test_no_driver_is_an_error_that_says_what_to_do(make_box: MakeBox) -> None:
    import pynvml

    box = make_box(gpu(0))
    box.driver.init_code = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    with pytest.raises(DeviceError, match=r"kernel driver is not loaded.*devices: cpu"):
        box.devices()
    box.driver.init_code = pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
    with pytest.raises(DeviceError, match="Reboot"):
        box.devices()


@pytest.mark.parametrize("pid", [0, 4294967295])
def test_a_pid_that_no_process_can_have_is_nobody_known(box: Box, pid: int) -> None:
    """Mend 7: ``os.kill(4294967295, 0)`` raises OverflowError, and the reader of that GPU was gone for good."""
    devices, (name, other) = begin(box)
    context = Context(pid, GIB, since=box.clock.now())
    box.gpus[0].contexts.append(context)
    box.clock.advance(2)
    (fault,) = devices.faults()
    assert (fault.device, fault.passing) == (name, True)
    assert f"held by an unknown process (NVML names pid {pid}, 1.00 GiB)" in fault.reason
    context.listed_until = context.memory_until = box.clock.now()
    box.clock.advance(6)
    assert devices.recovered() == (name,)


def test_whatever_a_driver_answers_the_next_question_is_asked(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices, names = begin(box)
    with monkeypatch.context() as broken:
        broken.setattr("gpusched.devices.helper.read_usage", lambda *_, **__: [][0])
        box.clock.advance(5)
        faults = {fault.device: fault.reason for fault in devices.faults()}
    assert set(faults) == set(names)
    assert "IndexError" in faults[names[0]]
    box.clock.advance(6)
    assert set(devices.recovered()) == set(names)
