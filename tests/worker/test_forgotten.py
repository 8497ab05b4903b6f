"""State that no checkpoint holds: a script that tracks all of it is left alone, however it is made."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import ChainedScheduler, ConstantLR

from gpusched.worker.forgotten import AtWork
from gpusched.worker.training import PlainState


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Spare these small models the barriers between threads, which take longest on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


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


class OfSwig(type):
    """A class of classes without a module, as SWIG makes them: of Box2D, for one."""

    @property
    def __module__(cls) -> str:  # type: ignore[override]
        raise AttributeError("__module__")


class World(metaclass=OfSwig):
    """A world of an environment."""


class Environment(Replay):
    def __init__(self) -> None:
        self.entries, self.world = [], World()


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
        (lambda optimizer: {"opt": optimizer, "environment": Environment()}, None),
        (lambda optimizer: {"opt": Lookahead(optimizer)}, None),
        (lambda optimizer: {"opt": Forgetting(optimizer)}, "steps an optimizer (SGD)"),
    ],
    ids=[
        "chained",
        "chain lost",
        "long list",
        "beside a long list",
        "of swig",
        "saves",
        "does not save",
    ],
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


class Keeper:
    """An object of the script's own that holds tensors beside the model: ``kept`` in a public attribute."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.number = model, 0
        self.kept: Any = {name: value.clone() for name, value in model.state_dict().items()}

    def update(self) -> None:
        """Keep what is kept as it is."""

    def values(self) -> dict[str, torch.Tensor]:
        return {n: v for n, v in self.model.state_dict().items() if v.is_floating_point()}


class InPlace(Keeper):
    def update(self) -> None:
        for name, value in self.values().items():
            self.kept[name].mul_(0.98).add_(value, alpha=0.02)


class Floating(InPlace):
    """Leaves out what counts batches."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.kept = {name: self.kept[name] for name in self.values()}


class Rebound(Keeper):
    """Keeps the trained parameters alone, in a list that is made anew each time."""

    def update(self) -> None:
        before = self.kept.values() if isinstance(self.kept, dict) else self.kept
        shapes = [p for p in self.model.parameters() if p.requires_grad]
        before = before if len(before) == len(shapes) else [p.detach() for p in shapes]
        self.kept = [0.98 * one + 0.02 * p.detach() for one, p in zip(before, shapes, strict=True)]


class Gradients(Keeper):
    def update(self) -> None:
        self.kept = {n: p.grad.clone() for n, p in self.model.named_parameters() if p.requires_grad}


class Momentum(Keeper):
    """A buffer that is filled in place with what the gradients are."""

    def update(self) -> None:
        for name, value in self.model.named_parameters():
            if value.requires_grad:
                self.kept[name].mul_(0.9).add_(value.grad)


class BestOfSome(Keeper):
    """The weights of every seventh step, as if they had been the best so far."""

    def update(self) -> None:
        self.number += 1
        if self.number % 7 == 0:
            self.kept = {name: value.clone() for name, value in self.model.state_dict().items()}


class Halves(BestOfSome):
    def update(self) -> None:
        super().update()
        self.kept = {name: value.bfloat16() for name, value in self.kept.items()}


class Alias(Keeper):
    def update(self) -> None:
        self.kept = self.model.state_dict()


class Clamped(BestOfSome):
    """The model is changed after the optimizer, before it is copied."""

    def update(self) -> None:
        with torch.no_grad():
            for value in self.model.parameters():
                value.clamp_(-0.2, 0.2)
        super().update()


class LastThree(BestOfSome):
    def update(self) -> None:
        self.number += 1
        if self.number % 10 == 0:
            before = self.kept if isinstance(self.kept, list) else []
            copy = {name: value.clone() for name, value in self.model.state_dict().items()}
            self.kept = [*before, copy][-3:]


class Rounded(Keeper):
    def update(self) -> None:
        self.kept = {
            name: (value / value.abs().max() * 7).round() / 7 * value.abs().max()
            for name, value in self.model.named_parameters()
        }
        self.kept = {name: value.detach() for name, value in self.kept.items()}


class Perturbed(Keeper):
    def update(self) -> None:
        self.kept = [
            [p.detach() + 0.02 * torch.randn_like(p) for p in self.model.parameters()]
            for _ in range(50)
        ]


class Adapted(Keeper):
    """The fast weights of the last task, as in MAML."""

    def update(self) -> None:
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.kept = [p - 0.1 * p.grad for p in trained]


class ByHand:
    """An optimizer that is none of torch's."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def zero_grad(self) -> None:
        self.model.zero_grad()

    def step(self) -> None:
        with torch.no_grad():
            for p in self.model.parameters():
                if p.grad is not None:
                    p -= 0.05 * p.grad


