"""Ordinary loops as people write them, and what they plainly forget: over a pause, and over 1 -> 2 -> 1 ranks.

With ``batch: global`` the weights at the end must be those of the loop left alone, whatever happened in between; what
cannot be must be refused. Each loop is one that the issue's list of defects does not have.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import swa_utils
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, ReduceLROnPlateau, StepLR

import gpusched
from tests.worker.fakes import Bench, Ended, at_step, daemon, run_ranks
from tests.worker.test_ranks import Bench_at, digits, small_net, values

EPOCHS = 5


def weights(*models: nn.Module) -> list[float]:
    return torch.cat([p.detach().flatten() for m in models for p in m.parameters()]).tolist()


def common(how: str) -> list[float]:
    """Clipping, a GradScaler, averaged weights, schedules by epoch, L-BFGS, steps left out, a validation loader."""
    trial = gpusched.init()
    model = trial.wrap(small_net())
    if how == "compiled":
        model = torch.compile(model, backend="eager")
    optimizer: Any = torch.optim.Adam(model.parameters(), lr=0.01)
    if how == "lbfgs":
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.05, max_iter=2)
    trial.scale_lr(optimizer)
    loader = trial.loader(digits(), batch_size=6)
    more: dict[str, Any] = {}
    if how == "scaler":
        more["scaler"] = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=3)
    if how == "swa":
        more["average"] = swa_utils.AveragedModel(model)
        more["sched"] = swa_utils.SWALR(optimizer, swa_lr=0.002)
    if how == "plateau":
        more["sched"] = ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    if how == "restarts":
        more["sched"] = CosineAnnealingWarmRestarts(optimizer, T_0=2)
    trial.track(model=model, opt=optimizer, **more)
    held_out = trial.loader(digits(), batch_size=4, shuffle=False) if how == "validates" else ()
    for epoch in trial.steps(limit=EPOCHS):
        for number, (x, y) in enumerate(loader, start=loader.batches_done):

            def closure(x: Any = x, y: Any = y) -> Any:
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(model(x), y)
                loss.backward()
                return loss

            if how == "lbfgs":
                optimizer.step(closure)
            elif how == "scaler":
                optimizer.zero_grad()
                more["scaler"].scale(nn.functional.mse_loss(model(x), y)).backward()
                more["scaler"].unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                more["scaler"].step(optimizer)
                more["scaler"].update()
            else:
                closure()
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                if how != "skips" or (epoch + number) % 3:
                    optimizer.step()
            if how == "restarts":
                more["sched"].step(epoch + (number + 1) / len(loader))
        if how == "swa":
            more["average"].update_parameters(model)
            more["sched"].step()
        with torch.no_grad():
            parts = [(model(x) - y).square().mean().item() * len(x) for x, y in held_out]
        loss = sum(parts) or float(epoch == 1)
        if how == "plateau":
            more["sched"].step(loss)
        trial.report(accuracy=0.0)
    return weights(model, *([more["average"]] if how == "swa" else []))


def adversarial() -> list[float]:
    """Two models with an optimizer each, as in a GAN."""
    trial = gpusched.init()
    one, two = trial.wrap(small_net()), trial.wrap(small_net())
    optimizers = [torch.optim.Adam(model.parameters(), lr=0.01) for model in (one, two)]
    for optimizer in optimizers:
        trial.scale_lr(optimizer)
    loader = trial.loader(digits(), batch_size=6)
    trial.track(one=one, two=two, first=optimizers[0], second=optimizers[1])
    for _ in trial.steps(limit=EPOCHS):
        for x, y in loader:
            for model, optimizer, sign in ((one, optimizers[0], 1), (two, optimizers[1], -1)):
                optimizer.zero_grad()
                (sign * model(x) - y).square().mean().backward()
                optimizer.step()
        trial.report(accuracy=0.0)
    return weights(one, two)


def run(bench: Bench, body: Any, arguments: tuple[Any, ...], plan: list[int]) -> list[Ended]:
    """Launch after launch, each of which leaves after two more epochs."""
    bench.prepare(batch="global")
    for number, ranks in enumerate(plan, 1):
        leaves = {"yield": 2 * number} if number < len(plan) else {}
        with daemon(bench, at_step(**leaves)):
            ended = run_ranks(body, ranks, bench, number, arguments)
    return ended


HOWS = (
    *("clips", "scaler", "swa", "plateau", "restarts", "lbfgs", "skips", "validates", "compiled"),
    "adversarial",
)


@pytest.mark.parametrize("how", HOWS)
def test_an_ordinary_loop_ends_as_if_nothing_had_happened(bench: Bench, how: str) -> None:
    body, arguments = (adversarial, ()) if how == "adversarial" else (common, (how,))
    (expected,) = values(run(Bench_at(bench, "whole"), body, arguments, [1]))
    assert values(run(Bench_at(bench, "paused"), body, arguments, [1, 1]))[0] == expected
    for found in values(run(Bench_at(bench, "resized"), body, arguments, [1, 2, 1])):
        assert found == pytest.approx(expected, abs=1e-8)


def forgetful(what: str) -> None:
    trial = gpusched.init()
    model, other = nn.Linear(1, 1), nn.Linear(1, 1)
    optimizer = torch.optim.Adam(model.parameters())
    if what == "parameters":
        optimizer = torch.optim.Adam([*model.parameters(), *other.parameters()])
    second = torch.optim.Adam(other.parameters())
    if what == "scheduler":
        StepLR(optimizer, 1)
    trial.track(model=model, opt=optimizer)
    for epoch in trial.steps(limit=4):
        if what == "anew" and epoch == 1:
            optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        for each in (optimizer, second) if what == "optimizer" else (optimizer,):
            model(torch.ones(1, 1)).sum().backward()
            other(torch.ones(1, 1)).sum().backward()
            each.step()
        trial.report(accuracy=0.0)


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("optimizer", "steps an optimizer (Adam) that trial.track does not have"),
        ("anew", "steps an optimizer (Adam) that trial.track does not have"),
        ("parameters", "(Adam) moves parameters of a model that trial.track does not have"),
        ("scheduler", "(Adam) has a scheduler of its rate that trial.track does not have"),
    ],
)
def test_what_a_script_forgets_to_track_is_told_and_refused_at_the_resume(
    bench: Bench, what: str, told: str
) -> None:
    with daemon(bench, at_step(**{"yield": 2})):
        (first,) = run_ranks(forgetful, 1, bench, 1, (what,))
    assert first.stderr.count(told) == 1
    (second,) = run_ranks(forgetful, 1, bench, 2, (what,))
    assert told in second.error
    assert [line["k"] for line in bench.reports()] == [1, 2]
