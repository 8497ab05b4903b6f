"""A trainer that owns its loop: paused, resumed and resized, with its state tracked or in files of its own."""

from __future__ import annotations

import json
from typing import Any

import pytest

import gpusched
from gpusched.policies.rehearsal import REHEARSAL
from tests.e2e.sandbox import Sandbox


def run(sandbox: Sandbox, script: str, **recipe: Any) -> list[dict[str, Any]]:
    """The reports of the one trial of a search that resizes it."""
    policy = {"name": REHEARSAL, "steps": 4, "sizes": [1, 2], "R": 12}
    path = sandbox.recipe(script, policy=policy, max_trials=1, **recipe)
    result = sandbox.gpusched("run", path)
    assert result.code == 0, result.text
    (trial,) = sandbox.view()["trials"]
    assert trial["incarnation"] > 1, "it was resized"
    reports = sandbox.lines(0)
    assert [report["k"] for report in reports] == list(range(1, len(reports) + 1))
    return reports


@pytest.mark.slow
def test_a_trainer_of_its_own_goes_on_where_it_was(sandbox: Sandbox) -> None:
    reports = run(sandbox, "trainer.py")
    assert [report["m"]["epoch"] for report in reports] == [report["k"] for report in reports]
    rates = [report["m"]["lr"] for report in reports]
    assert rates == pytest.approx([0.5 * 0.5**k for k in range(1, len(rates) + 1)])


@pytest.mark.slow
def test_a_trainer_whose_state_is_files_goes_on_where_it_was(sandbox: Sandbox) -> None:
    reports = run(sandbox, "library.py")
    assert [report["m"]["epochs"] for report in reports] == [report["k"] for report in reports]
    best = gpusched.load(sandbox.experiment)
    assert best.folder is not None
    state = json.loads((best.folder / "state.json").read_text())
    assert (state["epoch"], set(state["ranks"])) == (best.step, {1, 2})


@pytest.mark.slow
def test_with_a_private_working_directory_no_trial_finds_files_of_another(
    sandbox: Sandbox,
) -> None:
    path = sandbox.recipe("snapshots.py", max_trials=2, cwd="private")
    assert sandbox.gpusched("run", path).code == 0
    reports = [report["m"] for trial in (0, 1) for report in sandbox.lines(trial)]
    assert reports == [{"score": 0.0, "own": 1.0}] * 2


@pytest.mark.slow
def test_a_script_that_is_wrong_on_two_ranks_goes_on_at_one_and_is_told_why(
    sandbox: Sandbox,
) -> None:
    reports = run(sandbox, "unwrapped.py")
    assert len(reports) > 4, "it trained on after the resize that failed"
    assert {report["m"]["ranks"] for report in reports} == {1}
    told = sandbox.call("explain", "0").out
    assert "goes back to 1 and grows no more" in told
    assert "model = trial.wrap(model)" in told
