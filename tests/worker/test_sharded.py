"""FSDP2 over gloo: sharded models are saved whole, and go on with any number of ranks, sharded or not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import gpusched
from tests.worker.fakes import Bench, at_step, daemon, run_ranks
from tests.worker.test_ranks import digits


def train(shard: bool, together: bool = True) -> list[float]:
    """Whole weights after three epochs; AdamW, so that the optimizer's state matters."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    trial = gpusched.init()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 1)).double()
    model = trial.wrap(net, shard=shard)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    trial.scale_lr(optimizer)
    loader = trial.loader(digits(), batch_size=5)
    if together:
        trial.track(model=model, opt=optimizer, sched=schedule)
    else:
        trial.track(opt=optimizer)
    for _ in trial.steps(limit=3):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            if loader.mid_epoch:
                trial.report(accuracy=0.0)
        trial.report(accuracy=0.0)
        schedule.step()
    whole = StateDictOptions(full_state_dict=True, cpu_offload=False)
    state = get_model_state_dict(model, options=whole)
    return torch.cat([entry.flatten() for entry in state.values()]).tolist()


def resized(bench: Bench, plan: list[tuple[int, bool, int]]) -> list[float]:
    bench.prepare(batch="global")
    for incarnation, (ranks, shard, step) in enumerate(plan, start=1):
        with daemon(bench, at_step(**{"yield": step})):
            ended = run_ranks(train, ranks, bench, incarnation, (shard,))
        assert not any(rank.error for rank in ended), [rank.error for rank in ended]
        assert bench.last_word(incarnation) is not None
    weights: list[float] = ended[0].value
    return weights


END = 10**6


@pytest.mark.parametrize(
    "plan",
    [
        [(2, True, 3), (3, True, 6), (1, True, 8), (2, True, END)],
        [(1, False, 3), (2, True, 7), (3, False, END)],
    ],
)
def test_sharded_training_resized_anywhere_gives_the_same_weights(
    bench: Bench, plan: list[tuple[int, bool, int]]
) -> None:
    expected = resized(Bench(bench.root / "whole"), [(1, False, END)])
    assert resized(Bench(bench.root / "moved"), plan) == pytest.approx(expected, abs=1e-9, rel=1e-9)


def test_an_optimizer_without_its_model_is_told(bench: Bench) -> None:
    with daemon(bench, at_step(**{"yield": 1})):
        ended: Any = run_ranks(train, 2, bench, 1, (True, False))
    assert "trial.track(model=model, opt=opt), in one call" in ended[0].error
