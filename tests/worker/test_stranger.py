"""Ordinary loops as people write them, and what they plainly forget: over a pause, and over 1 -> 2 -> 1 ranks.

With ``batch: global`` the weights at the end must be those of the loop left alone, whatever happened in between; what
cannot be must be refused.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import swa_utils
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, ReduceLROnPlateau, StepLR

import gpusched
from gpusched.protocol import Remark
from tests.worker.fakes import END, Bench, at_step, daemon, run_ranks, through
from tests.worker.models import weights_of
from tests.worker.test_ranks import digits, small_net
from tests.worker.test_resize import SAM

EPOCHS = 5


class Own:
    """A schedule and a decay of weights of the script's own, without ``state_dict``."""

    def __init__(self, model: Any, optimizer: Any) -> None:
        self.optimizer, self.held, self.epochs = optimizer, (model, [*model.parameters()]), 0

    def step(self) -> None:
        self.epochs += 1
        self.optimizer.param_groups[0]["lr"] = 0.01 * 0.7**self.epochs
        with torch.no_grad():
            for each in (*self.held[0].parameters(), *self.held[1]):
                each.mul_(0.9)


class Scored(nn.Sequential):
    """A model that is trained by a method of its own, as flows and diffusion models are."""

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(self(x), y)


def seen_by_autograd(model: Any) -> None:
    """Send buffers to the other ranks as torch did before 2.12."""
    model._assign_modules_buffers()
    model._sync_module_buffers(0)


def common(how: str) -> list[float]:
    """Clipping, a GradScaler, averaged weights, schedules by epoch, L-BFGS, steps left out, a validation loader.

    Layers that are unfrozen at one epoch, and frozen at another, by their names.
    """
    trial = gpusched.init()
    net: Any = small_net().float() if how == "autocast" else Scored(*small_net())
    net[0].requires_grad_(how != "unfreezes")
    if how == "called twice":
        DistributedDataParallel._sync_buffers = torch.no_grad()(seen_by_autograd)  # type: ignore[method-assign]
    model = trial.wrap(net)
    if how == "compiled":
        model = torch.compile(model, backend="eager")
    optimizer: Any = torch.optim.Adam(model.parameters(), lr=0.01)
    if how == "lbfgs":
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.05, max_iter=2)
    elif how == "own":
        optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.01, momentum=0.9)
    trial.scale_lr(optimizer)
    loader = trial.loader(digits(), batch_size=6)
    more: dict[str, Any] = {}
    if how in ("scaler", "autocast"):
        more["scaler"] = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=3)
    if how == "swa":
        more["average"] = swa_utils.AveragedModel(model)
        more["sched"] = swa_utils.SWALR(optimizer, swa_lr=0.002)
    if how == "plateau":
        more["sched"] = ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    if how == "restarts":
        more["sched"] = CosineAnnealingWarmRestarts(optimizer, T_0=2)
    own = Own(model, optimizer)
    if how == "own":
        more["own"] = gpusched.pickled(own)
    trial.track(model=model, opt=optimizer, **more)
    held_out = trial.loader(digits(), batch_size=4, shuffle=False) if how == "validates" else ()
    for epoch in trial.steps(limit=EPOCHS):
        for name, each in model.named_parameters() if how == "unfreezes" else ():
            if epoch in (1, 3) and name.startswith("0." if epoch == 1 else "3."):
                each.requires_grad_(epoch == 1)
        for number, (x, y) in enumerate(loader):

            def closure(x: Any = x, y: Any = y) -> Any:
                optimizer.zero_grad()
                by_method = how == "method"
                loss = model.loss(x, y) if by_method else nn.functional.mse_loss(model(x), y)
                if how == "called twice":  # as a GAN, and what learns from two views
                    loss = loss + nn.functional.mse_loss(model(-x), y)
                loss.backward()
                return loss

            if how == "lbfgs":
                optimizer.step(closure)
            elif how == "autocast":
                optimizer.zero_grad()
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = nn.functional.mse_loss(model(x.float()), y.float())
                more["scaler"].scale(loss).backward()
                more["scaler"].step(optimizer)
                more["scaler"].update()
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
                    getattr(optimizer, "second_step", optimizer.step)()
            if how == "restarts":
                more["sched"].step(epoch + (number + 1) / len(loader))
        if how == "swa":
            more["average"].update_parameters(model)
            more["sched"].step()
        if how == "own":
            own.step()
        with torch.no_grad():
            parts = [(model(x) - y).square().mean().item() * len(x) for x, y in held_out]
        loss = sum(parts) or float(epoch == 1)
        if how == "plateau":
            more["sched"].step(loss)
        trial.report(accuracy=0.0)
    return weights_of(model, *([more["average"]] if how == "swa" else []))


HOWS = (
    *("clips", "scaler", "autocast", "swa", "plateau", "restarts", "lbfgs", "skips", "validates"),
    *("compiled", "own", "unfreezes", "method", "called twice"),
)


