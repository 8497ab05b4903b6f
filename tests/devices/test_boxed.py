"""The promises of ``docs/gpus.md`` from outside: command line, daemon and trials are real, the driver is scripted."""

from __future__ import annotations

import getpass
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.devices.boxed import Boxed, name_of, running_on, state_of

pytestmark = pytest.mark.slow

MakeBoxed = Callable[..., Boxed]
FOR_LONG: dict[str, Any] = {"policy": {"name": "fifo", "R": 100000}, "max_trials": 50}


@pytest.fixture
def boxed(tmp_path: Path) -> Iterator[MakeBoxed]:
    made: list[Boxed] = []

    def make(*gpus: dict[str, Any]) -> Boxed:
        tmp_path.chmod(0o700)
        made.append(Boxed(tmp_path, *gpus))
        return made[-1]

    yield make
    for one in made:
        one.end()


def test_a_strangers_gpu_is_shown_left_alone_and_taken_up_again(boxed: MakeBoxed) -> None:
    box = boxed({}, {})
    stranger = subprocess.Popen(["sleep", "600"])
    try:
        (box.box / name_of(1) / str(stranger.pid)).touch()
        shown = box.asks("gpus").out
        assert f"held by pid {stranger.pid} ({getpass.getuser()}: sleep 600, 3.00 GiB)" in shown
        box.begin("mine", **FOR_LONG)
        view = box.until("mine", lambda view: name_of(0) in running_on(view))
        state, reason = state_of(view, name_of(1))
        assert state == "quarantined"
        assert f"pid {stranger.pid} ({getpass.getuser()}: sleep 600" in reason
        assert stranger.poll() is None, "nobody touched it"
    finally:
        stranger.kill()
        stranger.wait()
    box.until("mine", lambda view: len(running_on(view)) == 2)
    assert f"{name_of(1)} is in use again" in box.log()
    assert not (box.box / "collision").exists()


def test_a_lost_gpu_costs_its_trial_a_move_and_comes_back(boxed: MakeBoxed) -> None:
    box = boxed({}, {})
    box.begin("search", **{**FOR_LONG, "max_trials": 1})
    (name,) = running_on(box.until("search", running_on))
    other = name_of(1) if name == name_of(0) else name_of(0)
    lost = box.box / name / "lost"
    lost.touch()
    view = box.until("search", lambda view: other in running_on(view))
    (trial,) = view["trials"]
    assert trial["state"] in ("starting", "running")
    assert trial["incarnation"] == 2
    state, reason = state_of(view, name)
    assert state == "quarantined"
    assert "the GPU is lost" in reason
    assert "its GPU is to blame, not the trial" in box.asks("explain", "0").out
    lost.unlink()
    box.until("search", lambda view: state_of(view, name)[0] != "quarantined")
    shown = [json.loads(line) for line in box.asks("gpus", "--json").out.splitlines()]
    assert {row["standing"]["state"] for row in shown} == {"held", "free"}
