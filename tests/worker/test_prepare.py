"""``trial.prepare``: what a script for one rank made, on real ranks; and ranks that all do the same work."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, ReduceLROnPlateau, StepLR
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset

import gpusched
from gpusched.protocol import Remark
from gpusched.worker.data import BatchWeight
from gpusched.worker.loader import TrainingLoader
from tests.worker.fakes import (
    END,
    Bench,
    at_step,
    daemon,
    remarks,
    run_rank,
    run_ranks,
    through,
    values,
)
from tests.worker.models import descend, linear


def regression(length: int) -> TensorDataset:
    x = torch.randn(length, 3, generator=torch.Generator().manual_seed(length)).double()
    return TensorDataset(x, x.sum(1, keepdim=True))


def as_the_tutorial(how: str) -> None:
    """One loop for both phases, as in torch's tutorial on transfer learning: it says in the loop what it records."""
    trial = gpusched.init()
    model, optimizer = linear(3, torch.float64)
    loaders = [DataLoader(regression(n), batch_size=4, shuffle=True) for n in (24, 12)]
    model, optimizer, *loaders = trial.prepare(model, optimizer, *loaders)
    for _ in trial.steps(4, model=model, opt=optimizer):
        for phase, loader in zip(("train", "val"), loaders, strict=True):
            model.train(phase == "train" or how == "measures")
            total = 0.0
            with torch.set_grad_enabled(phase == "train" or how != "says so before"):
                for x, y in loader:
                    with torch.set_grad_enabled(phase == "train"):
                        loss = nn.functional.mse_loss(model(x), y)
                    if phase == "train":
                        descend(optimizer, loss)
                    total += loss.item()
        trial.report(accuracy=total)


@pytest.mark.parametrize("how", ["tutorial", "says so before", "measures"])
def test_a_loader_that_shuffles_and_is_evaluated_on_is_told_and_refused_on_several_ranks(
    bench: Bench, how: str
) -> None:
    """Of a share of the samples a loss is a share: a trial that grew would have won."""
    told = "which each rank has a share, and the script evaluates on it"
    said = remarks(bench, as_the_tutorial, how, answer=at_step(**{"yield": 2}))
    assert [told in text for text in said] == [True] * (how == "tutorial"), said
    for rank in run_ranks(as_the_tutorial, 2, bench, 2, (how,)):
        assert (told in rank.error) == (how == "tutorial"), rank.error


def as_with_accelerate(shuffles: bool, epochs: int = 4) -> None:
    """A script for one rank, with the line that fits it to any number; a loss divided by all samples."""
    trial = gpusched.init()
    torch.manual_seed(0)
    model, optimizer = linear(3, torch.float64)
    train: Any = DataLoader(regression(24), batch_size=8, shuffle=True)
    val: Any = DataLoader(regression(10), batch_size=4, shuffle=shuffles)
    model, optimizer, train, val = trial.prepare(model, optimizer, train, val)
    for _ in trial.steps(epochs, model=model, opt=optimizer):
        for x, y in train:
            descend(optimizer, nn.functional.mse_loss(model(x), y))
        total = 0.0
        with torch.no_grad():
            for x, y in val:
                total += nn.functional.mse_loss(model(x), y, reduction="sum").item()
        assert len(val) == 3
        trial.report(accuracy=total / len(val.dataset))


@pytest.mark.parametrize("shuffles", [False, True])
def test_a_loader_for_evaluation_is_whole_on_every_rank(bench: Bench, shuffles: bool) -> None:
    """One in order, or one that shuffles and is read without gradients, as both of torch's MNIST example on a GPU."""
    seen = []
    for name, plan in (("alone", [(1, END)]), ("resized", [(1, 1), (2, 3), (1, END)])):
        one = bench.beside(name, batch="global")
        through(one, as_with_accelerate, plan, shuffles)
        seen.append([line["m"]["accuracy"] for line in one.reports()])
    assert len(seen[0]) == 4
    assert seen[1] == pytest.approx(seen[0], rel=1e-9)


def share_alone(how: str) -> None:
    """A script whose metric is of each rank's share, of all, or of what rank 0 alone knows."""
    trial = gpusched.init()
    trial.track()
    of_rank_0 = None if trial.rank else 0.5
    shares = {"share": 0.5 + 0.1 * trial.rank, "whole": 0.5, "rank 0": of_rank_0}
    for _ in range(2):
        trial.report(accuracy=shares[how])


@pytest.mark.parametrize(("how", "is_told"), [("share", True), ("whole", False), ("rank 0", False)])
def test_a_metric_of_a_rank_s_share_is_told_once(bench: Bench, how: str, is_told: bool) -> None:
    said = remarks(bench, share_alone, how, ranks=2)
    told = [text for text in said if "trial.mean(" in text]
    assert len(told) == is_told
    assert all("report accuracy 0.5 and 0.6, of which rank 0's counts" in text for text in told)


