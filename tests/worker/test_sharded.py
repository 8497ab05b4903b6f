"""FSDP2 over gloo: sharded models are saved whole, and go on with any number of ranks, sharded or not."""

from __future__ import annotations

import os
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import gpusched
from tests.worker.fakes import END, Bench, run_ranks, through
from tests.worker.models import descend, weights_of
from tests.worker.test_ranks import digits


def train(*shards: bool) -> list[float]:
    """Whole weights after three epochs, by whether each launch is sharded; AdamW: the optimizer's state matters."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    trial = gpusched.init()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 1)).double()
    model = trial.wrap(net, shard=shards[int(os.environ["GPUSCHED_INCARNATION"]) - 1])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    trial.scale_lr(optimizer)
    loader = trial.loader(digits(), batch_size=5)
    trial.track(model=model, opt=optimizer, sched=schedule)
    for _ in trial.steps(limit=3):
        for x, y in loader:
            descend(optimizer, nn.functional.mse_loss(model(x), y))
            if loader.mid_epoch:
                trial.report(accuracy=0.0)
        trial.report(accuracy=0.0)
        schedule.step()
    whole = StateDictOptions(full_state_dict=True, cpu_offload=False)
    state = get_model_state_dict(getattr(model, "module", model), options=whole)
    return torch.cat([entry.flatten() for entry in state.values()]).tolist()


def resized(bench: Bench, plan: list[tuple[int, bool, int]]) -> list[float]:
    bench.prepare(batch="global")
    shards = [shard for _, shard, _ in plan]
    *_, weights = through(bench, train, [(ranks, step) for ranks, _, step in plan], *shards)
    return weights[0]


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


def by_hand(steps: int = 4) -> list[float]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    trial = gpusched.init()
    torch.manual_seed(0)
    net: nn.Module = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3)).double()
    if trial.world_size > 1:
        net = fully_shard(net, mesh=init_device_mesh("cpu", (trial.world_size,)))
    model: Any = torch.compile(net, backend="eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    trial.track(model=model, opt=optimizer)
    for _ in range(trial.step, steps):
        descend(optimizer, model(torch.ones(2, 4).double()).square().sum())
        trial.report(accuracy=0)
    if trial.world_size > 1:
        return []
    return weights_of(model)


def test_a_model_that_is_sharded_by_hand_and_compiled_is_saved_whole(bench: Bench) -> None:
    ((alone,),) = through(bench.beside("whole"), by_hand, [(1, END)])
    *_, (moved,) = through(bench.beside("moved"), by_hand, [(1, 1), (2, 3), (1, END)])
    assert moved == pytest.approx(alone, abs=1e-9)


def with_fsdp1() -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel

    warnings.simplefilter("ignore")  # of what is deprecated in torch itself
    trial = gpusched.init()
    trial.track(model=FullyShardedDataParallel(nn.Linear(2, 2), device_id=torch.device("cpu")))


def test_fsdp1_is_refused_with_what_to_write(bench: Bench) -> None:
    for rank in run_ranks(with_fsdp1, 2, bench):
        assert "trial.wrap(model, shard=True)" in rank.error
