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
ONE_STEP: dict[str, Any] = {"policy": {"name": "fifo", "R": 1}}
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


def test_every_way_to_name_gpus(boxed: MakeBoxed) -> None:
    """A trial a GPU, one step each: which GPUs they got, and how they were told."""
    box = boxed({}, {}, {}, {})
    ways: list[tuple[dict[str, Any], str | None, list[int]]] = [
        ({"devices": "auto"}, None, [0, 1, 2, 3]),
        ({"devices": "cuda:0,2,3"}, None, [0, 2, 3]),
        ({"devices": [name_of(3), name_of(1)]}, None, [1, 3]),
        ({"devices": "GPU-2a00,GPU-0a00"}, None, [0, 2]),
        ({"devices": "cuda"}, "3,1", [1, 3]),
        ({"devices": "cuda:1"}, f"GPU-3a00,{name_of(1)}", [1]),
    ]
    for number, (keys, visible, wanted) in enumerate(ways):
        environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
        names = [name_of(index) for index in wanted]
        box.runs_to_its_end(
            f"way{number}",
            environ,
            **keys,
            policy={"name": "fifo", "R": 20},
            max_trials=len(wanted),
        )
        ranks = box.ranks()
        assert sorted(rank["CUDA_VISIBLE_DEVICES"] for rank in ranks) == names, keys
        assert {rank["CUDA_DEVICE_ORDER"] for rank in ranks} == {"PCI_BUS_ID"}
    assert not (box.box / "collision").exists()


def test_what_cannot_be_named_is_refused_with_what_there_is(boxed: MakeBoxed) -> None:
    box = boxed({}, {})
    for devices, visible, says in (
        ("cuda:0,7", None, "GPU 7 was not found. The GPUs are:"),
        ("GPU-9999", None, "GPU-9999 was not found. The GPUs are:"),
        ("cuda:1", "1", "GPU 1 was not found (inside CUDA_VISIBLE_DEVICES=1)"),
        ("cuda", "7", "CUDA_VISIBLE_DEVICES=7 leaves no GPU"),
    ):
        environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
        refused = box.runs_it("wrong", environ, devices=devices)
        assert refused.code == 4
        assert says in refused.err
        assert name_of(1) in refused.err, "what there is"


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


def test_a_lost_gpu_costs_its_trial_a_move_and_comes_back_when_asked_for(boxed: MakeBoxed) -> None:
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
    refused = box.asks("gpus", "--readmit", name)
    assert "the GPU is lost" in refused.text
    lost.unlink()
    answered = box.asks("gpus", "--readmit", name)
    assert answered.code == 0, answered.text
    box.until("search", lambda view: state_of(view, name)[0] != "quarantined")
    shown = [json.loads(line) for line in box.asks("gpus", "--json").out.splitlines()]
    assert {row["standing"]["state"] for row in shown} == {"held", "free"}
