"""The promises of ``docs/gpus.md`` from outside: command line, daemon and trials are real, the driver is scripted."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.devices.boxed import GPUS, Boxed, running_on, state_of
from tests.devices.schedules import WALK


def test_every_launch_of_a_trial_that_is_resized_comes_after_the_release(boxed: Boxed) -> None:
    """The first line of each rank looks whether the driver has let go: 1 -> 2 -> 1 -> 2 -> 1 -> 2."""
    policy = {"name": f"{WALK}:Walk", "R": 12}
    result = boxed.search("walk", max_trials=1, policy=policy)
    assert result.code == 0, result.text + boxed.log()
    launches = [int(file.read_text()) for file in boxed.box.glob("rank-*")]
    assert [launches.count(number) for number in range(1, 7)] == [1, 2, 1, 2, 1, 2]
    assert not (boxed.box / "collision").exists()
    rows = [json.loads(row) for row in boxed.asks("export", "walk", "--json").out.splitlines()]
    assert [row["atoms"] for row in rows] == [1, 1, 2, 2] * 3


def test_a_machine_of_the_cloud_that_comes_back_with_other_gpus_goes_on(boxed: Boxed) -> None:
    """``resume`` said that no GPU could be used, beside two that were idle."""
    began = boxed.begin("search", max_trials=1, max_atoms=1)
    boxed.until("search", running_on)
    os.kill(began["daemon_pid"], signal.SIGKILL)
    boxed.end()
    for name in GPUS:
        (boxed.box / name).rename(boxed.box / name.replace("a00", "b00"))
    resumed = boxed.asks("resume", "search", "--detach")
    assert resumed.code == 0, resumed.text
    view = boxed.until("search", running_on)
    (trial,) = view["trials"]
    assert (
        set(running_on(view)) <= {name.replace("a00", "b00") for name in GPUS},
        trial["incarnation"],
    ) == (True, 2)
    assert [state_of(view, name)[0] for name in GPUS] == ["quarantined"] * 2
    assert boxed.asks("cancel", "search").code == 0


UPDATED = "Unexpected error from cudaGetDeviceCount(). Error 803: unsupported display driver"


@pytest.mark.parametrize(
    ("sign", "why", "told"),
    [
        ("broken", UPDATED, f"{UPDATED}. Where the NVIDIA driver was updated, reboot"),
        ("full", "CUDA out of memory", "out of memory on a GPU that has less of it than others"),
    ],
)
def test_a_gpu_that_no_new_process_can_use_or_with_less_memory_fails_no_trial(
    boxed: Boxed, sign: str, why: str, told: str
) -> None:
    """The driver was updated at night, or a trial came to a smaller GPU: trials failed for good, one after another."""
    (boxed.box / GPUS[0] / "small").touch()
    boxed.begin("search", max_trials=1, max_atoms=1)
    (name,) = running_on(boxed.until("search", running_on))
    (other,) = {*GPUS} - {name}
    assert boxed.asks("pause", "0").code == 0
    boxed.until("search", lambda view: state_of(view, name)[0] == "free")
    (boxed.box / name / sign).write_text(why)
    assert boxed.asks("unpause", "0").code == 0
    view = boxed.until("search", lambda view: other in running_on(view))
    (trial,) = view["trials"]
    assert (trial["incarnation"], trial["state"] in ("starting", "running")) == (3, True)
    state, reason = state_of(view, name)
    assert state == "quarantined"
    assert told in reason
    assert boxed.asks("cancel", "search").code == 0


def test_scripts_on_the_only_gpu_are_told_nothing_of_resizes(boxed: Boxed) -> None:
    """A schedule by step was to be counted in the steps of one atom, by a search that never has two."""
    (boxed.box / GPUS[1]).rmdir()
    began = boxed.begin("search", max_trials=1)
    boxed.until("search", running_on)
    settings = json.loads((Path(began["folder"]) / "worker.json").read_text())
    assert not settings["is_resized"]
    assert boxed.asks("cancel", "search").code == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "told"),
    [
        ("uncorrectable ECC error encountered", "its GPU is to blame, not the trial"),
        ("unspecified launch failure", "was lost: "),
    ],
)
def test_a_lost_gpu_costs_its_trial_a_move_and_comes_back(
    boxed: Boxed, error: str, told: str
) -> None:
    """Also where the script dies of it before the driver says that it is gone."""
    boxed.begin("search", max_trials=1)
    (name,) = running_on(boxed.until("search", running_on))
    (other,) = {*GPUS} - {name}
    lost = boxed.box / name / "lost"
    lost.write_text(f"CUDA error: {error}")
    view = boxed.until("search", lambda view: other in running_on(view))
    (trial,) = view["trials"]
    assert trial["state"] in ("starting", "running")
    assert trial["incarnation"] == 2
    state, reason = state_of(view, name)
    assert state == "quarantined"
    assert "the GPU is lost" in reason
    assert told in boxed.asks("explain", "0").out
    lost.unlink()
    boxed.until("search", lambda view: state_of(view, name)[0] != "quarantined")
    assert [bool(row["holders"]) for row in boxed.shown()].count(True) == 1


@pytest.mark.slow
def test_a_gpu_goes_over_when_its_holder_is_killed_and_it_is_proven_empty(boxed: Boxed) -> None:
    first = boxed.begin("first", devices="cuda:0")
    boxed.until("first", lambda view: GPUS[0] in running_on(view))
    boxed.begin("second", devices="cuda")
    view = boxed.until("second", lambda view: GPUS[1] in running_on(view))
    state, reason = state_of(view, GPUS[0])
    assert state == "quarantined"
    assert "leased by search" in reason
    assert first["experiment"] in reason

    os.kill(first["daemon_pid"], signal.SIGKILL)
    # Its trial trains on for a while without it; the lease is free, the GPU is not.
    view = boxed.until("second", lambda view: GPUS[0] in running_on(view))
    assert GPUS[1] in running_on(view), "the trial on the other GPU has nothing to do with it"
    assert not (boxed.box / "collision").exists()
    log = (Path(view["folder"]) / "daemon.log").read_text()
    assert "GPU 0 is in use again" in log
    assert boxed.asks("cancel", "second").code == 0
