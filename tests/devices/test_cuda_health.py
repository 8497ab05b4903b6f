"""Sick GPUs and sick drivers, one story at a time."""

from __future__ import annotations

from collections.abc import Callable

import pynvml
import pytest

from gpusched.devices import nvml
from gpusched.devices.helper import RETRY_S
from gpusched.devices.nvml import NvmlError, NvmlLost, NvmlUnsupported, Vitals, illness, slowed_by
from tests.devices.box import Box, begin, gpu, run_trial
from tests.devices.fake_nvml import GIB

MakeBox = Callable[..., Box]


# ------------------------------------------------------------ health


def test_a_lost_gpu_is_a_fault_at_once_and_is_looked_at_again_later(box: Box) -> None:
    devices, (name, other) = begin(box)
    run_trial(box, devices, name, 11)
    box.gpus[0].lost_from = box.clock.now()
    box.clock.advance(1.2)
    (fault,) = devices.faults()
    assert fault.device == name
    assert "lost" in fault.reason
    (helper,) = [helper for helper in box.clock.helpers if not helper.killed]
    assert box.gpus[0].uuid not in helper.opened, "closed at once"
    box.driver.end(11)
    devices.drain([name])
    box.clock.advance(RETRY_S)
    box.gpus[0].lost_until = box.clock.now()
    assert devices.recovered() == (), "still lost when it was looked at"
    box.clock.advance(RETRY_S + 5)
    assert devices.recovered() == (name,)
    run_trial(box, devices, name, 12)
    assert devices.readings()[1].device == other


@pytest.mark.parametrize("ill", [True, False])
def test_a_gpu_is_not_back_before_the_trial_that_dies_of_it_has_ended(box: Box, ill: bool) -> None:
    """The rank's context was still to come, so the GPU looked clean, and another trial was launched beside it."""
    devices, (name, _) = begin(box)
    devices.take([name])
    if ill:
        box.gpus[0].recovery = 1
        box.clock.advance(2.0)
        assert devices.faults()
        box.gpus[0].recovery = 0
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


def test_a_gpu_that_no_process_could_use_rests(box: Box) -> None:
    devices, (name, _) = begin(box)
    devices.take([name])
    devices.keep_out(name, "a new process cannot use the GPU", 600.0)
    devices.drain([name])
    box.clock.advance(599.0)
    assert devices.recovered() == ()
    box.clock.advance(10.0)
    assert devices.recovered() == (name,)


def test_a_gpu_that_waits_for_a_reset_is_closed_and_taken_up_again(box: Box) -> None:
    """A reset wants every client gone: a new helper asks about the others, and does not open that one."""
    devices, (name, other) = begin(box)
    run_trial(box, devices, other, 11)
    (before,) = [helper for helper in box.clock.helpers if not helper.killed]
    box.gpus[0].recovery = 1
    box.clock.advance(4)
    (fault,) = devices.faults()
    assert "nvidia-smi --gpu-reset -i 0" in fault.reason
    assert "nvidia-smi -pm 0" in fault.reason
    assert before.killed
    (helper,) = [helper for helper in box.clock.helpers if not helper.killed]
    assert box.gpus[0].uuid not in helper.opened
    assert box.gpus[1].uuid in helper.opened, "its trial is watched"
    box.gpus[0].recovery = 0  # reset
    box.clock.advance(RETRY_S + 5)
    assert devices.recovered() == (name,)
    run_trial(box, devices, name, 12)


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


def test_gpus_that_wake_up_slowly_do_not_hang(make_box: MakeBox) -> None:
    """Without persistence mode each GPU wakes up for a new helper, which was ended at the second one, over and over."""
    box = make_box(*map(gpu, range(4)))
    begin(box)
    box.clock.wakes_s = 4.0
    box.clock.helpers[-1].kill()
    box.clock.advance(60.0)
    assert len(box.clock.helpers) == 2
    assert len(box.clock.helpers[-1].opened) == 4


def test_a_box_that_can_start_no_process_has_no_free_gpu_until_it_can(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the limit of processes (ulimit -u) the daemon ended."""

    def refused(_: object) -> None:
        raise BlockingIOError("Resource temporarily unavailable")

    devices, (name, other) = begin(box)
    box.gpus[0].lost_from = box.clock.now()
    with monkeypatch.context() as limit:
        limit.setattr(box.clock, "start", refused)
        box.clock.advance(10.0)
        assert {fault.device for fault in devices.faults()} == {name, other}
    box.clock.advance(RETRY_S)
    assert devices.recovered() == (other,)


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


def test_a_gpu_that_cannot_be_found_out_about_is_left_out_and_named(make_box: MakeBox) -> None:
    box = make_box(gpu(0), gpu(1, lost_from=0.0))
    devices, names = begin(box)
    assert names == ["GPU-0a00-beef"]
    assert any(note.startswith("GPU 1 is left out: NVML: GPU is lost") for note in devices.notes)


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


# ------------------------------------------------------------ errors and health on plain values


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (pynvml.NVML_ERROR_NOT_SUPPORTED, NvmlUnsupported),
        (pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, NvmlUnsupported),  # by an old driver
        (pynvml.NVML_ERROR_NO_PERMISSION, NvmlUnsupported),
        (pynvml.NVML_ERROR_GPU_IS_LOST, NvmlLost),
        (12345, NvmlError),
    ],
)
def test_an_error_of_the_driver_has_a_kind(box: Box, code: int, kind: type[NvmlError]) -> None:
    question = "nvmlDeviceGetUtilizationRates", box.gpus[0]
    box.gpus[0].failures = [(0.0, 1.0, "", code)]
    with pytest.raises(NvmlError, match=question[0]) as raised:
        nvml.ask(*question)
    assert (type(raised.value), raised.value.exit_code) == (kind, 4)
    if kind is not NvmlLost:
        assert nvml.ask_if_supported(*question) is None
        return
    with pytest.raises(NvmlLost):  # never taken for a question that is not supported
        nvml.ask_if_supported(*question)


def test_recovery_actions_and_throttling_in_words() -> None:
    assert illness(0, Vitals()) == ""
    assert illness(0, Vitals(recovery=2)) == "the driver asks for a reboot"
    assert "recovery action 99" in illness(0, Vitals(recovery=99))
    heat = pynvml.nvmlClocksEventReasonSwThermalSlowdown
    assert slowed_by(Vitals(throttle=heat)) == "slowed by heat"
    hardware = slowed_by(Vitals(throttle=pynvml.nvmlClocksEventReasonHwSlowdown))
    assert hardware == "slowed by a limit of the hardware, such as its power supply"
    assert slowed_by(Vitals(throttle=pynvml.nvmlClocksEventReasonGpuIdle)) == ""
