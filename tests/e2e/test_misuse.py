"""A script that uses the worker API wrongly, in real runs: one message for each, with the line to change."""

from __future__ import annotations

import pytest

from tests.e2e.sandbox import SCRIPTS, Sandbox

#: misuse -> what the user must be told
TOLD = {
    "no track": "never calls trial.track(...)",
    "lambda": "trial.track(schedule=...): a function has no state_dict()",
    "sampler": "gpusched shards and shuffles by itself; leave the sampler out",
    "one rank": "the ranks of this trial make different calls",
    "fewer": "rank 0 has come to its end",
}


def line_of(fault: str) -> int:
    lines = (SCRIPTS / "misuse.py").read_text().splitlines()
    (number,) = (n for n, line in enumerate(lines, 1) if fault in line.partition("# here:")[2])
    return number


def test_every_misuse_is_named_with_its_line(sandbox: Sandbox) -> None:
    recipe = sandbox.recipe(
        "misuse.py",
        space={"fault": {"grid": ["none", *TOLD]}},
        policy={"name": "fifo", "R": 3, "atoms": 2},
        max_trials=1 + len(TOLD),
    )
    result = sandbox.gpusched("run", recipe, timeout_s=120)
    assert result.code == 0, result.text
    trials = {trial["hparams"]["fault"]: trial for trial in sandbox.view()["trials"]}
    assert trials["none"]["state"] == "completed"
    for fault, told in TOLD.items():
        trial = trials[fault]
        assert trial["state"] == "failed", fault
        assert told in trial["error"], (fault, trial["error"])
        line = f"line {line_of(fault)}" if fault in ("one rank", "fewer") else f"{line_of(fault)}"
        assert line in trial["error"], (fault, trial["error"])
        assert "Traceback" not in trial["error"]


@pytest.mark.slow
def test_a_model_whose_shape_depends_on_the_number_of_ranks(sandbox: Sandbox) -> None:
    recipe = sandbox.recipe(
        "misuse.py",
        space={"fault": "shape"},
        policy={"name": "profile", "sizes": [1, 2], "steps": 2},
        max_trials=1,
    )
    result = sandbox.gpusched("run", recipe)
    (trial,) = sandbox.view()["trials"]
    assert trial["state"] == "failed", result.text
    assert "trial.track(model=...): the checkpoint of step 2 does not fit" in trial["error"]
    assert f"misuse.py:{line_of('shape')}" in trial["error"]
