"""Health rules, on plain values, and how XIDs are heard."""

from __future__ import annotations

from collections.abc import Callable

import pynvml
import pytest
from conftest import Box, begin, gpu

from gpusched.devices import health
from gpusched.devices.gpu import Vitals
from gpusched.devices.machine import find_machine
from gpusched.devices.watch import Watch


def vitals(**more: object) -> Vitals:
    return Vitals(at=1.0, **more)


def test_the_drivers_recovery_action_is_the_last_word() -> None:
    assert (
        health.trouble(0, vitals(recovery=0, ecc_uncorrected=9), vitals(ecc_uncorrected=0)) is None
    )
    for action in range(1, 8):
        found = health.trouble(3, vitals(recovery=action), None)
        assert found.reason.startswith("the driver asks for")
        assert found.at_once is (action != 4)
    assert "recovery action 99" in health.trouble(0, vitals(recovery=99), None).reason


def test_without_it_growing_memory_errors_count() -> None:
    first = vitals(ecc_uncorrected=5)
    assert health.trouble(0, vitals(ecc_uncorrected=5), first) is None
    assert health.trouble(0, vitals(), first) is None
    found = health.trouble(0, vitals(ecc_uncorrected=7), first)
    assert found.reason.startswith("2 uncorrectable")


def test_rows_pending_do_not_stop_anybody_but_failed_ones_do() -> None:
    assert health.trouble(0, vitals(rows_pending=True), None) is None
    assert health.trouble(0, vitals(rows_failed=True), None) is not None


@pytest.mark.parametrize("xid", sorted(health.IGNORED_XIDS))
def test_the_applications_own_xids_are_ignored(xid: int) -> None:
    assert xid in (8, 11, 13, 31, 43, 45, 68, 109)
    assert health.xid_trouble(xid, 0, None, None) is None


@pytest.mark.parametrize(
    ("xid", "now", "others", "said"),
    [
        (777, vitals(), (), ""),  # unknown: noted
        (777, None, (), ""),
        (154, vitals(recovery=0), (), ""),
        (154, vitals(recovery=2), (), "a reboot"),
        (154, None, (), "XID 154"),  # nothing says that it is harmless
        (48, vitals(recovery=0), (), ""),  # the driver is the last word
        (48, vitals(recovery=1), (), "nvidia-smi --gpu-reset -i 0"),
        (48, vitals(), (), "XID 48: double-bit"),
        (48, vitals(), (94,), ""),  # contained
        (119, vitals(recovery=0), (), ""),
        (119, vitals(), (), "XID 119"),
        (79, vitals(recovery=0), (), "XID 79: the GPU has fallen off the bus"),
    ],
)
def test_what_an_xid_means(
    xid: int, now: Vitals | None, others: tuple[int, ...], said: str
) -> None:
    """Mend 5."""
    found = health.xid_trouble(xid, 0, now, None, others)
    assert (said in found.reason) if found and said else (not said and found is None)
    assert health.is_unknown(xid) is (xid == 777)


@pytest.mark.parametrize(
    ("bits", "note"),
    [
        (pynvml.nvmlClocksEventReasonSwThermalSlowdown, "slowed by heat"),
        (
            pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown,
            "slowed by the power supply (power brake)",
        ),
        (pynvml.nvmlClocksEventReasonHwSlowdown, "slowed by a limit of the hardware"),
        (pynvml.nvmlClocksEventReasonSwPowerCap, "at its power limit"),
        (pynvml.nvmlClocksEventReasonGpuIdle, None),
    ],
)
def test_throttling_in_words(bits: int, note: str | None) -> None:
    assert health.notes(vitals(throttle=bits)) == ((note,) if note else ())


# ------------------------------------------------------------ the thread


@pytest.fixture
def listening(make_box: Callable[..., Box]) -> tuple[Box, list[Watch]]:
    """Two GPUs that are asked, and whose errors are heard."""
    box = make_box(gpu(0), gpu(1))
    watches = list(find_machine(box.processes, box.clock).watches.values())
    for watch in watches:
        watch.subjects = (watch.gpu,)
    heard(box, watches)
    return box, watches


def heard(box: Box, watches: list[Watch], rounds: int = 1) -> list[list[int]]:
    for watch in watches * (2 * rounds):  # asked, and answered
        box.clock.advance(0.5)
        watch.turn()
    return [watch.take_xids() for watch in watches]


Listening = tuple[Box, list[Watch]]


def test_a_storm_costs_a_counter(listening: Listening) -> None:
    box, watches = listening
    for _ in range(300):
        box.driver.xid(box.gpus[1], 31)
        box.driver.xid(box.gpus[0], 79)
    assert heard(box, watches) == [[79], [31]]
    box.driver.xid(box.gpus[0], 79)
    assert heard(box, watches) == [[], []], "each once"
    watches[0].forget()
    box.driver.xid(box.gpus[0], 79)
    assert heard(box, watches) == [[79], []]


def test_a_double_bit_event_counts_as_its_xid(listening: Listening) -> None:
    box, watches = listening
    box.driver.events.append((box.gpus[0], pynvml.nvmlEventTypeDoubleBitEccError, 0))
    assert heard(box, watches) == [[48], []]


def test_no_event_set_at_all_is_said_once(make_box: Callable[..., Box]) -> None:
    box = make_box(gpu(0))
    box.driver.event_failure = pynvml.NVML_ERROR_NOT_SUPPORTED
    devices = box.devices()
    devices.open()
    box.clock.advance(30)
    assert len(devices.notes) == 1
    assert "polling alone" in devices.notes[0]


def test_an_event_stream_that_breaks_is_said_once(
    make_box: Callable[..., Box], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fake_nvml import FakeFunctions, forget

    monkeypatch.setattr(FakeFunctions, "nvmlEventSetWait_v2", lambda *_: pynvml.NVML_ERROR_UNKNOWN)
    forget()
    devices, _ = begin(make_box(gpu(0)))
    assert devices.faults() == (), "one broken stream makes no GPU bad"
    devices.clock.advance(30)
    (note,) = devices.notes
    assert note.startswith("GPU 0: no GPU error events (Unknown Error)")
