"""State that no checkpoint holds: a script that tracks all of it is left alone, however it is made."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import ChainedScheduler, ConstantLR

from gpusched.worker.forgotten import AtWork


class Lookahead(torch.optim.Optimizer):
    """An optimizer around another, which saves that one's state with its own, or forgets it."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner.param_groups, {})
        self.inner = inner

    def step(self, closure: Any = None) -> None:
        self.inner.step()

    def state_dict(self) -> Any:
        return {"inner": self.inner.state_dict()}


class Forgetting(Lookahead):
    state_dict = torch.optim.Optimizer.state_dict


class Replay:
    """A memory of many plain entries."""

    def __init__(self) -> None:
        self.entries = [(number,) for number in range(20_000)]

    def state_dict(self) -> Any:
        return {"entries": self.entries}


def steps(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()


def chained(optimizer: SGD) -> dict[str, Any]:
    return {"opt": optimizer, "sched": ChainedScheduler([ConstantLR(optimizer)])}


@pytest.mark.parametrize(
    ("make", "lost"),
    [
        (chained, None),
        (lambda optimizer: {"opt": chained(optimizer)["opt"]}, "has a scheduler of its rate"),
        (lambda optimizer: {"opt": optimizer, "memory": Replay()}, None),
        (lambda optimizer: {"memory": Replay()}, "steps an optimizer (SGD)"),
        (lambda optimizer: {"opt": Lookahead(optimizer)}, None),
        (lambda optimizer: {"opt": Forgetting(optimizer)}, "steps an optimizer (SGD)"),
    ],
    ids=["chained", "chain lost", "long list", "beside a long list", "saves", "does not save"],
)
def test_what_is_saved_is_not_forgotten(
    make: Callable[[SGD], dict[str, Any]], lost: str | None
) -> None:
    at_work = AtWork()
    at_work.watch()
    model = nn.Linear(2, 2)
    optimizer = SGD(model.parameters(), lr=0.1)
    tracked = {"model": model, **make(optimizer)}
    steps(model, optimizer)
    found = at_work.forgotten(tracked)
    assert found is None if lost is None else lost in str(found)


def test_a_copy_for_evaluation_may_be_in_half_precision() -> None:
    at_work = AtWork()
    model = nn.Linear(2, 2)
    evaluated = copy.deepcopy(model).to(torch.bfloat16)
    for _ in range(3):
        with torch.no_grad():
            model.weight.mul_(0.7)
        evaluated.load_state_dict(model.state_dict())
        at_work.look_at_copies({"model": model})
    assert at_work.forgotten({"model": model}) is None


def test_copies_of_a_model_that_cannot_be_compared_with_are_left_alone() -> None:
    at_work = AtWork()
    table = nn.ParameterList([nn.Parameter(torch.eye(2).to_sparse())])
    evaluated = nn.ParameterList([nn.Parameter(torch.eye(2))])
    for _ in range(3):
        at_work.look_at_copies({"table": table})
        with torch.no_grad():
            evaluated[0].mul_(0.5)
    assert at_work.forgotten({"table": table}) is None


def test_copies_without_values_to_read_are_passed_over_and_others_are_noticed() -> None:
    at_work = AtWork()
    model = nn.Linear(2, 2)
    average = copy.deepcopy(model)
    unread = [
        nn.Linear(2, 2, device="meta"),  # as ensembles are written with torch.func
        nn.LazyLinear(2),
        nn.ParameterList([nn.Parameter(torch.eye(2).to_sparse())]),
    ]
    at_work.look_at_copies({"model": model})
    at_work.look_at_copies({"model": model})
    assert at_work.forgotten({"model": model}) is None
    with torch.no_grad():
        for each in average.parameters():
            each.mul_(0.5)
    at_work.look_at_copies({"model": model})
    assert "a Linear that no optimizer moves" in str(at_work.forgotten({"model": model}))
    assert len(unread) == 3