@pytest.mark.parametrize("how", HOWS)
def test_an_ordinary_loop_ends_as_if_nothing_had_happened(bench: Bench, how: str) -> None:
    if how == "compiled":
        # What compiling imports is imported once: each rank is forked from this process.
        torch.compile(nn.Linear(1, 1), backend="eager")(torch.ones(1))
    whole, paused, resized = (
        bench.beside(name, batch="global") for name in ("whole", "paused", "resized")
    )
    ((expected,),) = through(whole, common, [(1, END)], how)
    assert through(paused, common, [(1, 2), (1, END)], how)[1] == [expected]
    # bfloat16 has 8 bits, and two ranks sum other numbers.
    rounding = 3e-3 if how == "autocast" else 1e-8
    for found in through(resized, common, [(1, 2), (2, 4), (1, END)], how)[2]:
        assert found == pytest.approx(expected, abs=rounding)


class Whole:
    """A trainer that is tracked as one object: its state is what it says."""

    def __init__(self, **parts: Any) -> None:
        self.parts = parts

    def state_dict(self) -> Any:
        return {name: part.state_dict() for name, part in self.parts.items()}

    def load_state_dict(self, state: Any) -> None:
        for name, part in self.parts.items():
            part.load_state_dict(state[name])


def forgetful(what: str, how: str = "forgets") -> None:
    """Train with one object more than the model and its optimizer, which ``how`` it is tracked may leave out."""
    trial = gpusched.init()
    model, other = nn.Linear(1, 1), nn.Linear(1, 1)
    optimizer: Any = torch.optim.Adam(model.parameters())
    if what == "parameters":
        optimizer = torch.optim.Adam([*model.parameters(), *other.parameters()])
    second = torch.optim.Adam(other.parameters())
    more: dict[str, Any] = {}
    if what == "optimizer":
        more = {"other": other, "second": second}
    elif what == "parameters":
        more["other"] = other
    if how in ("tracks", "wraps"):
        if how == "wraps":
            optimizer = SAM(model.parameters(), torch.optim.Adam)
        trial.track(model=model, opt=optimizer, **more)
    elif what == "all":
        trial.state["seen"] = 0
    elif what == "nothing":
        trial.track()
    elif what == "all but its schedule":
        trial.track(model=model, sched=StepLR(optimizer, 9))
    elif how == "nests":
        trial.track(trainer=Whole(model=model, opt=optimizer, **more))
    else:
        trial.track(model=model, opt=optimizer)
    for epoch in trial.steps(limit=4):
        if what == "anew" and epoch == 1:
            optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        for each in (optimizer, second) if what == "optimizer" else (optimizer,):
            model(torch.ones(1, 1)).sum().backward()
            other(torch.ones(1, 1)).sum().backward()
            each.step()
        trial.report(accuracy=0.0)


FORGOTTEN = {
    "optimizer": "steps an optimizer (Adam) that trial.track does not have",
    "anew": "steps an optimizer (Adam) that trial.track does not have",
    "all": "steps an optimizer (Adam) that trial.track does not have",
    "nothing": "trains a model (it steps Adam) and saves nothing of it",
    "parameters": "(Adam) moves parameters of a model that trial.track does not have",
    "all but its schedule": "steps an optimizer (Adam) that trial.track does not have",
}
LIKELY = ("optimizer", "anew", "all", "nothing")
"""May be right: a probe that is trained anew for each evaluation, a model that the script keeps in files of its own."""


@pytest.mark.parametrize("what", FORGOTTEN)
def test_what_a_script_forgets_to_track_is_told_and_refused_at_the_resume_if_certain(
    bench: Bench, what: str
) -> None:
    with daemon(bench, at_step(**{"yield": 2})) as fake:
        (first,) = run_ranks(forgetful, 1, bench, 1, (what,))
    told = FORGOTTEN[what]
    assert first.stderr.count(told) == 1
    assert [told in frame.text for frame in fake.of_kind(Remark)] == [True]
    (second,) = run_ranks(forgetful, 1, bench, 2, (what,))
    assert (told in second.error) == (what not in LIKELY)
    assert [line["k"] for line in bench.reports()] == [1, 2] + [3, 4] * (what in LIKELY)


@pytest.mark.parametrize(
    ("what", "how"),
    [
        *((what, how) for what in ("optimizer", "parameters") for how in ("tracks", "nests")),
        ("optimizer", "wraps"),
    ],
)
def test_what_a_tracked_object_holds_is_not_forgotten(bench: Bench, what: str, how: str) -> None:
    with daemon(bench, at_step(**{"yield": 2})) as fake:
        (first,) = run_ranks(forgetful, 1, bench, 1, (what, how))
        (second,) = run_ranks(forgetful, 1, bench, 2, (what, how))
    assert not first.error + first.stderr + second.error + second.stderr
    assert fake.of_kind(Remark) == []
