"""Every policy live: real processes that count their steps in a checkpoint, so that no preemption may lose any."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpusched import policies
from tests.e2e.sandbox import PLENTY, Sandbox
from tests.policies.test_own import EXAMPLE

BOUNDS = {"metric_min": 0, "metric_max": 20}
#: Options with which something happens within seconds; a step takes 0.05 s and a metric is x plus the steps made.
OPTIONS: dict[str, dict[str, Any]] = {
    "fifo": {"R": 4},
    "asha": {"R": 4, "eta": 2},
    "hypersched": {"R": 12, "eta": 2, "cooldown": 1},
    "foresight": {"R": 12},
    "bandit": {"R": 6, "b": 2, "eps": 0.1},
    "earlyterm": {"R": 12, "b": 4, **BOUNDS},
    "pop": {"R": 12, "b": 4, **BOUNDS},
    "seer": {"t_min": 0.02, "eta": 2},
    "hermes": {"R": 12, "quantum_s": 0.2, "trials_per_device": 2},
}


def run(sandbox: Sandbox, name: str) -> Any:
    """A search that ends when its six trials have; its view at the end. SEER's trials have what time there is."""
    recipe = sandbox.recipe(
        "counted.py",
        policy={"name": name, **OPTIONS[name]},
        deadline="8s" if name == "seer" else PLENTY,
        max_trials=6,
    )
    result = sandbox.gpusched("run", recipe)
    assert result.code == 0, result.text + sandbox.log()
    view = sandbox.view()
    for trial in view["trials"]:
        assert trial["state"] in ("completed", "stopped"), trial
    assert sandbox.call("best", "--json").json()["step"] > 0
    return view


def test_a_policy_that_failed_is_mended_and_the_search_resumed(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    mine = tmp_path / "mine.py"
    first = "scores = self.scores"
    broken = EXAMPLE.replace(first, f"1 / (4 - trial.step)\n        {first}")
    line = broken[: broken.index("1 / (4")].count("\n") + 1
    mine.write_text(broken)
    recipe = sandbox.recipe(
        "counted.py",
        policy={"name": f"{mine}:Median", "R": 6, "patience": 2},
        max_trials=4,
    )
    failed = sandbox.gpusched("run", recipe)
    why = f"{mine}:{line}: on_report failed: ZeroDivisionError: division by zero"
    name, log = sandbox.experiment.name, sandbox.experiment / "daemon.log"
    assert why in sandbox.log()
    for told in (failed, sandbox.call("watch")):
        assert told.code == 2, told.text
        assert f"gpusched: {name}: the daemon failed: {why}\n" in told.err
        assert f"'gpusched resume {name}' continues" in told.err
        assert str(log) in told.err
    mine.write_text(EXAMPLE)
    resumed = sandbox.gpusched("resume")
    assert resumed.code == 0, resumed.text + sandbox.log()
    view = sandbox.view()
    assert view["policy"] == "Median"
    trials = view["trials"]
    assert {trial["state"] for trial in trials} <= {"completed", "stopped"}
    assert max(trial["step"] for trial in trials) == 6
    mine.write_text("")  # what it becomes later is of no interest to this search
    assert sandbox.gpusched("export", "--trials").code == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", policies.names())
def test_every_policy_live(sandbox: Sandbox, name: str) -> None:
    view = run(sandbox, name)
    assert view["policy"] == name
    if name == "hermes":
        assert max(trial["incarnation"] for trial in view["trials"]) > 1, "none was preempted"
