"""Figure ``foresight``: its workloads train, its options are valid, and its table counts right."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture(scope="module")
def study() -> Any:
    sys.path.insert(0, str(SCRIPTS))
    try:
        from papers import foresight

        yield foresight
    finally:
        sys.path.remove(str(SCRIPTS))


def test_every_workload_trains_and_repeats_itself(study: Any) -> None:
    from gpusched.sim.setup import Setup

    for name, kind in study.KINDS.items():
        workload = Setup(workload=kind.workload).load()
        hparams = dict.fromkeys(workload.space(3), 0.4)
        once, again = (workload.curve(3, hparams, 3) for _ in range(2))
        steps = [1, 2, 10, kind.options["R"]]
        metrics = [once.metric(step) for step in range(1, steps[-1] + 1)]
        assert all(math.isfinite(metrics[step - 1]) for step in steps), name
        assert metrics == [again.metric(step) for step in range(1, steps[-1] + 1)], name
        low, high = kind.bounds
        assert low <= metrics[-1] <= high, name


def test_options_are_those_of_the_policies(study: Any) -> None:
    from gpusched import policies
    from gpusched.sim.setup import complete_options

    for kind in study.KINDS.values():
        for policy in (*study.RIVALS, "foresight"):
            chosen = complete_options(policy, study.options(policy, kind))
            assert list(policies.options_type(policy)(**chosen).problems()) == []


def test_the_table_counts_cells_and_the_gap_to_the_best_other(study: Any) -> None:
    from gpusched.sim.setup import Setup
    from gpusched.sim.study import simulate

    situation = study.situations(study.KINDS["digits"])[0]
    results = [
        simulate(
            Setup(
                policy=policy,
                options={"R": 3, "metric_max": 1.0},
                seed=seed,
                label="digits",
                **situation,
            )
        )
        for policy in ("foresight", "asha", "fifo")
        for seed in (0, 1)
    ]
    (row,) = study.table(results)
    assert (row["workload"], row["runs"], row["cells"]) == ("digits", 2, 1)
    regret = {policy: row[policy] for policy in ("foresight", "asha", "fifo")}
    assert min(regret.values()) >= 0.0, "nobody beats the oracle"
    best = min(("asha", "fifo"), key=regret.__getitem__)
    assert row["best_other"] == best
    assert row["behind"] == pytest.approx(regret["foresight"] - regret[best], abs=2e-4)
    assert row["ahead_or_level"] == (regret["foresight"] <= regret[best] + 0.001)


def test_recorded_losses_of_a_transformer_blend_two_curves_that_fall(study: Any) -> None:
    from gpusched.sim.setup import Setup

    workload = Setup(workload=f"{SCRIPTS}/papers/charlm.py:recorded").load()
    ends = []
    for blend in (0.0, 0.5):
        curve = workload.curve(0, {"u": 0.0, "v": 0.99, "blend": blend}, 0)
        first, last, after = (curve.metric(step) for step in (1, 200, 500))
        assert 8 > first > last == after > 2
        ends.append(last)
    assert ends[0] != ends[1]
