"""Scripts that would train a model wrongly without an error: each is refused or told, with the line to change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR, StepLR
from torch.utils.data import TensorDataset

import gpusched
from gpusched.protocol import Remark
from gpusched.worker import usage
from gpusched.worker.learning_rate import RateScaler
from tests.worker.fakes import (
    END,
    Bench,
    at_step,
    daemon,
    if_it_leaves,
    remarks,
    run_ranks,
    through,
    values,
)
from tests.worker.models import descend, linear, weights_of


def train(how: str, steps: int = 3) -> float:
    trial = gpusched.init()
    model: Any = nn.Linear(3, 1)
    if how in ("wrap", "twice backward"):
        model = trial.wrap(model)
    elif how == "ddp" and trial.world_size > 1:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scheduler: Any = OneCycleLR(optimizer, 0.1, total_steps=99)
    if how == "prepared":
        model, scheduler = trial.wrap(model), trial.prepare(scheduler)
    if how == "epochs":
        scheduler = StepLR(optimizer, 1)
    trial.track(model=model, opt=optimizer, **({} if how == "apart" else {"sched": scheduler}))
    for _ in range(trial.step, steps):
        for _ in range(4):
            loss = model(torch.randn(1, 3)).sum()
            if how == "twice backward":
                loss.backward(retain_graph=True)
            descend(optimizer, loss)
            if how not in ("epochs", "apart"):
                scheduler.step()
        if how == "epochs":
            scheduler.step()
        trial.report(accuracy=0)
    return float(scheduler.last_epoch)


@pytest.mark.parametrize("how", ["apart", "twice backward"])
def test_ranks_that_do_not_train_together_are_refused(bench: Bench, how: str) -> None:
    for rank in run_ranks(train, 2, bench, arguments=(how,)):
        assert "ranks 0 and 1 have trained apart" in rank.error
        assert "of one backward() for each" in rank.error
        assert "sizes: [1]" in rank.error
    assert bench.reports() == []


@pytest.mark.parametrize(
    "settings", [{}, {"lr_power": 0.0}, {"batch": "global"}, {"is_resized": False}]
)
def test_rates_that_stay_as_they_are_on_several_ranks_are_told(
    bench: Bench, settings: dict[str, Any]
) -> None:
    bench.prepare(**settings)
    said = remarks(bench, train, "ddp", ranks=2)
    told = ["nothing here scales the learning rate of SGD" in text for text in said]
    assert told.count(True) == (not settings), said


@pytest.mark.parametrize("settings", [{}, {"batch": "global"}, {"is_resized": False}])
@pytest.mark.parametrize("scales", [True, False])
def test_a_rate_that_the_script_multiplies_by_its_ranks_is_told(
    bench: Bench, settings: dict[str, Any], scales: bool
) -> None:
    """It was multiplied twice on a first launch, and with a checkpoint of another size not at all."""

    def script() -> None:
        trial = gpusched.init()
        model: Any = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=trial.hparams.opt.lr * trial.world_size)
        if scales:
            model, optimizer = trial.prepare(model, optimizer)
            trial.scale_lr(optimizer)  # no more than prepare has done
        else:
            model = trial.wrap(model)
        trial.track(model=model, opt=optimizer)
        descend(optimizer, model(torch.randn(1, 1)).sum())
        trial.report(accuracy=0)

    bench.prepare({"opt": {"lr": 0.01}}, **settings)
    again = ", and trial.scale_lr does so again" * (scales and "batch" not in settings)
    told = [f"the learning rate of SGD (opt.lr) by its 2 ranks{again}: leave them out"]
    told *= scales or "is_resized" not in settings
    said = remarks(bench, script, ranks=2)
    assert [each in text for each, text in zip(told, said, strict=True)] == [True] * len(told)


@pytest.mark.parametrize("how", ["wrap", "ddp", "prepared"])
def test_a_schedule_by_step_that_nothing_counts_is_told_and_refused_after_a_resize(
    bench: Bench, how: str
) -> None:
    with daemon(bench, at_step(**{"yield": 2})):
        (first,) = run_ranks(train, 1, bench, 1, (how,))
    assert first.code == 0
    call = "sched, steps_per_epoch=trial.steps_per_epoch(loader)" if how == "prepared" else "sched"
    assert first.stderr.count(f"sched = trial.schedule({call})") == 1
    for rank in run_ranks(train, 2, bench, 2, (how,)):
        assert "this OneCycleLR is stepped 4 times between two reports" in rank.error
    assert [line["k"] for line in bench.reports()] == [1, 2]


@pytest.mark.parametrize(
    ("how", "settings"),
    [("wrap", {"batch": "global"}), ("wrap", {"is_resized": False}), ("epochs", {})],
)
def test_a_schedule_with_a_global_batch_or_one_size_or_by_epoch_needs_nothing(
    bench: Bench, how: str, settings: dict[str, Any]
) -> None:
    bench.prepare(**settings)
    with daemon(bench, at_step(**{"yield": 2})):
        (first,) = run_ranks(train, 1, bench, 1, (how,))
    assert "trial.schedule" not in first.stderr
    ranks, expected = 2 if "batch" in settings else 1, 3.0 if how == "epochs" else 12.0
    assert values(run_ranks(train, ranks, bench, 2, (how,))) == [expected] * ranks


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


def test_a_script_without_state_is_told_at_its_first_report_and_refused_at_the_resume(
    bench: Bench,
) -> None:
    with daemon(bench, at_step(**{"yield": 2})) as fake:
        (first,) = run_ranks(partial_fit, 1, bench, 1, (False,))
    assert first.stderr.count("nothing of this script is saved") == 1
    assert [frame.text[:31] for frame in fake.of_kind(Remark)] == [
        "nothing of this script is saved"
    ]
    (second,) = run_ranks(partial_fit, 1, bench, 2, (False,))
    assert "this launch continues at step 2, but the script restores nothing" in second.error
    assert "gpusched.pickled(clf)" in second.error
    assert [line["k"] for line in bench.reports()] == [1, 2]
    assert values(run_ranks(partial_fit, 1, bench, 3, (True,))) == [[2.0, 3.0]]


def drifting(eps: float) -> None:
    """Rank 1 leaves the others by a little, late: as where one rank alone skips a step."""
    trial = gpusched.init()
    model = trial.wrap(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in trial.steps(9, model=model, opt=optimizer):
        descend(optimizer, model(torch.randn(2, 4)).sum())
        if epoch == 4 and trial.rank == 1:
            with torch.no_grad():
                next(model.parameters()).mul_(1 + eps)
        trial.report(accuracy=0)


@pytest.mark.parametrize(("eps", "found"), [(1e-5, True), (1e-7, False)])
def test_ranks_that_part_late_and_by_a_little_are_found(
    bench: Bench, eps: float, found: bool
) -> None:
    for rank in run_ranks(drifting, 2, bench, arguments=(eps,)):
        assert ("ranks 0 and 1 have trained apart" in rank.error) == found, rank.error
    assert len(bench.reports()) == (7 if found else 9)


def every_second_epoch(says: bool, reports_all: bool = False) -> list[int]:
    """A model's accuracy on the training data is no training."""
    trial = gpusched.init()
    model, optimizer = linear()
    loader = trial.loader(numbers(4), batch_size=2)
    done = []
    for epoch in range(trial.track(model=model, opt=optimizer), 6):
        for (x,) in loader:
            descend(optimizer, model(x).sum())
        done.append(epoch)
        for (x,) in loader:
            model(x)
        if reports_all or epoch % 2:
            trial.report(step=epoch + 1 if says else None, accuracy=0)
    return done


