"""Two experiments on one box of scripted GPUs: real daemons, real trials, leases that die with their holder."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gpusched.trees.processes import all_pids, read_file
from tests.e2e.sandbox import Sandbox

BOX = Path(__file__).with_name("gpubox")
GPUS = ("GPU-0a00-beef", "GPU-1a00-beef")


class Experiments(Sandbox):
    """``status --json`` of a named experiment, in an environment with scripted GPUs."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.box = root / "box"
        for name in GPUS:
            (self.box / name).mkdir(parents=True)
        self.env = {
            "GPU_BOX": str(self.box),
            "PYTHONPATH": os.pathsep.join([str(BOX), os.environ.get("PYTHONPATH", "")]),
            "XDG_STATE_HOME": str(root / "state"),
            "GPUSCHED_ORPHAN_LEASE_S": "2",
        }

    def begin(self, name: str, devices: str) -> dict[str, Any]:
        recipe = self.recipe(
            str(BOX / "train.py"),
            devices=devices,
            deadline="120s",
            max_trials=50,
            policy={"name": "fifo", "R": 100000},
        )
        named = recipe.rename(self.root / f"{name}.yaml")
        result = self.gpusched("run", named, "--detach", "--json", **self.env)
        assert result.code == 0, result.text + self.log()
        answer: dict[str, Any] = result.json()
        return answer

    def until(
        self, name: str, condition: Callable[[Any], Any], patience_s: float = 60
    ) -> dict[str, Any]:
        import time

        end = time.monotonic() + patience_s
        while time.monotonic() < end:
            result = self.gpusched("status", name, "--json", **self.env)
            if result.code == 0 and condition(view := result.json()):
                found: dict[str, Any] = view
                return found
            time.sleep(0.2)
        raise AssertionError(f"{name}: did not happen\n{result.text}\n{self.log()}")


def running_on(view: Any) -> dict[str, int]:
    """Which trial holds which device, where it has reported."""
    held = {d["id"]: d["trial"] for d in view["devices"] if d["state"] == "held"}
    steps = {trial["id"]: trial["step"] for trial in view["trials"]}
    return {device: trial for device, trial in held.items() if steps.get(trial, 0) > 0}


def state_of(view: Any, device: str) -> tuple[str, str]:
    (found,) = [one for one in view["devices"] if one["id"] == device]
    return found["state"], found["reason"]


@pytest.fixture
def experiments(tmp_path: Path) -> Iterator[Experiments]:
    tmp_path.chmod(0o700)
    made = Experiments(tmp_path)
    yield made
    mark = f"GPU_BOX={made.box}".encode()
    for _ in range(100):
        left = [
            pid
            for pid in all_pids()
            if mark in (read_file(f"/proc/{pid}/environ") or b"").split(b"\0")
        ]
        if not left:
            break
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
def test_a_gpu_goes_over_when_its_holder_is_killed_and_it_is_proven_empty(
    experiments: Experiments,
) -> None:
    first = experiments.begin("first", "cuda:0")
    experiments.until("first", lambda view: GPUS[0] in running_on(view))
    experiments.begin("second", "cuda")
    view = experiments.until("second", lambda view: GPUS[1] in running_on(view))
    state, reason = state_of(view, GPUS[0])
    assert state == "quarantined"
    assert "leased by experiment" in reason
    assert first["experiment"] in reason

    os.kill(first["daemon_pid"], signal.SIGKILL)
    # Its trial trains on for a while without it; the lease is free, the GPU is not.
    view = experiments.until("second", lambda view: GPUS[0] in running_on(view))
    assert GPUS[1] in running_on(view), "the trial on the other GPU has nothing to do with it"
    assert not (experiments.box / "collision").exists()
    log = (Path(view["folder"]) / "daemon.log").read_text()
    assert f"{GPUS[0]} is in use again" in log

    stopped = experiments.gpusched("cancel", "second", **experiments.env)
    assert stopped.code == 0, stopped.text
    experiments.until("second", lambda view: view["state"] == "finished")


@pytest.mark.slow
def test_an_experiment_without_a_gpu_to_itself_is_told_who_has_them(
    experiments: Experiments,
) -> None:
    first = experiments.begin("first", "cuda")
    recipe = experiments.recipe(str(BOX / "train.py"), devices="auto", max_trials=1)
    refused = experiments.gpusched("run", recipe, **experiments.env)
    assert refused.code == 4
    assert refused.text.count(f"{first['experiment']} (pid {first['daemon_pid']})") == 2

    # Looking takes no lease: `gpus` shows the holders, and afterwards a third is refused in the same way.
    shown = experiments.gpusched("gpus", "--json", **experiments.env)
    rows = [json.loads(line) for line in shown.out.splitlines()]
    assert [first["experiment"] in row["leased_by"] for row in rows] == [True, True]
    experiments.until("first", lambda view: len(running_on(view)) == 2)
    shown = experiments.gpusched("gpus", "--json", **experiments.env)
    standings = [json.loads(line)["standing"] for line in shown.out.splitlines()]
    assert [standing["state"] for standing in standings] == ["held", "held"]
    assert {standing["trial"] for standing in standings} == {0, 1}
    assert "held (trial " in experiments.gpusched("gpus", **experiments.env).out
    assert experiments.gpusched("run", recipe, **experiments.env).code == 4
    experiments.gpusched("cancel", "first", **experiments.env)
    experiments.until("first", lambda view: view["state"] == "finished")
    assert experiments.gpusched("run", recipe, **experiments.env, timeout_s=90).code == 0
