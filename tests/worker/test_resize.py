"""Effective rates against rates computed by hand, as the optimizer saw them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count, pairwise
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler as schedulers
from torch.utils.data import IterableDataset

import gpusched
from gpusched.worker.learning_rate import (
    AUTO_POWER,
    Clock,
    RateScaler,
    bare_optimizer,
    power_for,
)
from tests.worker.fakes import Bench, at_step, daemon, run_ranks, values
from tests.worker.models import descend

STEPS_PER_EPOCH = 2


class Rig:
    """One parameter, an optimizer, a clock that a data set of two batches an epoch would give."""

    def __init__(
        self,
        target: float,
        is_warm: bool = False,
        make: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
        groups: tuple[float, ...] = (0.1,),
        **options: Any,
    ) -> None:
        self.parameters = [torch.nn.Parameter(torch.zeros(1)) for _ in groups]
        self.optimizer = make(
            [{"params": [p], "lr": lr} for p, lr in zip(self.parameters, groups, strict=True)],
            **options,
        )
        self.batches = 0
        self.clock = Clock(reports=5) if is_warm else Clock([self])
        self.scaler = RateScaler(bare_optimizer(self.optimizer), target, self.clock)
        self.used: list[list[float]] = []
        self.optimizer.register_step_pre_hook(self._note)

    base_length = STEPS_PER_EPOCH

    @property
    def passes(self) -> float:
        return self.batches / STEPS_PER_EPOCH

    def _note(self, optimizer: torch.optim.Optimizer, *rest: Any) -> None:
        self.used.append([float(group["lr"] or 0.0) for group in optimizer.param_groups])

    def step(self, times: int = 1) -> list[float]:
        for _ in range(times):
            self.batches += 1
            for parameter in self.parameters:
                parameter.grad = torch.ones(1)
            getattr(self.optimizer, "second_step", self.optimizer.step)()
        return [rates[0] for rates in self.used[-times:]]


class SAM(torch.optim.Optimizer):
    """As github.com/davda54/sam: an optimizer around another, whose state it lacks and which it steps alone."""

    def __init__(self, parameters: Any, base_optimizer: Any, **options: Any) -> None:
        super().__init__(parameters, options)
        self.base_optimizer = base_optimizer(self.param_groups, **options)
        self.param_groups = self.base_optimizer.param_groups

    def second_step(self, closure: Any = None) -> None:
        self.base_optimizer.step()

    step = second_step


OPTIMIZERS = [
    (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 1e-4}),
    (torch.optim.Adam, {"fused": True}),
    (SAM, {"base_optimizer": torch.optim.SGD, "momentum": 0.9}),
]


@pytest.mark.parametrize(("make", "options"), OPTIMIZERS)
def test_every_optimizer_moves_as_with_a_rate_set_by_hand(make: Any, options: Any) -> None:
    rig = Rig(target=4.0, make=make, **options)
    rig.step(12)
    by_hand = torch.nn.Parameter(torch.zeros(1))
    optimizer = make([by_hand], lr=0.1, **options)
    for i in range(12):
        optimizer.param_groups[0]["lr"] = 0.1 * (1 + 3 * min(i, 10) / 10)
        by_hand.grad = torch.ones(1)
        getattr(optimizer, "second_step", optimizer.step)()
    assert rig.parameters[0].item() == pytest.approx(by_hand.item(), rel=1e-5)


def test_a_rate_that_the_optimizer_sets_itself_is_left_alone_and_others_keep_their_proportion() -> (
    None
):
    rig = Rig(target=3.0, is_warm=True, groups=(0.1, 0.01, 0.0))
    rig.step()
    assert rig.used == [pytest.approx([0.3, 0.03, 0.0])]

    class OwnRate(torch.optim.SGD):
        def step(self, closure: Any = None) -> None: ...

    rig = Rig(target=4.0, make=OwnRate)
    rig.optimizer.param_groups[0]["lr"] = None
    rig.optimizer.step()
    assert rig.optimizer.param_groups[0]["lr"] is None


def test_a_rate_that_is_a_tensor_stays_that_tensor() -> None:
    rate = torch.tensor(0.1)
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=rate)
    RateScaler(optimizer, 4.0, Clock(reports=5))
    parameter.grad = torch.ones(1)
    optimizer.step()
    assert parameter.item() == pytest.approx(-0.4)
    assert optimizer.param_groups[0]["lr"] is rate
    assert rate.item() == pytest.approx(0.1)


def stepped(make: Callable[[torch.optim.Optimizer], Any], target: float, feed: bool) -> list[float]:
    rig = Rig(target=target, is_warm=True)
    scheduler = make(rig.optimizer)
    seen = []
    for number in range(12):
        rig.step()
        seen.append(rig.optimizer.param_groups[0]["lr"])
        scheduler.step(*([1.0 + number % 2] if feed else []))
    return [*seen, *(rates[0] for rates in rig.used)]


SCHEDULERS: list[tuple[Callable[[Any], Any], bool]] = [
    (lambda o: schedulers.LambdaLR(o, lambda n: 1 / (1 + n)), False),
    (lambda o: schedulers.CosineAnnealingLR(o, 10), False),
    (lambda o: schedulers.OneCycleLR(o, 0.3, total_steps=20, cycle_momentum=False), False),
    (lambda o: schedulers.ReduceLROnPlateau(o, patience=1), True),
    (
        lambda o: schedulers.SequentialLR(
            o, [schedulers.LinearLR(o, 0.1), schedulers.ExponentialLR(o, 0.9)], [4]
        ),
        False,
    ),
]


@pytest.mark.parametrize(("make", "feed"), SCHEDULERS)
def test_every_scheduler_sees_the_base_rate_and_is_scaled(
    make: Callable[[Any], Any], feed: bool
) -> None:
    plain = stepped(make, 1.0, feed)
    scaled = stepped(make, 4.0, feed)
    assert scaled[:12] == pytest.approx(plain[:12])
    assert scaled[12:] == pytest.approx([4 * rate for rate in plain[12:]])


def test_a_step_that_raised_leaves_the_base_rate() -> None:
    rig = Rig(target=4.0, is_warm=True)

    def closure() -> float:
        assert rig.optimizer.param_groups[0]["lr"] == pytest.approx(0.4)
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        rig.optimizer.step(closure)
    assert rig.step() == pytest.approx([0.4])
    assert rig.optimizer.param_groups[0]["lr"] == 0.1


def test_a_step_skipped_by_the_gradient_scaler_does_not_move_the_ramp() -> None:
    rig = Rig(target=4.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for gradient in (1.0, float("inf"), 1.0):
        rig.batches += 1
        rig.parameters[0].grad = torch.tensor([gradient])
        scaler.scale(torch.zeros(1))  # makes the scaler's state, as the loss would
        scaler.step(rig.optimizer)
        scaler.update()
    assert [rates[0] for rates in rig.used] == pytest.approx([0.1, 0.13])


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return (torch.full((1,), float(number)) for number in count())


def reporting_iterations(until: int, data: str) -> list[float]:
    """Rates (base 1) of a script with a loop of its own, that reports every 20th iteration as that step."""
    trial = gpusched.init()
    model = trial.wrap(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    trial.scale_lr(optimizer)
    seen: list[float] = []
    optimizer.register_step_pre_hook(lambda *_: seen.append(optimizer.param_groups[0]["lr"]))
    batches = iter(trial.loader(Endless(), batch_size=1)) if data == "endless" else None
    if data == "for evaluation":
        trial.loader(range(8), batch_size=1)
    trial.track(model=model, opt=optimizer)
    for iteration in range(trial.step, until):
        x = next(batches) if batches else torch.full((1, 1), float(trial.rank + iteration))
        descend(optimizer, (1e-6 * model(x)).sum())
        if (iteration + 1) % 20 == 0:
            trial.report(step=iteration + 1, accuracy=0)
    return seen


@pytest.mark.parametrize("data", ["of its own", "for evaluation", "endless"])
def test_iterations_as_steps_warm_up_over_reports_not_over_steps(bench: Bench, data: str) -> None:
    """With data of the script's own, perhaps beside a loader for evaluation, and with an endless stream."""
    with daemon(bench, at_step(**{"yield": 200})):
        run_ranks(reporting_iterations, 1, bench, 1, (1000, data))
    for rates in values(run_ranks(reporting_iterations, 2, bench, 2, (340, data))):
        assert rates[0] == 1.0
        assert rates[19::20][:6] == pytest.approx([1.0, 1.2, 1.4, 1.6, 1.8, 2.0])
        assert sum(after > before for before, after in pairwise(rates)) == 5


class Prodigy(torch.optim.Optimizer):
    """Of Adam's kin by what it is made with, not by its name."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr, "betas": (0.9, 0.999)})


@pytest.mark.parametrize(
    ("kind", "power", "expected"),
    [
        (torch.optim.SGD, 1.0, 1.0),
        (torch.optim.SGD, AUTO_POWER, 1.0),
        (torch.optim.AdamW, AUTO_POWER, 0.5),
        (torch.optim.RMSprop, AUTO_POWER, 0.5),
        (Prodigy, AUTO_POWER, 0.5),
        (partial(SAM, base_optimizer=torch.optim.AdamW), AUTO_POWER, 0.5),
        (torch.optim.Adam, 0.0, 0.0),
    ],
)
def test_the_power_by_the_kind_of_optimizer(kind: Any, power: float, expected: float) -> None:
    assert power_for(kind([torch.zeros(1)], lr=0.1), power) == expected
