"""``gpusched best`` names the best report, however its trial ended, or says how far behind that it is."""

from __future__ import annotations

from typing import Any

import pytest

import gpusched
from gpusched.policies.rehearsal import REHEARSAL
from tests.e2e.sandbox import PLENTY, Sandbox

STEPS = 12


def search(
    sandbox: Sandbox,
    *,
    policy: dict[str, Any] | None = None,
    deadline: float | str = PLENTY,
    **space: Any,
) -> Any:
    """Run ``own_loop.py`` once; what ``best --json`` says of it."""
    space = {"steps": STEPS, "peak": STEPS, "step_s": 0.03, **space}
    policy = policy or {"name": "fifo", "R": max(100, space["steps"])}
    recipe = sandbox.recipe(
        "own_loop.py",
        space=space,
        policy=policy,
        max_trials=1,
        devices="cpu:3",
        deadline=deadline,
    )
    result = sandbox.gpusched("run", recipe)
    assert result.code == 0, result.text
    best = sandbox.call("best", "--json")
    assert best.code == 0, best.text
    return best.json()


def weight(sandbox: Sandbox) -> float:
    state = gpusched.load(sandbox.experiment).state
    return float(next(iter(state["model"].values())))


@pytest.mark.parametrize(
    "groups",
    [False, pytest.param(True, marks=pytest.mark.slow)],
    ids=["", "process groups taken down"],
)
def test_a_loop_of_several_ranks_that_ends_leaves_its_best(sandbox: Sandbox, groups: bool) -> None:
    policy = {"name": REHEARSAL, "steps": 100, "sizes": [2], "R": 200}
    best = search(sandbox, policy=policy, groups=groups)
    assert (best["atoms"], best["step"], best["best_unsaved"]) == (2, STEPS, None)
    assert weight(sandbox) == STEPS


def test_what_was_never_saved_is_told(sandbox: Sandbox) -> None:
    """Steps of 10 ms, of which the best is neither the first (which is saved) nor the last."""
    best = search(sandbox, slow=True, peak=8, step_s=0.01)
    behind = best["best_unsaved"]
    assert best["value"] < 1.0
    assert (behind["trial"], behind["step"], behind["metric"]) == (0, 8, 1.0)
    shown = sandbox.call("best")
    assert "behind the best report, 1.0000 of trial 0 at step 8" in shown.out


@pytest.mark.slow
def test_19_a_copy_that_is_put_aside_is_committed_at_the_deadline(sandbox: Sandbox) -> None:
    """The second step is the best, and too close to the first for another save; the trial never ends by itself."""
    best = search(sandbox, deadline=15, holds=True, steps=100_000, peak=2, step_s=0.4)
    assert (best["step"], best["best_unsaved"]) == (2, None)
    assert weight(sandbox) == 2
    assert sandbox.view()["trials"][0]["step"] > 3


def test_a_model_trained_after_its_last_report_is_not_taken_for_the_reported_one(
    sandbox: Sandbox,
) -> None:
    # So few steps, of 10 ms, that the budget for saves of 0.2 s allows none but the first.
    best = search(sandbox, spoil=True, slow=True, step_s=0.01, steps=4, peak=4)
    assert best["step"] < 4
    assert best["best_unsaved"]["step"] == 4
    assert weight(sandbox) == best["step"]
    logs = sandbox.call("logs", "0")
    assert "step 4 is not saved: the model was trained on after its last report" in logs.out