def report_six_times(
    keeper: Keeper,
    tracked: dict[str, Any],
    between: Callable[[], None] = lambda: None,
    optimizer: Any = None,
) -> str | None:
    """Train with ten steps between two reports; return what is told in the end."""
    at_work = AtWork()
    at_work.watch()
    model = tracked["model"]
    rates = optimizer or SGD([p for p in model.parameters() if p.requires_grad], lr=0.05)
    target = torch.ones(8, 3)
    at_work.look_for_averages(tracked)
    for _ in range(6):
        for _ in range(10):
            rates.zero_grad()
            (model(torch.rand(8, 4)) - target).square().mean().backward()
            rates.step()
            keeper.update()
        between()
        at_work.look_for_averages(tracked)
    return at_work.forgotten({})


def small_net() -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    net[0].bias.requires_grad_(False)
    return net


@pytest.mark.parametrize("kind", [InPlace, Floating, Rebound])
def test_an_average_that_a_script_keeps_by_hand_is_noticed(kind: type[Keeper]) -> None:
    model = small_net()
    told = str(report_six_times(kind(model), {"model": model}))
    assert told.startswith("keeper.kept is an average of a tracked model's weights")


def test_an_average_in_a_closure_is_noticed() -> None:
    model = small_net()
    shadow = {name: p.detach().clone() for name, p in model.named_parameters()}

    def average() -> None:
        for name, p in model.named_parameters():
            shadow[name].mul_(0.98).add_(p.detach(), alpha=0.02)

    told = str(report_six_times(Keeper(model), {"model": model}, average))
    assert "shadow is an average" in told


@pytest.mark.parametrize(
    "kind",
    [
        *(Keeper, Gradients, Momentum, BestOfSome, Halves, Alias),
        *(Clamped, LastThree, Rounded, Perturbed, Adapted),
    ],
)
def test_tensors_beside_a_model_that_are_no_average_are_left_alone(kind: type[Keeper]) -> None:
    model = small_net()
    assert report_six_times(kind(model), {"model": model}) is None


def test_copies_of_a_model_that_moves_unseen_are_left_alone() -> None:
    model = small_net()
    assert report_six_times(BestOfSome(model), {"model": model}, optimizer=ByHand(model)) is None


def test_a_copy_of_a_tracked_average_is_left_alone() -> None:
    model = small_net()
    average = copy.deepcopy(model).requires_grad_(False)

    class BestAverage(BestOfSome):
        def update(self) -> None:
            with torch.no_grad():
                for one, other in zip(average.parameters(), model.parameters(), strict=True):
                    one.lerp_(other, 0.02)
            super().update()

    assert report_six_times(BestAverage(average), {"model": model, "ema": average}) is None


def test_a_state_may_be_made_of_variables_around_the_class() -> None:
    model = small_net()
    shadow = {name: p.detach().clone() for name, p in model.named_parameters()}

    class Bundle:
        def state_dict(self) -> dict[str, Any]:
            return {"shadow": shadow}

    def average() -> None:
        for name, p in model.named_parameters():
            shadow[name].lerp_(p.detach(), 0.1)

    tracked = {"model": model, "bundle": Bundle()}
    assert report_six_times(Keeper(model), tracked, average) is None


def test_an_average_that_a_checkpoint_holds_is_not_forgotten() -> None:
    model, state = small_net(), PlainState()
    keeper = InPlace(model)
    state["ema"] = keeper.kept
    assert report_six_times(keeper, {"model": model, "trial.state": state}) is None
    keeper = Rebound(model)

    def copy_after_every_report() -> None:
        state["ema"] = [each.clone() for each in keeper.kept]

    tracked = {"model": model, "trial.state": state}
    assert report_six_times(keeper, tracked, copy_after_every_report) is None


def test_a_look_leaves_the_locals_of_the_script_as_they_are() -> None:
    def script(rate: float) -> dict[str, Any]:
        options = locals()
        model = small_net()
        AtWork().look_for_averages({"model": model})
        return dict(options)

    assert script(0.1) == {"rate": 0.1}
    died = []

    class Batch:
        def __del__(self) -> None:
            died.append(True)

    batch, model = Batch(), small_net()
    AtWork().look_for_averages({"model": model})
    del batch
    assert died, "a local that the script deletes must not live on"