def test_a_loop_that_reports_every_second_epoch_says_so_or_is_told_of(bench: Bench) -> None:
    with daemon(bench, at_step(**{"yield": 4})) as fake:
        values(run_ranks(every_second_epoch, 1, bench, 1, (True,)))
        assert values(run_ranks(every_second_epoch, 1, bench, 2, (True,))) == [[4, 5]]
        assert not fake.of_kind(Remark)
    for name, arguments, told in (("other", (False,), 1), ("right", (False, True), 0)):
        one = bench.beside(name)
        said = remarks(one, every_second_epoch, *arguments, answer=at_step(**{"yield": 2}))
        assert ["trial.report(step=epoch + 1, ...)" in text for text in said] == [True] * told
        (second,) = run_ranks(every_second_epoch, 1, one, 2, arguments)
        assert not second.error, "two passes for a report may be right"


def by_a_metric(how: str) -> None:
    trial = gpusched.init()
    model = trial.wrap(nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    for _ in trial.steps(6, model=model, opt=optimizer, plateau=plateau):
        descend(optimizer, model(torch.randn(1, 1)).sum())
        loss = float(trial.step if trial.rank else -trial.step)
        plateau.step(loss if how == "each its own" else trial.mean(loss, 1))
        trial.report(accuracy=1)


@pytest.mark.parametrize("how", ["each its own", "one for all"])
def test_ranks_whose_rates_go_by_metrics_of_their_own_are_refused(bench: Bench, how: str) -> None:
    for rank in run_ranks(by_a_metric, 2, bench, arguments=(how,)):
        assert ("schedule by a metric one of all ranks" in rank.error) == (how == "each its own")


def stepping(where: str, epochs: int = 6) -> list[float]:
    """A schedule by epoch that is stepped before the report, after it, or at the top of the loop: the rates."""
    trial = gpusched.init(in_charge=where == "asking, after")
    model, optimizer = linear()
    schedule: Any = StepLR(optimizer, 1)
    if where == "prepared, after":
        schedule = trial.prepare(schedule)
    rates: list[float] = []
    optimizer.register_step_pre_hook(lambda *_: rates.append(optimizer.param_groups[0]["lr"]))
    for epoch in range(trial.track(model=model, opt=optimizer, sched=schedule), epochs):
        if where == "top" and epoch:
            schedule.step()
        descend(optimizer, model(torch.ones(1, 1)).sum())
        if where == "before":
            schedule.step()
        trial.report(accuracy=1)
        if where.endswith("after"):
            schedule.step()
        if where.startswith("asking") and trial.should_yield():
            break
    return rates


@pytest.mark.parametrize("where", ["before", "after", "prepared, after", "asking, after", "top"])
def test_a_schedule_loses_no_step_wherever_in_the_loop_it_is_stepped(
    bench: Bench, where: str
) -> None:
    """As torch's examples: train(), test() with the report, scheduler.step(); each resume was refused."""
    *_, (rates,) = through(bench, stepping, [(1, 2), (1, 4), (1, END)], where)
    assert rates == pytest.approx([1e-5, 1e-6])


def reporting(how: str) -> None:
    trial = gpusched.init()
    model, optimizer = linear()

    def step() -> None:
        descend(optimizer, model(torch.ones(1, 1)).sum())

    for _ in trial.steps(4, model=model, opt=optimizer):
        for _ in range(4 if how == "within" else 1):
            if how != "first":
                step()
            trial.report(accuracy=1)
            if how == "own best" and trial.step == 1:
                with trial.checkpoint_dir() as folder:
                    (folder / "model").touch()
        if how == "first":
            step()


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("right", ""),
        ("within", "waits for the end of the body of trial.steps()"),
        ("first", "another than the one that was scored. Report after training"),
        ("own best", "until trial.checkpoint_dir() has saved a step: ask trial.should_save()"),
    ],
)
def test_a_loop_that_keeps_a_trial_from_saving_what_it_reported_is_told(
    bench: Bench, how: str, told: str
) -> None:
    said = remarks(bench, reporting, how, answer=at_step(**{"save": 1, "yield": 2}))
    assert [told in text for text in said] == ([True] if told else []), said


