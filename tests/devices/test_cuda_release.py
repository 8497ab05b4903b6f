"""Releases and strangers on a scripted driver, one story at a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gpusched.devices.base import Quarantined, Readmitted, Released
from gpusched.errors import DeviceError
from tests.devices.box import LIMIT_S, Box, begin, gpu, run_trial
from tests.devices.fake_nvml import GIB, MIB

MakeBox = Callable[..., Box]


# ------------------------------------------------------------ release


def test_a_release_needs_pids_gone_and_memory_back(box: Box) -> None:
    devices, (name, _) = begin(box)
    run_trial(box, devices, name, 11)
    box.driver.end(11, listed_s=0.5, memory_s=1.5)
    devices.confirm_release([name], LIMIT_S)
    assert devices.told(Released) == [], "never from a reading begun before it was asked"
    box.clock.advance(0.3)
    assert "pid 11" in devices.waits_for(name)
    assert "ended" in devices.waits_for(name)
    box.clock.advance(0.8)
    why = "10.00 GiB more memory in use than when nobody was on it, and NVML names no process that holds it ("
    assert devices.waits_for(name).startswith(f"not released yet: {why}")
    took_s = devices.released([name], 5)
    assert took_s is not None
    assert 1.1 + took_s == pytest.approx(1.5, abs=0.5)
    assert devices.released([name], 0.2) is not None, "asked again: still"


def test_a_quick_release_is_noticed_within_tens_of_milliseconds(box: Box) -> None:
    devices, (name, _) = begin(box)
    run_trial(box, devices, name, 11)
    box.driver.end(11, listed_s=0.10, memory_s=0.12)
    devices.confirm_release([name], LIMIT_S)
    box.clock.advance(0.12 + 0.07)
    assert devices.told(Released) == [Released((name,))]


@pytest.mark.parametrize(
    ("boots", "more", "is_free"), [(0, 0, True), (0, 256 * MIB, False), (1, 256 * MIB, True)]
)
def test_a_gpu_with_a_screen_is_used_again_by_a_search_that_is_resumed(
    make_box: MakeBox,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    boots: int,
    more: int,
    is_free: bool,
) -> None:
    """Memory in use when the search began says whether a trial has left something, unless the machine rebooted."""
    box = make_box(gpu(0, idle=400 * MIB))
    box.driver.start(box.gpus[0], 12, 90 * MIB, command="Xorg", ours=False).graphics = True
    monkeypatch.setattr("gpusched.devices.unit.boot_id", lambda: "0")
    devices, (name,) = begin(box, experiment=tmp_path)
    devices.close()
    monkeypatch.setattr("gpusched.devices.unit.boot_id", lambda: str(boots))
    box.gpus[0].idle += more
    devices = box.devices(known=[name], experiment=tmp_path)
    devices.open()
    devices.drain([name])
    box.clock.advance(6.0)
    assert [fault.device for fault in devices.faults()] == ([] if is_free else [name])


@pytest.mark.parametrize(
    ("has_screen", "more", "is_used_again"),
    [(True, 300 * MIB, True), (True, 2 * GIB, False), (False, 300 * MIB, False)],
)
def test_windows_that_are_opened_beside_a_trial_keep_its_gpu_for_ten_minutes(
    make_box: MakeBox, has_screen: bool, more: int, is_used_again: bool
) -> None:
    """The only GPU of a workstation waited all night for a browser to be closed."""
    box = make_box(gpu(0))
    if has_screen:
        box.driver.start(box.gpus[0], 12, 90 * MIB, command="Xorg", ours=False).graphics = True
    devices, (name,) = begin(box)
    run_trial(box, devices, name, 11)
    box.gpus[0].idle += more
    box.driver.end(11, 0.1, 0.1)
    assert devices.released([name], LIMIT_S + 1.0) is None
    assert [fault.device for fault in devices.told(Quarantined)] == [name]
    box.clock.advance(590.0)
    assert devices.recovered() == ()
    box.clock.advance(30.0)
    assert devices.recovered() == ((name,) if is_used_again else ())
    if is_used_again:
        run_trial(box, devices, name, 13)
        box.driver.end(13, 0.1, 0.1)
        assert devices.released([name], 1.0) is not None


# ------------------------------------------------------------ strangers


def test_a_stranger_makes_a_free_gpu_busy_until_it_leaves(box: Box) -> None:
    devices, (name, other) = begin(box)
    stranger = box.driver.start(
        box.gpus[0], 99, GIB, user="alice", command="python hers.py", ours=False
    )
    box.clock.advance(1.5)
    (fault,) = devices.faults()
    assert fault.device == name
    assert "alice: python hers.py, 1.00 GiB" in fault.reason
    assert devices.faults() == ()
    assert devices.recovered() == ()
    assert "alice" in " ".join(devices.readings()[0].notes)
    stranger.listed_until = stranger.memory_until = box.clock.now()
    box.clock.advance(25.0)
    assert devices.recovered() == (), "jobs often come in rows, and the next one is loading"
    box.clock.advance(10.0)
    assert devices.recovered() == (name,)


@pytest.mark.parametrize("draws", [False, True])
def test_a_stranger_beside_a_trial_kills_nobody_but_is_named(box: Box, draws: bool) -> None:
    """One that draws as well: with so much it is no screen, and a trial may be short of memory for it."""
    devices, (name, _) = begin(box)
    run_trial(box, devices, name, 11)
    box.driver.start(box.gpus[0], 98, GIB // 8, command="Xorg", ours=False).graphics = True
    hers = box.driver.start(box.gpus[0], 99, 3 * GIB, user="alice", command="blender", ours=False)
    hers.graphics = draws
    box.clock.advance(5.0)
    assert devices.faults() == ()
    assert devices.readings()[0].strangers == ("pid 99 (alice: blender, 3.00 GiB)",)
    assert any("shared with pid 99" in note for note in devices.readings()[0].notes)
    box.driver.end(11, 0.1, 0.1)
    assert devices.released([name], LIMIT_S + 1.0) is None, "a stranger is in the way as well"
    (fault,) = devices.told(Quarantined)
    assert "alice" in fault.reason
    box.driver.end(99)
    box.clock.advance(35.0)
    assert devices.recovered() == (name,)


def test_a_gpu_that_is_busy_at_the_start_is_listed_with_its_reason(box: Box) -> None:
    box.driver.start(box.gpus[0], 99, 3 * GIB, user="alice", command="python hers.py", ours=False)
    devices = box.devices()
    first, second = devices.open()
    assert (first.usable, second.usable) == (False, True)
    assert "pid 99 (alice: python hers.py, 3.00 GiB)" in first.why_not
    assert devices.faults() == (), "told once"
    devices.close()
    with pytest.raises(DeviceError, match="no GPU can be used now:\n  GPU 0: held by pid 99") as no:
        box.devices("cuda:0").open()
    assert no.value.exit_code == 4


@pytest.mark.parametrize(
    ("lingers", "why"),
    [
        (
            {"memory_s": 100.0},
            "10.00 GiB more memory in use than when nobody was on it, and NVML names no process that holds it "
            "(`sudo fuser -v /dev/nvidia*` may)",
        ),
        ({"listed_s": 100.0, "memory_s": 100.0}, "held by pid 11 (10.00 GiB), which has ended"),
    ],
)
def test_a_release_that_is_given_up_says_once_by_what_it_is_held(
    box: Box, lingers: dict[str, float], why: str
) -> None:
    devices, (name, _) = begin(box)
    run_trial(box, devices, name, 11)
    box.driver.end(11, **lingers)
    devices.confirm_release([name], LIMIT_S)
    box.clock.advance(LIMIT_S - 0.1)
    assert devices.events == []
    box.clock.advance(0.2)
    (given_up,) = devices.told(Quarantined)
    assert given_up.device == name
    assert given_up.reason.startswith(f"not released after 60 s: {why}")
    assert devices.readings()[0].notes[0] == given_up.reason
    box.clock.advance(20)
    assert devices.events == []
    box.driver.end(11)
    box.clock.advance(5)
    assert devices.told(Readmitted) == [Readmitted(name)], "by itself"
    run_trial(box, devices, name, 12)


def test_a_stranger_beside_an_adopted_trial_does_not_take_its_gpu(box: Box) -> None:
    box.driver.start(box.gpus[0], 11, GIB)
    box.driver.start(box.gpus[0], 99, GIB, user="alice", command="python hers.py", ours=False)
    devices = box.devices(known=[board.uuid for board in box.gpus])
    first, _ = devices.open()
    assert first.usable
    devices.take([first.id])
    box.clock.advance(3.0)
    assert devices.faults() == ()
    assert "alice" in devices.readings()[0].strangers[0]
