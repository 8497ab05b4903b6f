"""Two experiments on one box of scripted GPUs: real daemons, real trials, leases that die with their holder."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.devices.boxed import BOX, Boxed, name_of, running_on, state_of

GPUS = (name_of(0), name_of(1))


class Experiments(Boxed):
    """Trials that go on for long."""

    def settings(self, **keys: Any) -> dict[str, Any]:
        policy = {"name": "fifo", "R": 100000}
        return super().settings(max_trials=50, policy=policy, **keys)


@pytest.fixture
def experiments(tmp_path: Path) -> Iterator[Experiments]:
    tmp_path.chmod(0o700)
    made = Experiments(tmp_path, {}, {})
    yield made
    made.end()


@pytest.mark.slow
def test_a_gpu_goes_over_when_its_holder_is_killed_and_it_is_proven_empty(
    experiments: Experiments,
) -> None:
    first = experiments.begin("first", devices="cuda:0")
    experiments.until("first", lambda view: GPUS[0] in running_on(view))
    experiments.begin("second", devices="cuda")
    view = experiments.until("second", lambda view: GPUS[1] in running_on(view))
    state, reason = state_of(view, GPUS[0])
    assert state == "quarantined"
    assert "leased by search" in reason
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
    first = experiments.begin("first", devices="cuda")
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
    assert experiments.gpusched("run", recipe, **experiments.env).code == 0
