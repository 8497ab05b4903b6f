"""Scripts that would train a model wrongly without an error: each is refused or told, with the line to change."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import OneCycleLR, StepLR

import gpusched
from tests.worker.fakes import Bench, at_step, daemon, run_ranks
from tests.worker.test_ranks import values


def train(how: str, steps: int = 3) -> float:
    trial = gpusched.init()
    model: Any = nn.Linear(3, 1)
    if how == "wrap":
        model = trial.wrap(model)
    elif how == "ddp" and trial.world_size > 1:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scheduler: Any = OneCycleLR(optimizer, 0.1, total_steps=99)
    if how == "epochs":
        scheduler = StepLR(optimizer, 1)
    trial.track(model=model, opt=optimizer, **({} if how == "apart" else {"sched": scheduler}))
    for _ in range(trial.step, steps):
        for _ in range(4):
            optimizer.zero_grad()
            x = torch.ones(1, 3) if how == "same" else torch.randn(1, 3)
            model(x).sum().backward()
            optimizer.step()
            if how not in ("epochs", "apart"):
                scheduler.step()
        if how == "epochs":
            scheduler.step()
        trial.report(accuracy=0)
    return float(scheduler.last_epoch)


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("apart", "ranks 0 and 1 have trained apart"),
        ("same", "the 2 ranks of this trial do the same work, each for itself"),
    ],
)
def test_ranks_that_do_not_train_together_are_refused(bench: Bench, how: str, told: str) -> None:
    for rank in run_ranks(train, 2, bench, arguments=(how,)):
        assert told in rank.error
        assert "model = trial.wrap(model)" in rank.error
        assert "sizes: [1]" in rank.error
    assert bench.reports() == []


@pytest.mark.parametrize("how", ["wrap", "ddp"])
def test_a_schedule_by_step_that_nothing_counts_is_told_and_refused_after_a_resize(
    bench: Bench, how: str
) -> None:
    with daemon(bench, at_step(**{"yield": 2})):
        (first,) = run_ranks(train, 1, bench, 1, (how,))
    assert first.code == 0
    assert first.stderr.count("sched = trial.schedule(sched)") == 1
    for rank in run_ranks(train, 2, bench, 2, (how,)):
        assert "this OneCycleLR is stepped 4 times between two reports" in rank.error
    assert [line["k"] for line in bench.reports()] == [1, 2]


def test_a_schedule_by_step_is_right_with_a_global_batch(bench: Bench) -> None:
    bench.prepare(batch="global")
    with daemon(bench, at_step(**{"yield": 2})):
        (first,) = run_ranks(train, 1, bench, 1, ("wrap",))
    assert "trial.schedule" not in first.stderr
    assert values(run_ranks(train, 2, bench, 2, ("wrap",))) == [12.0, 12.0]


def test_a_schedule_by_epoch_needs_nothing(bench: Bench) -> None:
    with daemon(bench, at_step(**{"yield": 2})):
        (first,) = run_ranks(train, 1, bench, 1, ("epochs",))
    assert "trial.schedule" not in first.stderr


def partial_fit(declares: bool) -> list[float]:
    """As a loop over scikit-learn's ``partial_fit``: the model is an object that gpusched knows nothing of."""
    trial = gpusched.init()
    if declares:
        trial.track()
    learnt = []
    for step in range(trial.step, 4):
        learnt.append(float(step))
        trial.report(accuracy=len(learnt))
    return learnt


def test_a_script_without_state_is_warned_at_its_first_save_and_refused_at_the_resume(
    bench: Bench,
) -> None:
    with daemon(bench, at_step(**{"yield": 2})):
        (first,) = run_ranks(partial_fit, 1, bench, 1, (False,))
    assert first.stderr.count("holds nothing of this script") == 1
    (second,) = run_ranks(partial_fit, 1, bench, 2, (False,))
    assert "this launch goes on at step 2, but the script restores nothing" in second.error
    assert "gpusched.pickled(clf)" in second.error
    assert [line["k"] for line in bench.reports()] == [1, 2]
    assert values(run_ranks(partial_fit, 1, bench, 3, (True,))) == [[2.0, 3.0]]
