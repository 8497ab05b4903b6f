"""Schedules by step over pauses and other numbers of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR
from torch.utils.data import DataLoader, DistributedSampler, SubsetRandomSampler, TensorDataset

import gpusched
from gpusched.worker.learning_rate import steps_per_epoch
from tests.worker.fakes import Bench, run_ranks, through, values
from tests.worker.models import linear

EPOCHS = 6
STEPS = 11  # of an epoch of 21 samples in batches of 2


def course() -> list[float]:
    """The rate after each step of one rank that is never resized."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    scheduler = OneCycleLR(optimizer, max_lr=0.1, total_steps=EPOCHS * STEPS)
    rates = [optimizer.param_groups[0]["lr"]]
    for _ in range(EPOCHS * STEPS):
        optimizer.step()
        scheduler.step()
        rates.append(optimizer.param_groups[0]["lr"])
    return rates


def train(path: Path) -> None:
    """Write base steps and rate after each step."""
    trial = gpusched.init()
    model, optimizer = linear()
    data = TensorDataset(torch.ones(21, 1))
    steps = trial.steps_per_epoch(DataLoader(data, batch_size=2))
    inner = OneCycleLR(optimizer, max_lr=0.1, total_steps=EPOCHS * steps)
    schedule = trial.schedule(inner, steps_per_epoch=steps)
    trial.track(model=model, opt=optimizer, schedule=schedule)
    for epoch in range(trial.step, EPOCHS):
        for _ in range(-(-steps // trial.world_size)):
            optimizer.step()
            schedule.step()
            if trial.rank == 0:
                with path.open("a") as file:
                    print(schedule.base_steps, optimizer.param_groups[0]["lr"], file=file)
        assert schedule.base_steps == (epoch + 1) * STEPS, "an epoch ends as on one rank"
        trial.report(accuracy=0)


def test_a_schedule_by_step_over_a_loader_of_the_scripts_own_keeps_its_course(
    bench: Bench,
) -> None:
    expected, path = course(), bench.root / "seen"
    through(bench, train, [(1, 1), (4, 3), (2, 5), (1, 6)], path)
    seen = [line.split() for line in path.read_text().splitlines()]
    assert len(seen) < EPOCHS * STEPS
    assert int(seen[-1][0]) == EPOCHS * STEPS
    for steps, rate in seen:
        assert float(rate) == pytest.approx(expected[int(steps)], abs=1e-9)


def test_a_schedule_is_the_identity_with_a_global_batch(bench: Bench) -> None:
    def script(local: bool) -> int:
        trial = gpusched.init()
        if local:
            assert trial.local_batch(8) == 4
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
        trial.scale_lr(optimizer)
        schedule = trial.schedule(CosineAnnealingLR(optimizer, T_max=9), steps_per_epoch=2)
        for _ in range(3):
            optimizer.step()
            schedule.step()
        return int(schedule.last_epoch)

    assert values(run_ranks(script, 2, bench, 1, (True,))) == [3, 3]
    bench.prepare(batch="global")
    assert values(run_ranks(script, 2, bench, 2, (False,))) == [3, 3]


def test_steps_of_an_epoch_are_those_that_the_sampler_draws() -> None:
    """A schedule was made for the whole data set where a sampler draws 30 of 40; of a rank's share it is the whole."""
    data = TensorDataset(torch.zeros(40, 1))
    part: Any = SubsetRandomSampler(range(30))
    part.dataset = data  # as many samplers keep it
    share = DistributedSampler(data, num_replicas=2, rank=0)
    for sampler, steps in ((part, 8), (share, 10)):
        loader = DataLoader(data, batch_size=4, sampler=sampler)
        assert steps_per_epoch(loader) == steps
        assert steps_per_epoch(loader, has_shares=True) == (5 if sampler is share else steps)