def schedule_forgotten(how: str, epochs: int = 6) -> list[float]:
    """A schedule by epoch that ``trial.steps`` is not given; the rates that the epochs had."""
    trial = gpusched.init()
    model, optimizer = linear(3, torch.float64)
    schedule: Any = CosineAnnealingLR(optimizer, T_max=epochs)
    model, optimizer = trial.prepare(model, optimizer)
    if how == "prepared":
        schedule = trial.prepare(schedule)
    more = {"sched": schedule} if how == "tracked" else {}
    rates = []
    for _ in trial.steps(epochs, model=model, opt=optimizer, **more):
        descend(optimizer, model(torch.ones(1, 3).double()).sum())
        rates.append(optimizer.param_groups[0]["lr"])
        schedule.step()
        trial.report(accuracy=0.0)
    return rates


@pytest.mark.parametrize(
    ("how", "is_told"), [("prepared", False), ("tracked", False), ("forgotten", True)]
)
def test_a_schedule_that_is_not_tracked_goes_on_if_prepared_and_is_told_if_not(
    bench: Bench, how: str, is_told: bool
) -> None:
    ((whole,),) = through(bench.beside("whole"), schedule_forgotten, [(1, END)], how)
    told = remarks(bench, schedule_forgotten, how, answer=at_step(**{"yield": 3}))
    assert ["a scheduler has set the learning rates" in text for text in told] == [True] * is_told
    with daemon(bench):
        (rates,) = values(run_ranks(schedule_forgotten, 1, bench, 2, (how,)))
    if not is_told:
        assert rates == pytest.approx(whole[3:])


def folds() -> tuple[list[float], int]:
    """Cross-validation: an optimizer and a report for each fold; the rates at their ends, and the optimizers left."""
    trial = gpusched.init()
    trial.state["mean"] = 0.0
    found, made = [], weakref.WeakSet[Any]()
    for _ in trial.steps(4):
        optimizer = torch.optim.SGD(nn.Linear(3, 1).parameters(), lr=0.1)
        made.add(optimizer)
        optimizer, schedule = trial.prepare(optimizer, CosineAnnealingLR(optimizer, T_max=3))
        optimizer.step()
        schedule.step()
        found += schedule.get_last_lr()
        trial.report(accuracy=0.0)
    gc.collect()
    return found, len(made)


def test_the_optimizer_of_a_fold_begins_afresh_and_is_let_go_of(bench: Bench) -> None:
    """The first fold of a launch continued the schedule of the first of all; each model stayed in the GPU's memory."""
    _, ((rates, left),) = through(bench, folds, [(1, 2), (1, END)])
    assert rates == pytest.approx([0.075] * 2)
    assert left == 1


def wrongly(how: str) -> None:
    trial = gpusched.init()
    torch.manual_seed(0)
    model: Any = nn.Linear(3, 1).double()
    if how.endswith("dropout"):
        model = nn.Sequential(model, nn.Dropout(0.5))
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.01)
    data: Any = DataLoader(regression(24), batch_size=4, shuffle="ignored" in how)
    if how.startswith("ignored"):
        trial.prepare(model, optimizer, data)
        data = DataLoader(regression(24), batch_size=4)
    elif how.startswith("in order"):
        model, optimizer, data = trial.prepare(model, optimizer, data)
    elif how == "not shared":
        model = trial.wrap(model)
    else:
        assert how == "own DDP"
        model = nn.parallel.DistributedDataParallel(model)
    trial.track(model=model, opt=optimizer)
    for x, y in data:
        descend(optimizer, nn.functional.mse_loss(model(x), y))
    trial.report(accuracy=0)


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("in order", "write DataLoader(..., shuffle=True), or loader = trial.loader(data"),
        ("in order, dropout", "write DataLoader(..., shuffle=True), or loader = trial.loader(data"),
        ("ignored", "train on the same samples"),
        ("not shared", "train on the same samples"),
        ("own DDP", "train on the same samples"),
    ],
)
def test_ranks_that_read_the_same_samples_are_refused_at_the_first_report(
    bench: Bench, how: str, told: str
) -> None:
    for rank in run_ranks(wrongly, 2, bench, arguments=(how,)):
        assert told in rank.error
    if "own" not in how:
        run_rank(wrongly, bench, 2, how)  # right on one rank


