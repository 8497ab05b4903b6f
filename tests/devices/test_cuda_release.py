"""Releases and strangers on a scripted driver, one story at a time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import LIMIT_S, Box, begin, gpu, run_trial, with_slices
from fake_driver import GIB, LIST, MEMORY, MIB

from gpusched.devices.base import Quarantined, Readmitted, Released, Strangers
from gpusched.errors import DeviceError

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
    why = "10.00 GiB more memory in use than when idle, and NVML names no process that holds it ("
    assert devices.waits_for(name).startswith(f"not released yet: {why}")
    took_s = devices.released([name], 5)
    assert took_s is not None
    assert 1.1 + took_s == pytest.approx(1.5, abs=0.5)
    devices.confirm_release([name], LIMIT_S)
    assert devices.told(Released) == [Released((name,))], "asked again: still"


def test_pids_may_go_before_or_after_the_memory(box: Box) -> None:
    devices, (name, _) = begin(box)
    run_trial(box, devices, name, 11)
    box.driver.end(11, listed_s=3.0, memory_s=0.0)
    assert devices.released([name], 2.5) is None
    assert devices.released([name], 2.0) is not None


def test_a_quick_release_is_noticed_within_tens_of_milliseconds(box: Box) -> None:
    devices, (name, _) = begin(box)
    run_trial(box, devices, name, 11)
    box.driver.end(11, listed_s=0.10, memory_s=0.12)
    devices.confirm_release([name], LIMIT_S)
    box.clock.advance(0.12 + 0.07)
    assert devices.told(Released) == [Released((name,))]


def test_a_release_waits_for_the_slowest_gpu_of_a_bundle(make_box: MakeBox) -> None:
    box = make_box(gpu(0), gpu(1))
    devices, (name,) = begin(box, gpus_per_atom=2)
    assert name == "GPU-0a00-beef+GPU-1a00-beef"
    devices.take([name])
    assert devices.place([name]).ranks == 2
    for place, board in enumerate(box.gpus):
        box.driver.start(board, 20 + place, GIB)
    box.clock.advance(1.0)
    box.driver.end(20, 0.1, 0.1)
    box.driver.end(21, 4.0, 4.0)
    assert devices.released([name], 3.0) is None
    assert devices.released([name], 3.0) is not None


def test_a_driver_without_the_figure_we_go_by_is_judged_by_its_lists(make_box: MakeBox) -> None:
    """Before driver 510: what it has counts its own reserve as used."""
    box = make_box(gpu(0, reserved=900 * MIB))
    box.driver.missing.add(MEMORY)
    devices, (name,) = begin(box)
    assert "NVML gives no memory figure" in devices.notes[0]
    run_trial(box, devices, name, 11)
    box.driver.end(11, 2.0, 0.4)
    assert devices.released([name], 1.5) is None
    assert devices.released([name], 3) is not None


def test_memory_that_is_not_given_any_more_is_unknown_not_free(box: Box) -> None:
    devices, (name, _) = begin(box)
    run_trial(box, devices, name, 11)
    box.gpus[0].unsupported.add(MEMORY)
    box.driver.end(11)
    assert devices.released([name], 5) is None
    assert "no memory figure" in devices.waits_for(name)


def test_the_display_may_grow_meanwhile(box: Box) -> None:
    devices, (name, _) = begin(box)
    run_trial(box, devices, name, 11)
    box.driver.start(box.gpus[0], 700, 900 * MIB, user="me", command="Xorg", ours=False)
    box.gpus[0].contexts[-1].graphics = True
    box.driver.end(11, 0.1, 0.1)
    assert devices.released([name], 2) is not None
    box.clock.advance(5)
    assert devices.faults() == ()


@pytest.mark.parametrize("later_s", [0.03, 0.09, 0.15, 0.21])
def test_a_display_that_grows_while_others_drain_keeps_nobody_waiting(
    make_box: MakeBox, later_s: float
) -> None:
    """Schedule 68: only the memory was read from then on, and that was never as low as at the beginning."""
    box = make_box(with_slices(gpu(0), 2))
    devices, names = begin(box)
    for place, name in enumerate(names):
        run_trial(box, devices, name, 11 + place, 5 * GIB)
    devices.confirm_release(names[1:], LIMIT_S)
    box.clock.advance(later_s)
    devices.confirm_release(names[:1], LIMIT_S)
    box.clock.advance(4)
    box.driver.start(box.driver.everything()[1], 700, 300 * MIB, command="Xorg", ours=False)
    box.driver.everything()[1].contexts[-1].graphics = True
    box.driver.end(11)
    box.clock.advance(2)
    assert devices.told(Released) == [Released((names[0],))]


def test_a_compositor_that_computes_a_little_is_part_of_the_screen(make_box: MakeBox) -> None:
    box = make_box(gpu(0), gpu(1))
    for board, command in zip(box.gpus, ("gnome-shell", "python simulator.py"), strict=True):
        context = box.driver.start(board, 500 + board.minor, 900 * MIB, command=command, ours=False)
        context.both = True
    desktop, simulated = box.devices().open()
    assert desktop.usable
    assert "simulator.py" in simulated.why_not
    box.gpus[0].contexts[0].memory = 2000 * MIB
    box.clock.advance(3)
    assert box.made[0].faults() == ()


def test_an_mps_server_lives_on_an_idle_gpu(make_box: MakeBox) -> None:
    box = make_box(gpu(0))
    box.driver.start(
        box.gpus[0], 5, 30 * MIB, command="nvidia-cuda-mps-server", ours=False, user="root"
    )
    devices, (name,) = begin(box)
    run_trial(box, devices, name, 11)
    box.gpus[0].contexts[-1].mps = True  # its clients have a list of their own
    box.driver.end(11, 2.0, 0.0)
    assert devices.released([name], 1.5) is None
    assert devices.released([name], 2) is not None


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
    box.clock.advance(2.0)
    assert devices.recovered() == (), "jobs often come in rows"
    box.clock.advance(5.0)
    assert devices.recovered() == (name,)


def test_a_stranger_beside_a_trial_kills_nobody_but_is_named(box: Box) -> None:
    devices, (name, _) = begin(box)
    run_trial(box, devices, name, 11)
    box.driver.start(box.gpus[0], 99, GIB, user="alice", command="python hers.py", ours=False)
    box.clock.advance(5.0)
    assert devices.faults() == ()
    assert devices.told(Strangers) == [Strangers(name, ("pid 99 (alice: python hers.py)",))]
    assert any("shared with pid 99" in note for note in devices.readings()[0].notes)
    box.driver.end(11, 0.1, 0.1)
    assert devices.released([name], 4.0) is None
    box.clock.advance(4.0)
    (fault,) = devices.faults()
    assert "alice" in fault.reason
    box.driver.end(99)
    box.clock.advance(10.0)
    assert devices.recovered() == (name,)


def test_a_gpu_that_is_busy_at_the_start_is_listed_with_its_reason(box: Box) -> None:
    box.driver.start(box.gpus[0], 99, 3 * GIB, user="alice", command="python hers.py", ours=False)
    devices = box.devices()
    first, second = devices.open()
    assert not first.usable
    assert "pid 99 (alice: python hers.py, 3.00 GiB)" in first.why_not
    assert second.usable
    assert devices.faults() == (), "told once"


def test_no_gpu_at_all_is_an_error_that_says_who(make_box: MakeBox) -> None:
    box = make_box(gpu(0))
    box.driver.start(box.gpus[0], 99, 3 * GIB, user="alice", command="python hers.py", ours=False)
    with pytest.raises(DeviceError, match="GPU 0: held by pid 99") as raised:
        box.devices().open()
    assert raised.value.exit_code == 4


def test_memory_in_use_by_nobody_is_somebody(make_box: MakeBox) -> None:
    box = make_box(gpu(0), gpu(1, idle=30 * GIB))
    _, second = box.devices().open()
    assert "and NVML names no process that holds it" in second.why_not


def test_processes_of_our_own_at_the_start_are_an_adopted_trial(box: Box) -> None:
    box.devices().open()
    box.made[0].close()
    box.driver.start(box.gpus[0], 11, GIB)
    devices, (name, _) = begin(box)
    box.clock.advance(3.0)
    assert devices.faults() == ()
    box.driver.end(11, 0.2, 0.4)
    assert devices.released([name], 2) is not None


@pytest.mark.parametrize(
    ("lingers", "why"),
    [
        (
            {"memory_s": 100.0},
            "10.00 GiB more memory in use than when idle, and NVML names no process that holds it "
            "(`sudo fuser -v /dev/nvidia0` may)",
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
    box.clock.advance(0.1)
    (given_up,) = devices.told(Quarantined)
    assert (given_up.device, given_up.passing) == (name, True)
    assert given_up.reason.startswith(f"not released after 60 s: {why}")
    assert "held" in box.made[0].readings()[0].notes[0] or "memory" in given_up.reason
    box.clock.advance(20)
    assert devices.events == []
    box.driver.end(11)
    box.clock.advance(3)
    assert devices.told(Readmitted) == [Readmitted(name)], "by itself (mend 2)"
    assert devices.notes == ["GPU 0 was released 81 s after its trial had ended"]
    run_trial(box, devices, name, 12)


def test_lists_of_processes_are_not_asked_for_while_memory_is_not_back(make_box: MakeBox) -> None:
    """Mend 2: 4.5 ms of the driver's time each, where memory takes 12 us."""
    box = make_box(gpu(0))
    devices, (name,) = begin(box)
    run_trial(box, devices, name, 11)
    box.driver.end(11, listed_s=4.0, memory_s=4.0)
    box.clock.advance(0.5)
    box.driver.calls.clear()
    took_s = devices.released([name], 10)
    assert took_s == pytest.approx(3.5, abs=0.35)
    lists = box.driver.calls["nvmlDeviceGetGraphicsRunningProcesses_v3"]
    memory = box.driver.calls[MEMORY]
    assert lists <= 6, "at the beginning, once a second, and at the end"
    assert memory >= lists + 12