def deaf(reads: bool) -> None:
    trial = gpusched.init()
    _ = trial.hparams.opt.lr if reads else trial.hparams
    trial.track()
    for _ in range(2):
        trial.report(accuracy=1)


@pytest.mark.parametrize("how", ["reads", "is passed", "neither"])
def test_hyperparameters_that_no_script_reads_are_told(bench: Bench, how: str) -> None:
    bench.prepare({"opt": {"lr": 0.1}}, passed=["opt"] if how == "is passed" else [])
    said = remarks(bench, deaf, how == "reads")
    assert ["has not read opt.lr" in text for text in said] == [True] * (how == "neither")


def numbers(count: int) -> TensorDataset:
    return TensorDataset(torch.arange(float(count)).reshape(-1, 1))


def inside(looping: bool, steps: int = 6) -> tuple[list[list[float]], list[float]]:
    """A loader made anew in every iteration; the samples of each epoch, and the factor of the rate after each."""
    trial = gpusched.init()
    model = trial.wrap(nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trial.scale_lr(optimizer)
    trial.track(model=model, opt=optimizer)
    (scaler,) = trial._training.scalers.values()
    epochs, factors = [], []
    for _ in trial.steps(limit=steps) if looping else range(trial.step, steps):
        seen: list[float] = []
        loader = trial.loader(numbers(8), batch_size=2)
        assert not looping or len(loader) == 4 / trial.world_size
        for (x,) in loader:
            seen += x.flatten().tolist()
            optimizer.step()
        epochs.append(seen)
        assert isinstance(scaler, RateScaler)
        factors.append(scaler.factor)
        trial.report(accuracy=0)
    return epochs, factors


@pytest.mark.parametrize("looping", [True, False])
def test_a_loader_made_inside_the_loop_goes_through_its_epochs(bench: Bench, looping: bool) -> None:
    (((epochs, _),),) = through(bench.beside("whole"), inside, [(1, END)], looping)
    assert len({tuple(epoch) for epoch in epochs}) == 6, "each epoch has an order of its own"
    _, ((rest, _),) = through(bench, inside, [(1, 2), (1, END)], looping)
    assert rest == epochs[2:]


@pytest.mark.parametrize("looping", [True, False])
def test_the_warm_up_ends_with_a_loader_made_inside_the_loop(
    bench: Bench, looping: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpusched.worker.learning_rate.WARMUP_EPOCHS", 3.0)
    for _, factors in values(run_ranks(inside, 2, bench, arguments=(looping,))):
        assert factors[2:] == [2.0] * 4


def two_loaders() -> tuple[list[float], list[float]]:
    trial = gpusched.init()
    one, two = (trial.loader(numbers(8), batch_size=1) for _ in range(2))
    seen: tuple[list[float], list[float]] = ([], [])
    for (x,), (y,) in zip(one, two, strict=True):
        seen[0].append(x.item())
        seen[1].append(y.item())
    return seen


def test_two_loaders_have_orders_of_their_own(bench: Bench) -> None:
    ((one, two),) = values(run_ranks(two_loaders, 1, bench))
    assert sorted(one) == sorted(two)
    assert one != two


def losses(kind: str, x: Any, y: Any, encoder: Any, head: Any, other: Any) -> Iterator[Any]:
    if kind != "GAN":
        yield nn.functional.mse_loss(head(torch.tanh(encoder(x))), y)
        return
    with torch.no_grad():  # a GAN: the critic's step, then the generator's through the critic
        made = torch.tanh(other(y))
    yield head(made).mean() - head(encoder(x)).square().mean()
    yield -head(torch.tanh(other(y))).square().mean()


def chained(kind: str) -> list[float]:
    """Weights after two epochs of 7 samples, at most 5 a step: as pairs of models that were wrapped each for itself."""
    trial = gpusched.init()
    torch.manual_seed(0)
    parts = [nn.Linear(2, 3), nn.Linear(3, 1), nn.Linear(1, 3)]
    is_own = kind == "in DDP of its own" and trial.world_size > 1
    wrap: Any = DistributedDataParallel if is_own else trial.wrap
    encoder, head, other = (wrap(part.double()) for part in parts)
    optimizers = [
        torch.optim.SGD(part.parameters(), lr=0.1, momentum=0.5) for part in (encoder, head, other)
    ]
    data = torch.randn(7, 2, generator=torch.Generator().manual_seed(1)).double()
    loader = trial.loader(TensorDataset(data, data.sum(1, keepdim=True)), batch_size=5)
    tracked = {f"part{n}": part for n, part in enumerate([encoder, head, other, *optimizers])}
    for _ in trial.steps(2, **tracked):
        for x, y in loader:
            for loss in losses(kind, x, y, encoder, head, other):
                for optimizer in optimizers:
                    optimizer.zero_grad()
                loss.backward()
                for optimizer in optimizers:
                    optimizer.step()
        trial.report(accuracy=0)
    return weights_of(encoder, head, other)


@pytest.mark.parametrize("kind", ["encoder and head", "in DDP of its own", "GAN"])
def test_uneven_batches_of_chained_models_train_as_one_process(bench: Bench, kind: str) -> None:
    found = []
    for number, plan in enumerate(([(1, END)], [(2, END)], [(3, END)], [(1, 1), (2, END)])):
        one = bench.beside(f"{number}", batch="global")
        found += through(one, chained, plan, kind)[-1]
    for weights in found:
        assert weights == pytest.approx(found[0], rel=1e-12)


def accumulating(every: int) -> tuple[list[list[float]], int]:
    """Micro-batches of one sample, of which ``every`` make a step; the samples of each step, and reports in between."""
    trial = gpusched.init()
    model, optimizer = linear()
    loader = trial.loader(numbers(12), batch_size=1)
    trial.track(model=model, opt=optimizer)
    taken: list[list[float]] = []
    held: list[float] = []
    for number, (x,) in enumerate(loader):
        held.append(x.item())
        model(x).sum().backward()
        if (number + 1) % every == 0:
            optimizer.step()
            taken.append(held)
            held = []
        elif number == 5:
            trial.report(accuracy=0)
    return taken, trial.step


def test_micro_batches_since_the_last_step_come_again_after_a_resume(bench: Bench) -> None:
    (((whole, _),),) = through(bench.beside("whole"), accumulating, [(1, END)], 4)
    _, ((rest, _),) = through(bench, accumulating, [(1, 1), (1, END)], 4)
    assert rest == whole[1:], "the step that was cut in two is taken whole"


def evaluating_first(counts: bool, until: int = 6) -> list[int]:
    """As nanoGPT: an iteration is evaluated before it is trained. The iterations trained on.

    ``counts``: every second one; it says where it stands, and reports a baseline as each launch begins.
    """
    trial = gpusched.init()
    model, optimizer = linear()
    trial.track(model=model, opt=optimizer)
    if counts:
        trial.report(step=0, accuracy=0)
    trained = []
    for iteration in range(trial.step, until):
        if not counts:
            trial.report(accuracy=model.weight)
        elif iteration % 2 == 0:
            trial.report(step=iteration, accuracy=0)
        descend(optimizer, model(torch.ones(1, 1)).sum())
        trained.append(iteration)
    return trained


def test_a_loop_that_evaluates_before_it_trains_says_its_iteration_and_is_exact(
    bench: Bench,
) -> None:
    assert through(bench, evaluating_first, [(1, 4), (1, END)], True)[1] == [[4, 5]]
    assert [line["k"] for line in bench.reports()] == [2, 4]


def test_a_loop_that_evaluates_before_it_trains_scores_a_step_as_if_left_alone(
    bench: Bench,
) -> None:
    scores = []
    for name, plan in (("whole", [(1, END)]), ("paused", [(1, 2), (1, 3), (1, END)])):
        one = bench.beside(name)
        through(one, evaluating_first, plan, False)
        scores.append({line["k"]: line["m"]["accuracy"] for line in one.reports()})
    assert [*scores[1]] == [1, 2, 3, 4, 5]
    assert scores[1].items() <= scores[0].items()


def adapters(has_all: bool) -> float:
    """As LoRA: the larger part of the model is frozen, and the same in each launch. How far a weight has come."""
    trial = gpusched.init()
    model = nn.Sequential(nn.Linear(9, 9).requires_grad_(False), nn.Linear(9, 1))
    trained, start = nn.ParameterList(model[1].parameters()), model[1].bias.item()
    optimizer = torch.optim.Adam(trained, lr=0.1)
    for _ in trial.steps(4, model=model if has_all else trained, opt=optimizer):
        descend(optimizer, model(torch.randn(1, 9)).sum())
        trial.report(accuracy=0)
    return model[1].bias.item() - start


def test_that_a_large_model_is_frozen_is_told_and_adapters_are_saved_without_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint of a model of 7 billion parameters had 14 GB, one of its adapters 30 MB."""
    monkeypatch.setattr(usage, "MUCH_BYTES", 300)
    (whole,) = run_ranks(adapters, 1, bench.beside("whole"), arguments=(True,))
    assert "360 bytes of model are frozen, and each checkpoint holds them" in whole.stderr
    launches = through(bench, adapters, [(1, 2), (1, END)], False)
    assert launches[1] == [pytest.approx(-0.4, abs=1e-4)], "four steps of Adam"


def counting_anew(reports: int) -> None:
    trial = gpusched.init()
    model, optimizer = linear()
    step = 0
    for _ in trial.steps(3, model=model, opt=optimizer):
        for _ in range(reports):
            optimizer.step()
            step += 1
            trial.report(step=step, accuracy=0)


@pytest.mark.parametrize("reports", [1, 2])
def test_a_counter_that_begins_anew_with_each_launch_is_told(bench: Bench, reports: int) -> None:
    """Its first report passed for that of the launch before, and more was trained than it said; later ones failed."""
    with daemon(bench, at_step(**{"yield": reports})) as fake:
        for incarnation in (1, 2):
            (ended,) = run_ranks(counting_anew, 1, bench, incarnation, (reports,))
        said = [ended.error, *(frame.text for frame in fake.of_kind(Remark))]
    assert sum("begins at trial.step" in text for text in said) == 1


def filling_a_buffer(until: int = 8) -> list[int]:
    """As DQN: each launch trains from its third episode on. The steps after the episodes."""
    trial = gpusched.init()
    model, optimizer = linear()
    steps = []
    for episode in range(trial.track(model=model, opt=optimizer), until):
        if episode % 4 >= 2:
            descend(optimizer, model(torch.ones(1, 1)).sum())
        trial.report(accuracy=0)
        steps.append(trial.step)
    return steps


def test_one_report_alone_is_passed_over_where_a_loop_does_not_train_yet(bench: Bench) -> None:
    """Else a loop that fills a buffer first, or trains no more, is silent until it is taken for hung."""
    assert through(bench, filling_a_buffer, [(1, 4), (1, END)])[1] == [[4, 5, 6, 7]]


def made_later(how: str, epochs: int = 6) -> list[float]:
    """The rates of the epochs, by a schedule that is made once its optimizer is put back, or set by the loop."""
    trial = gpusched.init()
    model, optimizer = linear()
    trial.track(model=model, opt=optimizer)
    schedule: Any = LambdaLR(optimizer, lambda epoch: 0.5**epoch)
    if how == "counted":
        schedule = trial.schedule(schedule)
    elif how == "tracked":
        trial.track(sched=schedule)
    rates: list[float] = []
    if_it_leaves(lambda: rates)
    for epoch in trial.steps(epochs):
        if how == "by hand":
            optimizer.param_groups[0]["lr"] = 0.1 * 0.5**epoch
            trial.state["epoch"] = epoch
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if how != "by hand":
            schedule.step()
        trial.report(accuracy=0)
    return rates


@pytest.mark.parametrize("how", ["tracked", "counted", "by hand"])
def test_rates_that_are_set_after_their_optimizer_is_put_back_are_those_of_their_epochs(
    bench: Bench, how: str
) -> None:
    """The first epoch of each launch had the rate of the first of all, or of the epoch before."""
    launches = through(bench, made_later, [(1, 2), (1, 4), (1, END)], how)
    rates = [rate for (launch,) in launches for rate in launch]
    assert rates == pytest.approx([0.1 * 0.5**epoch for epoch in range(6)])


@pytest.mark.parametrize("keeps", [True, False])
def test_a_rate_by_a_counter_that_begins_anew_with_each_launch_is_told(
    bench: Bench, keeps: bool
) -> None:
    """As by nanoGPT's ``get_lr(it)``: each launch warmed up again. With a rate of numpy's no launch continued."""

    def script() -> None:
        trial, (model, optimizer) = gpusched.init(), linear()
        own: dict[str, Any] = trial.state if keeps else {}
        for _ in trial.steps(6, model=model, opt=optimizer):
            own["it"] = own.get("it", 0) + 1
            optimizer.param_groups[0]["lr"] = np.float64(0.5) ** own["it"]
            optimizer.step()
            trial.report(accuracy=0)

    with daemon(bench, at_step(**{"yield": 3})):
        launches = [run_ranks(script, 1, bench, number) for number in (1, 2)]
    told = "is 0.5 again, as at the first report of all, and was 0.125 when"
    assert [told in ended.error + ended.stderr for (ended,) in launches] == [False, not keeps]
