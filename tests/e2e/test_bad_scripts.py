"""What a training script can do wrong: one clear message, the right exit code, nothing else suffers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.e2e.sandbox import Sandbox

#: fault -> (exit code of ``run``, what the user must be told)
FAULTS = {
    "before the loop": (3, ": the data set is missing"),
    "silent": (3, "without a report"),
    "exit code": (3, "7"),
    "segfault": (3, "SIGSEGV"),
    "text": (3, "score"),
    "nothing": (3, "score"),
    "other metric": (3, "'score'"),
    "10 MB": (3, "report"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_every_trial_fails_the_same_way(sandbox: Sandbox, fault: str) -> None:
    code, message = FAULTS[fault]
    result = sandbox.gpusched(
        "run", sandbox.recipe("bad.py", space={"fault": fault}, max_trials=20)
    )
    assert result.code == code, result.text
    assert message in result.text
    trials = sandbox.view()["trials"]
    assert {trial["state"] for trial in trials} <= {"failed", "stopped"}
    # Given up after max_failures (3), not after 20; the two that ran beside it may have failed as well.
    assert sum(trial["state"] == "failed" for trial in trials) <= 4


def test_a_rank_that_raises_ends_the_trial_with_its_own_error(sandbox: Sandbox) -> None:
    recipe = sandbox.recipe(
        "bad.py",
        space={"fault": "step 3 on rank 1"},
        policy={"name": "fifo", "R": 10, "atoms": 2},
        max_trials=1,
    )
    sandbox.gpusched("run", recipe)
    (trial,) = sandbox.view()["trials"]
    assert trial["state"] == "failed"
    assert re.search(r"ValueError: bad\.py:\d+: a bad batch", trial["error"])


@pytest.mark.parametrize("fault", ["nan", "inf"])
def test_a_metric_that_is_not_finite_ranks_worst_and_ends_nothing(
    sandbox: Sandbox, fault: str
) -> None:
    recipe = sandbox.recipe("bad.py", space={"fault": {"grid": [fault, "none"]}})
    result = sandbox.gpusched("run", recipe)
    assert result.code == 0, result.text
    best = sandbox.gpusched("best", "--json").json()
    assert best["hparams"]["fault"] == "none"
    assert {trial["step"] for trial in sandbox.view()["trials"]} == {3}


@pytest.mark.parametrize("fault", ["hangs", "ignores SIGTERM", "stopped", "grandchildren"])
def test_the_deadline_holds_whatever_a_trial_does(sandbox: Sandbox, fault: str) -> None:
    recipe = sandbox.recipe(
        "bad.py",
        space={"fault": {"grid": [fault, "none"]}},
        policy={"name": "fifo", "R": 100000},
        deadline="1h",
        grace="1s",
    )
    assert sandbox.gpusched("run", recipe, "--detach").code == 0
    # Both have come to their loops, however long that takes; then the hour is over.
    sandbox.wait_for(lambda view: [trial["step"] > 0 for trial in view["trials"]] == [True, True])
    assert sandbox.gpusched("deadline", "1s").code == 0
    result = sandbox.gpusched("watch")
    assert result.code == 0, result.text + sandbox.log()
    view = sandbox.view()
    assert view["ending"] == "deadline"
    assert view["deadline_s"] - 1 <= view["now_s"] < view["deadline_s"] + 60
    # That nothing is left of it, the fixture asserts.


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("raise ImportError('no such thing')", "ImportError: broken.py:1: no such thing"),
        ("import nonexistent_module_of_mine", "nonexistent_module_of_mine"),
    ],
)
def test_a_script_that_fails_at_import(
    sandbox: Sandbox, tmp_path: Path, text: str, message: str
) -> None:
    script = tmp_path / "broken.py"
    script.write_text(f"{text}\n")
    result = sandbox.gpusched("run", sandbox.recipe(str(script)))
    assert result.code == 3
    assert message in result.text
