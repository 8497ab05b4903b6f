"""A script that uses the worker API wrongly, in a real run: a message with what to change."""

from __future__ import annotations

from tests.e2e.sandbox import SCRIPTS, Sandbox


def test_a_report_of_rank_0_alone_is_found_at_the_first_growth_and_the_trial_goes_on_at_one_rank(
    sandbox: Sandbox,
) -> None:
    recipe = sandbox.recipe(
        "misuse.py",
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
    lines = (SCRIPTS / "misuse.py").read_text().splitlines()
    (line,) = (number for number, text in enumerate(lines, 1) if text.endswith("# here"))
    told = f"rank 0 is in trial.report() at line {line}, rank 1 is in the next of trial.steps()"
    assert "the ranks of this trial make different calls" in failed
    assert told in failed
    ups = [what.partition("up on ")[2] for what in story if "up on " in what]
    assert ups == ["1 atom", "2 atoms", "1 atom"], story