def test_gradients_that_overflow_are_not_taken_for_those_of_the_same_samples() -> None:
    """The first steps of a GradScaler: NaN on every rank, bit for bit the same."""
    weight, model = BatchWeight(), nn.Linear(3, 1)
    weight.weigh(model.parameters())
    (model(torch.rand(2, 3)).sum() * float("inf")).backward()
    assert weight.first_gradients() == b""
    model(torch.rand(2, 3)).sum().backward()
    assert weight.first_gradients()


def divided(kind: str) -> list[float]:
    """Loss over an epoch, divided by a length that was read before training."""
    trial = gpusched.init()
    model, optimizer = linear(3, torch.float64)
    batch = trial.local_batch(8) if "local" in kind else 8
    loader: Any = DataLoader(regression(48), batch_size=batch, shuffle=True)
    model, optimizer, loader = trial.prepare(model, optimizer, loader)
    length = len(loader)
    tracked = {"model": model, "opt": optimizer}
    if "schedule" in kind:
        tracked["sched"] = trial.schedule(CosineAnnealingLR(optimizer, T_max=length))
    trial.track(**tracked)
    counted = len([descend(optimizer, nn.functional.mse_loss(model(x), y)) for x, y in loader])
    with torch.no_grad():  # the accuracy on the data trained on
        assert len([*loader]) == len(loader)
    assert len(loader) == counted, "by which a loss of the training is divided"
    trial.report(accuracy=1.0 / length)
    return [length, counted]


@pytest.mark.parametrize(
    ("kind", "expected", "is_told"),
    [("plain", [6, 3], True), ("schedule", [6, 3], False), ("local", [6, 6], False)],
)
def test_a_length_read_before_training_that_may_divide_a_loss_is_told(
    bench: Bench, kind: str, expected: list[float], is_told: bool
) -> None:
    with daemon(bench) as fake:
        assert values(run_ranks(divided, 2, bench, arguments=(kind,))) == [expected] * 2
        told = [each.text for each in fake.of_kind(Remark) if "before training is 6" in each.text]
    assert bool(told) == is_told
    assert all("test_prepare.py:" in text for text in told)


class ByUpdates:
    """A schedule as timm's, which takes the number of updates, and sets the rates by itself."""

    def __init__(self, optimizer: Any, t_initial: int) -> None:
        self.optimizer, self.t_initial = optimizer, t_initial

    def step(self, epoch: int, metric: Any = None) -> None: ...

    def step_update(self, num_updates: int, metric: Any = None) -> None:
        self.optimizer.param_groups[0]["lr"] = 0.1 * (1 - num_updates / self.t_initial)

    def state_dict(self) -> dict[str, Any]:
        return {"t_initial": self.t_initial}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def scheduled(kind: str, epochs: int = 4) -> list[tuple[float, float]]:
    """Epochs trained on and the rate after each step of the schedule, whose lengths are the script's own."""
    trial = gpusched.init()
    model, optimizer = linear(3, torch.float64)
    loader: Any = DataLoader(regression(48), batch_size=4, shuffle=True)
    if kind == "validation first":
        trial.prepare(DataLoader(regression(12), batch_size=4, shuffle=True))
    model, optimizer, loader = trial.prepare(model, optimizer, loader)
    accumulated = 3 if "accumulating" in kind else 1
    if "looked at before" in kind:
        next(iter(loader))
    length = epochs * len(loader) // accumulated
    made: Any = CosineAnnealingLR(optimizer, T_max=length)
    if "by epoch" in kind:
        made = StepLR(optimizer, 1, gamma=0.5)
    elif "timm" in kind:
        made = ByUpdates(optimizer, length)
    elif "function" in kind:
        made = LambdaLR(optimizer, lambda step: max(0.0, 1 - step / (length * trial.world_size)))
    schedule = trial.prepare(made) if "prepared" in kind else trial.schedule(made)
    trial.track(opt=optimizer, schedule=schedule, model=model)
    seen = []
    while trial.step < epochs:
        for number, (x, y) in enumerate(loader):
            (nn.functional.mse_loss(model(x), y) / accumulated).backward()
            if (number + 1) % accumulated == 0 or number + 1 == len(loader):
                optimizer.step()
                optimizer.zero_grad()
                if "begins late" in kind and trial.step < 2:
                    continue
                if "timm" in kind:
                    schedule.step_update(num_updates=trial.step, metric=None)
                elif "by epoch" not in kind:
                    schedule.step()
                if "by epoch" not in kind:
                    seen.append((loader.epochs_seen, optimizer.param_groups[0]["lr"]))
            if kind == "left by a break" and number == 3:
                break
        for _ in loader if kind == "looked at again" else ():
            pass  # the accuracy on the training data, say
        if "by epoch" in kind:
            schedule.step()
            seen.append((loader.epochs_seen, optimizer.param_groups[0]["lr"]))
        try:
            trial.report(accuracy=0)
        except SystemExit:
            break
    return seen


