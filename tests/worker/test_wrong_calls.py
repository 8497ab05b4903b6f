"""Wrong calls of a script: the trial fails, and the message says which call, and with what."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DistributedSampler, TensorDataset

import gpusched
from tests.worker.fakes import Bench, at_step, daemon, run_rank, run_ranks
from tests.worker.models import descend, linear


def fails(how: str) -> None:
    trial = gpusched.init()
    model, optimizer = linear()
    if how == "stepped":
        descend(optimizer, model(torch.ones(1)))
        trial.report(accuracy=1)
    elif how == "twice":
        trial.track(model=model)
        trial.track(model=nn.Linear(1, 1))
    elif how == "late":
        trial.report(accuracy=1)
        trial.track(model=model)
    elif how in ("from 0", "by itself", "untracked"):
        tracked = {} if how == "untracked" else {"model": model, "optimizer": optimizer}
        for epoch in trial.steps(3, **tracked):
            descend(optimizer, model(torch.ones(1)))
            if how == "by itself":
                trial.report({"accuracy": 1})
            else:
                trial.report(step=epoch + (how == "untracked"), accuracy=1)
    elif how == "back":
        trial.report(step=5, accuracy=1)
        trial.report(step=5.5, accuracy=1)
    elif how == "inner":
        inner = CosineAnnealingLR(optimizer, T_max=9)
        counted = trial.schedule(inner)
        trial.track(schedule=inner, counted=counted)
    elif how == "lone":
        trial.track(weight=gpusched.pickled(model.weight))
    elif how == "local":
        trial.scale_lr(optimizer)
        trial.local_batch(2)
    elif how == "uneven":
        trial.local_batch(0)
    elif how == "distributed":
        data = TensorDataset(torch.ones(8, 1))
        trial.loader(data, 2, sampler=DistributedSampler(data, 2, 0))
    elif how == "prepared":
        trial.prepare(model, TensorDataset(torch.ones(8, 1)))
    elif how == "late state":
        trial.report(accuracy=1)
        trial.state["n"] = 1
    elif how in ("no files yet", "no files"):
        if how == "no files":
            trial.report(accuracy=1)
        with trial.checkpoint_dir():
            pass
    elif how == "stateful":
        model.state_dict = lambda: {"fn": print}
        trial.track(model=model)
        trial.report(accuracy=1)


@pytest.mark.parametrize(
    ("how", "kind", "told"),
    [
        ("stepped", "RuntimeError", "trains a model (it steps SGD)"),
        ("untracked", "RuntimeError", "add trial.track(model=model, opt=opt) before the loop"),
        ("twice", "ValueError", "'model' is tracked already"),
        ("late", "RuntimeError", "move it into the loop, or give it step=0"),
        ("from 0", "ValueError", "trial.report(step=0) after step 0: it counts finished steps"),
        ("by itself", "TypeError", "trial.report(accuracy=...), and trial.report(**metrics)"),
        ("back", "ValueError", "trial.report(step=5.5) after step 5: it counts"),
        ("inner", "ValueError", "track what trial.schedule(...) returned"),
        ("lone", "TypeError", "a Parameter has its state elsewhere: make a parameter an nn"),
        ("local", "RuntimeError", "call it before them"),
        ("uneven", "ValueError", "trial.local_batch(0) does not divide"),
        ("distributed", "TypeError", "leave sampler out"),
        ("prepared", "TypeError", "not a TensorDataset"),
        ("late state", "RuntimeError", "write state = trial.state beside trial.track(...)"),
        ("no files yet", "RuntimeError", "report first, then save"),
        ("no files", "RuntimeError", "save into that folder (accelerator.save_state(folder)"),
        ("stateful", "TypeError", "a checkpoint cannot hold model['fn'], a builtins."),
    ],
)
def test_a_wrong_call_fails_the_trial_with_a_readable_message(
    bench: Bench, how: str, kind: str, told: str
) -> None:
    with daemon(bench, at_step(save=1)):
        (ended,) = run_ranks(fails, 1, bench, arguments=(how,))
    assert any(line.startswith(kind) for line in ended.error.splitlines())
    assert told in ended.error
    assert bench.last_word() is None


def test_what_a_checkpoint_lacks_starts_afresh_and_is_said(bench: Bench) -> None:
    def script(**more: nn.Module) -> int:
        trial = gpusched.init()
        step = trial.track(model=nn.Linear(2, 1), **more)
        trial.report(accuracy=1)
        return step

    with daemon(bench, at_step(**{"yield": 1})):
        run_rank(script, bench)
    ended = run_rank(lambda: script(extra=nn.Linear(1, 1)), bench, incarnation=2)
    assert ended.value == 1
    assert (
        "trial.track(extra=...): not in the checkpoint of step 1 (which holds model)"
        in ended.stderr
    )
