"""A trainer that owns its loop: two hooks are enough to be paused, resumed and resized."""

from __future__ import annotations

import json

import pytest

from tests.e2e.sandbox import Sandbox


@pytest.mark.slow
def test_a_trainer_of_its_own_goes_on_where_it_was(sandbox: Sandbox) -> None:
    recipe = sandbox.recipe(
        "trainer.py",
        policy={"name": "profile", "steps": 4, "sizes": [1, 2], "R": 12},
        max_trials=1,
        prestart=False,
    )
    result = sandbox.gpusched("run", recipe)
    assert result.code == 0, result.text
    (trial,) = sandbox.view()["trials"]
    assert trial["incarnation"] > 1, "it was resized"
    lines = (sandbox.experiment / "trials" / "0000" / "reports.jsonl").read_text().splitlines()
    reports = [json.loads(line) for line in lines]
    assert [report["k"] for report in reports] == list(range(1, len(reports) + 1))
    assert [report["m"]["epoch"] for report in reports] == [report["k"] for report in reports]
    rates = [report["m"]["lr"] for report in reports]
    assert rates == pytest.approx([0.5 * 0.5**k for k in range(1, len(rates) + 1)])