@pytest.mark.parametrize(
    "kind",
    [
        "by step",
        "validation first",
        "prepared, by step",
        "prepared, by epoch",
        "accumulating",
        "prepared, accumulating",
        "prepared, as in timm",
        "left by a break",
        "looked at again",
        "prepared, looked at before",
        "begins late",
        "begins late, accumulating",
    ],
)
def test_a_schedule_has_the_course_of_one_atom_on_any_number(bench: Bench, kind: str) -> None:
    """The schedule's length is ``epochs * len(loader)``; batches that make a step are counted; ``prepare`` takes it."""
    ((course,),) = through(bench.beside("alone"), scheduled, [(1, END)], kind)
    plan = [(2, 1), (1, 2), (2, 3), (3, END)]
    found = [launch[0] for launch in through(bench.beside("resized"), scheduled, plan, kind)]
    by_epochs = {round(epochs, 6): rate for epochs, rate in course}
    compared = [
        (rate, by_epochs[round(epochs, 6)])
        for launch in found
        for epochs, rate in launch
        if round(epochs, 6) in by_epochs
    ]
    assert len(compared) >= (3 if "by epoch" in kind or "late, acc" in kind else 8)
    for rate, expected in compared:
        assert rate == pytest.approx(expected, abs=1e-9)
    if kind != "left by a break":
        assert found[-1][-1][0] == course[-1][0] == 4


def test_a_schedule_with_numbers_of_the_ranks_is_refused_on_another_number(bench: Bench) -> None:
    with daemon(bench, at_step(**{"yield": 1})):
        values(run_ranks(scheduled, 1, bench, 1, ("function",)))
    for rank in run_ranks(scheduled, 2, bench, 2, ("function",)):
        assert "leave the number of ranks out of them" in rank.error


def prepared_anew() -> int:
    """How many of the data sets are still there, of a loop that makes one in each epoch, as PPO does."""
    trial = gpusched.init()
    model, optimizer = linear(3, torch.float64)
    model, optimizer = trial.prepare(model, optimizer)
    made = []
    for _ in trial.steps(5, model=model, opt=optimizer):
        data = regression(8)
        made.append(weakref.ref(data))
        for x, y in trial.prepare(DataLoader(data, batch_size=4, shuffle=True)):
            descend(optimizer, nn.functional.mse_loss(model(x), y))
        trial.report(accuracy=0)
    gc.collect()
    return sum(each() is not None for each in made)


def test_data_prepared_in_each_epoch_are_let_go_of(bench: Bench) -> None:
    assert values(run_ranks(prepared_anew, 1, bench)) == [1]


class Grouped(BatchSampler):
    """As one that groups samples by length, in an order of its own, whatever sampler it is given."""

    def __iter__(self) -> Iterator[Any]:
        return map(tuple, super().__iter__())


def attributes() -> list[Any]:
    trial = gpusched.init()
    given = DataLoader(regression(24), batch_size=4, shuffle=True, num_workers=0)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    schedules = ReduceLROnPlateau(optimizer), StepLR(optimizer, 1)
    val = DataLoader(regression(9), batch_size=2)
    train, val, by_metric, by_epoch = trial.prepare(given, val, *schedules)
    with pytest.raises(AttributeError):
        _ = train.nothing_of_the_kind
    assert isinstance(by_epoch, StepLR), "a script steps it by its class"
    by_metric.step(metrics=1.0)
    around = SimpleNamespace(optimizer=optimizer, step=optimizer.step, load_state_dict=None)
    around.param_groups = optimizer.param_groups
    assert trial.prepare(around) is around, "an optimizer of the script's own, no schedule"
    grouped = Grouped(SequentialSampler(given.dataset), 4, drop_last=False)
    made = trial.prepare(DataLoader(given.dataset, batch_sampler=grouped))
    assert isinstance(made, TrainingLoader), "shared by the ranks"
    assert next(iter(made))[0].shape == (4, 3)
    of_accelerate = SimpleNamespace(step_with_optimizer=True, split_batches=False)
    assert trial.schedule(of_accelerate) is of_accelerate  # it counts the steps of one atom
    assert train.dataset is given.dataset
    assert train.sampler is given.sampler
    assert next(iter(val))[0].shape == (2, 3)
    steps = [trial.steps_per_epoch(loader) for loader in (train, val)]
    return [train.batch_size, train.num_workers, len(train), val.batch_size, len(val), *steps]


def test_a_prepared_loader_has_the_attributes_of_the_one_given(bench: Bench) -> None:
    for found in values(run_ranks(attributes, 2, bench)):
        assert found == [4, 0, 6, 2, 5, 6, 5]
