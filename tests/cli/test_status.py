"""``gpusched status`` in words."""

from __future__ import annotations

from dataclasses import replace

from gpusched.cli.look import lines
from gpusched.dashboard.model import AtomCounts, Standing, TrialRow, to_json

FAILED = TrialRow(id=3, state="failed", step=2, error="rank 0: ValueError: train.py:4: bad")
VIEW = Standing(
    experiment="digits-1",
    state="finished",
    ending="the first 3 trials failed",
    policy="asha",
    metric="accuracy",
    atoms=AtomCounts(total=1, free=1),
    trials=(*(TrialRow(id=n, state="stopped") for n in range(4, 40)), FAILED),
    trial_counts={"stopped": 36, "failed": 3},
)


def test_why_it_ended_and_failed_stands_above_a_table_of_twenty() -> None:
    first, atoms, failures, _, head, *rows = lines(to_json(VIEW))
    assert first == "digits-1: finished (the first 3 trials failed), policy asha"
    assert atoms == "1 atom: 1 free"
    assert failures.startswith("3 trials failed; the first, trial 3 at step 2: rank 0: ValueError")
    assert head.startswith("trial  state")
    assert rows[-1] == "... and 17 more (--all shows them)"


def test_all_of_them_and_a_search_that_runs() -> None:
    """An error that stands above the table is not repeated in it: the configuration says more."""
    again = replace(FAILED, id=40, hparams={"lr": 0.1})
    other = replace(FAILED, id=41, error="rank 1: killed by SIGSEGV", hparams={"lr": 0.2})
    running = replace(VIEW, state="running", ending=None, time_left_s=75.0, daemon_pid=7)
    running = replace(running, trials=(*VIEW.trials, again, other), warnings=("a full disk",))
    told = lines(to_json(running), everything=True)
    assert told[0] == "digits-1: running, policy asha, 1 min 15 s left, daemon 7"
    assert told[2] == "note: a full disk"
    assert "more (--all" not in told[-1]
    *_, repeated, last = told[-1].splitlines()
    assert repeated.endswith("lr=0.1")
    assert last.endswith("rank 1: killed by SIGSEGV")
    assert "\n".join(told).count("train.py:4: bad") == 1
