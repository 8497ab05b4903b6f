"""Scripts that use the worker API wrongly, in real runs: a message with what to change."""

from __future__ import annotations

from tests.e2e.sandbox import SCRIPTS, Sandbox

#: misuse -> what the user must be told
TOLD = {
    "lambda": "trial.track(schedule=...): a function has no state_dict()",
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
        space={"fault": {"choice": ["none", *TOLD]}},
        sampler="grid",
        policy={"name": "fifo", "R": 3},
        sizes=[2],
        max_trials=1 + len(TOLD),
        preload=None,
    )
    result = sandbox.gpusched("run", recipe)
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


def test_a_report_of_rank_0_alone_is_found_at_the_first_growth_and_the_trial_goes_on_at_one_rank(
    sandbox: Sandbox,
) -> None:
    recipe = sandbox.recipe(
        "misuse.py",
        space={"fault": {"choice": ["one rank"]}, "step_s": 0.05},
        policy={"name": "hypersched", "R": 40, "cooldown": 0},
        scaling="linear",
        max_trials=1,
        preload=None,
    )
    result = sandbox.gpusched("run", recipe)
    assert result.code == 0, result.text
    (trial,) = sandbox.view()["trials"]
    assert (trial["state"], trial["step"]) == ("completed", 40)
    story = [entry["what"] for entry in sandbox.call("explain", "0", "--json").json()["story"]]
    (failed,) = [what for what in story if "goes back to 1 and grows no more" in what]
    told = f"rank 0 is in trial.report() at line {line_of('one rank')}, rank 1 is in the next of"
    assert f"{told} trial.steps()" in failed
    ups = [what.partition("up on ")[2] for what in story if "up on " in what]
    assert ups == ["1 atom", "2 atoms", "1 atom"], story
