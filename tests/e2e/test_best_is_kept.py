"""``gpusched best`` names the best report, however its trial ended, or says how far behind that it is."""

from __future__ import annotations

from typing import Any

import gpusched
from gpusched.policies.rehearsal import REHEARSAL
from tests.e2e.sandbox import Sandbox

STEPS = 12


def search(sandbox: Sandbox, *, policy: dict[str, Any] | None = None, **space: Any) -> Any:
    """Run ``own_loop.py`` once; what ``best --json`` says of it."""
    recipe = sandbox.recipe(
        "own_loop.py",
        space={"steps": STEPS, "peak": STEPS, "step_s": 0.03, **space},
        policy=policy or {"name": "fifo", "R": 100},
        max_trials=1,
        devices="cpu:3",
    )
    result = sandbox.gpusched("run", recipe)
    assert result.code == 0, result.text
    best = sandbox.call("best", "--json")
    assert best.code == 0, best.text
    return best.json()


def weight(sandbox: Sandbox) -> float:
    state = gpusched.load(sandbox.experiment).state
    return float(next(iter(state["model"].values())))


def test_a_loop_of_several_ranks_that_ends_leaves_its_best(sandbox: Sandbox) -> None:
    policy = {"name": REHEARSAL, "steps": 100, "sizes": [2], "R": 200}
    best = search(sandbox, policy=policy)
    assert (best["atoms"], best["step"], best["best_unsaved"]) == (2, STEPS, None)
    assert weight(sandbox) == STEPS


def test_what_was_never_saved_is_told(sandbox: Sandbox) -> None:
    """Steps of 10 ms, of which the best is neither the first (which is saved) nor the last."""
    best = search(sandbox, slow=True, peak=8, step_s=0.01)
    behind = [best["best_unsaved"][key] for key in ("id", "best_step", "best_metric")]
    assert best["value"] < 1.0
    assert behind == [0, 8, 1.0]
    shown = sandbox.call("best")
    assert "behind the best report, 1.0000 of trial 0 at step 8" in shown.out


def test_a_model_trained_after_its_last_report_is_not_taken_for_the_reported_one(
    sandbox: Sandbox,
) -> None:
    # So few steps, of 10 ms, that the budget for saves of 0.2 s allows none but the first.
    best = search(sandbox, spoil=True, slow=True, step_s=0.01, steps=4, peak=4)
    assert best["step"] < 4
    assert best["best_unsaved"]["best_step"] == 4
    assert weight(sandbox) == best["step"]
    logs = sandbox.call("logs", "0")
    assert "step 4 is not saved: the model was trained on after its last report" in logs.out