# ------------------------------------------------------------ what a driver does not say


def test_memory_that_is_a_numa_node_proves_nothing(make_box: MakeBox) -> None:
    """Mend 8: on a GH200 the system keeps the pages of processes that have ended."""
    box = make_box(gpu(0, memory_node=8))
    devices, (name,) = begin(box)
    run_trial(box, devices, name, 11)
    box.driver.end(11, listed_s=0.5, memory_s=1e9)
    assert devices.released([name], 3) is not None
    (note,) = devices.notes
    assert "NUMA node of the system" in note
    assert "NVML's list of processes alone" in note


def test_a_bare_context_that_nobody_lists_is_not_free(make_box: MakeBox) -> None:
    """Mend 9: 300 MiB were within the tolerance of a large GPU."""
    box = make_box(gpu(0))
    box.gpus[0].unsupported.add(LIST)
    devices, (name,) = begin(box)
    run_trial(box, devices, name, 11, memory=300 * MIB)
    box.driver.end(11, 0.0, 5.0)
    assert devices.released([name], 4.5) is None
    assert devices.released([name], 2.0) is not None


def test_in_a_container_a_stranger_is_known_by_its_memory(make_box: MakeBox) -> None:
    """Mend 4: newer drivers translate pids into the caller's namespace, and hide everybody else's."""
    box = make_box(gpu(0), gpu(1, idle=300 * MIB))
    box.processes.contained = True
    devices = box.devices()
    first, second = devices.open()
    assert "300 MiB more" not in first.why_not
    assert "NVML names no process that holds it" in second.why_not, "it may be a stranger's context"
    run_trial(box, devices, first.id, 11)
    hidden = box.driver.start(box.gpus[0], 99, 3 * GIB, ours=False)
    hidden.listed_until = 0.0
    box.clock.advance(3)
    (told,) = devices.told(Strangers)
    assert told.who == ("processes outside this container, 3.00 GiB",)
    box.driver.end(11)
    assert devices.released([first.id], 5) is None
    box.driver.end(99)
    assert devices.released([first.id], 5) is not None


@pytest.mark.parametrize(("memory", "free"), [(200 * MIB, True), (6 * GIB, False)])
def test_a_browser_may_compute_a_little(make_box: MakeBox, memory: int, free: bool) -> None:
    """Mend 13."""
    box = make_box(gpu(0), gpu(1))
    box.driver.start(box.gpus[0], 600, memory, command="firefox", ours=False)
    first, _ = box.devices().open()
    assert first.usable is free
    assert free or "firefox" in first.why_not
