"""Several real ranks over gloo: they agree on everything, and a resize changes nothing that it should not."""

from __future__ import annotations

import contextlib
import random
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import init_process_group
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

import gpusched
from gpusched.protocol import RankHello, Remark, Report
from gpusched.worker import endings
from tests.worker.fakes import END, Bench, at_step, daemon, if_it_leaves, run_ranks, through, values
from tests.worker.models import descend, weights_of, with_a_layer


def digits(length: int = 23) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(length, 4, generator=generator, dtype=torch.float64)
    return TensorDataset(images, images.sum(1, keepdim=True).sin())


def small_net() -> nn.Module:
    """Batch norm stays in evaluation mode: its statistics would depend on who sees which sample."""
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 1)).double()
    net[1].eval()
    return net


def train(
    batch_size: int = 5, accumulate: int = 1, epochs: int = 3, inside: bool = True
) -> list[float]:
    """Trains in float64 and reports after every optimizer step; the weights it ends with."""
    trial = gpusched.init()
    model = trial.wrap(small_net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.97)
    trial.scale_lr(optimizer)
    loader = trial.loader(digits(), batch_size=batch_size)
    average = torch.optim.swa_utils.AveragedModel(model)
    trial.track(model=model, opt=optimizer, sched=schedule, ema=average)
    for _ in trial.steps(limit=epochs):
        for number, (x, y) in enumerate(loader):
            is_last = not loader.mid_epoch
            stepping = number % accumulate == accumulate - 1 or is_last
            waiting = hasattr(model, "no_sync") and not stepping
            with model.no_sync() if waiting else contextlib.nullcontext():
                (nn.functional.mse_loss(model(x), y) / accumulate).backward()
            if stepping:
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()
                average.update_parameters(model)
                if inside and not is_last:
                    trial.report(accuracy=0.0)
        trial.report(accuracy=0.0)
    return weights_of(model, average)


def resized(bench: Bench, plan: list[tuple[int, int]], **options: Any) -> list[float]:
    """Run ``train`` with ``plan`` = (ranks, yield at step); the last entry runs to the end. Every rank ends alike."""
    arguments = tuple(
        {"batch_size": 5, "accumulate": 1, "epochs": 3, "inside": True, **options}.values()
    )
    *_, weights = through(bench, train, plan, *arguments)
    for incarnation, (_, step) in enumerate(plan, start=1):
        word = bench.last_word(incarnation)
        assert word is not None
        if word["why"] == "yielded":
            assert word["step"] == word["saved_step"] == step
    assert all(other == weights[0] for other in weights)
    return weights[0]


@pytest.mark.parametrize(("batch_size", "accumulate"), [(5, 1), (6, 3), (7, 3), (23, 1)])
def test_global_batch_any_number_of_ranks_gives_the_same_weights(
    bench: Bench, batch_size: int, accumulate: int
) -> None:
    """23 samples: last partial batches of 3, 5, 2 and 0, fewer than the ranks too; sizes that do not divide."""
    options = {"batch_size": batch_size, "accumulate": accumulate}
    expected: list[float] = []
    for ranks in (1, 2, 3, 4):
        here = bench.beside(f"ranks-{ranks}", batch="global")
        weights = resized(here, [(ranks, END)], **options)
        expected = expected or weights
        assert weights == pytest.approx(expected, abs=1e-9, rel=1e-9)


@pytest.mark.parametrize(
    "plan",
    [
        [(1, 3), (2, 7), (4, 8), (3, 13), (1, END)],
        [(4, 2), (1, 3), (3, 14), (2, END)],
        [(2, 5), (1, 10), (2, END)],
    ],
)
def test_global_batch_resized_anywhere_gives_the_same_weights(
    bench: Bench, plan: list[tuple[int, int]]
) -> None:
    """Five optimizer steps an epoch: the resizes lie in mid-epoch and at its end."""
    bench.prepare(batch="global")
    expected = resized(bench.beside("whole", batch="global"), [(1, END)])
    assert resized(bench, plan) == pytest.approx(expected, abs=1e-9, rel=1e-9)


def test_a_batch_per_atom_is_the_mean_over_its_samples(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uneven last batches too: as one process with the whole global batch and the scaled rate would do it."""
    scaled = "gpusched.worker.learning_rate.RateScaler.factor"
    monkeypatch.setattr(scaled, property(lambda scaler: 3**0.5))  # without a warm-up
    bench.prepare(lr_power=0.5)
    weights = resized(bench, [(3, END)], batch_size=4, inside=False)

    def by_hand() -> list[float]:
        trial = gpusched.init()
        model = small_net()
        average = torch.optim.swa_utils.AveragedModel(model)
        optimizer = torch.optim.SGD(
            model.parameters(), lr=0.05 * 3**0.5, momentum=0.9, nesterov=True
        )
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.97)
        loader = trial.loader(digits(), batch_size=12)
        for _ in range(3):
            for x, y in loader:
                descend(optimizer, nn.functional.mse_loss(model(x), y))
                schedule.step()
                average.update_parameters(model)
        return weights_of(model, average)

    ((expected,),) = through(bench.beside("hand"), by_hand, [(1, END)])
    assert weights == pytest.approx(expected, abs=1e-9, rel=1e-9)


def test_the_effective_rate_over_resizes_1_2_4_2(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By hand: 12 samples, batch 3 an atom, warm-up over 2 epochs; an epoch is 4, 2, 1 and 2 steps."""
    monkeypatch.setattr("gpusched.worker.learning_rate.WARMUP_EPOCHS", 2.0)

    def script() -> list[float]:
        trial = gpusched.init()
        model = trial.wrap(nn.Linear(4, 1).double())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        trial.scale_lr(optimizer)
        used: list[float] = []
        optimizer.register_step_pre_hook(lambda o, *_: used.append(o.param_groups[0]["lr"]))
        loader = trial.loader(digits(12), batch_size=3)
        if_it_leaves(lambda: used)
        trial.track(model=model, opt=optimizer)
        for _ in trial.steps(limit=6):
            for x, _y in loader:
                descend(optimizer, model(x).sum())
            trial.report(accuracy=0)
        return used

    used: list[float] = []
    for per_rank in through(bench, script, [(1, 1), (2, 2), (4, 5), (2, END)]):
        assert all(rates == per_rank[0] for rates in per_rank)
        used.extend(per_rank[0])
    by_hand = [1, 1, 1, 1]  # one atom
    by_hand += [1, 1.25]  # 1 -> 2 over two epochs: after 0 and 1/2 epoch
    by_hand += [1.5, 2.75, 4]  # 1.5 -> 4 over two epochs, one step an epoch
    by_hand += [2, 2]  # back to two, at once
    assert used == pytest.approx([0.1 * factor for factor in by_hand])


@pytest.mark.parametrize("of", ["what it has seen", "all", "all of a training loader"])
def test_mean_counts_each_sample_once_and_evaluation_shards(bench: Bench, of: str) -> None:
    """A loss divided by the length of all data on each rank was a third on three, and such a trial won."""

    def script() -> list[float]:
        trial = gpusched.init()
        data = TensorDataset(torch.arange(10.0))
        make: Any = trial.loader if "training" in of else trial.eval_loader
        loader = make(data, batch_size=2)
        correct, total = torch.tensor(0.0), 0
        for (x,) in loader:
            correct += x.sum()
            total += len(x)
        return [total, trial.mean(correct, len(data) if "all" in of else total), trial.mean(0, 0)]

    ended = run_ranks(script, 3, bench)
    told = "is too small by the number of ranks" in ended[0].stderr
    seen, means, empty = zip(*values(ended), strict=True)
    assert (sum(seen), max(seen)) == (10, 4)
    assert means == (1.5 if told else 4.5,) * 3
    assert all(map(np.isnan, empty))
    assert told == ("all" in of)


def draw() -> list[float]:
    return [random.random(), float(np.random.rand()), torch.rand(1).item()]


@pytest.mark.parametrize("tracks", [True, False])
def test_random_numbers_alike_in_set_up_then_each_its_own_and_on_across_a_resize(
    bench: Bench, tracks: bool
) -> None:
    """A random split of the data is that of the first launch, also where ``trial.state`` was read before."""

    def script() -> list[Any]:
        trial = gpusched.init()
        trial.state.setdefault("best", 0.0)
        known = [trial.id, trial.seed, str(trial.device), gpusched.init() is trial]
        set_up = [*draw(), *known]
        seen: list[Any] = []
        if_it_leaves(lambda: [set_up, seen])
        own: Any = range(0 if tracks else trial.step, 4)
        for _ in trial.steps(4, model=nn.Linear(1, 1)) if tracks else own:
            seen.append(draw())
            trial.report(accuracy=0)
        return [set_up, seen]

    (whole,) = through(bench.beside("whole"), script, [(2, END)])
    assert whole[0][1][0] != whole[1][1][0]
    first, second, third = through(bench, script, [(2, 2), (3, 3), (2, END)])
    assert all(rank[0] == whole[0][0] for rank in (*whole, *first, *second, *third))
    assert whole[0][0][3:] == [7, 123, "cpu", True]
    for rank in range(2):
        drawn = first[rank][1] + second[rank][1] + third[rank][1]
        assert drawn == whole[rank][1]
    fresh = second[2][1]
    assert len(fresh) == 1
    assert fresh[0] not in [numbers for rank in whole for numbers in rank[1]]


@pytest.mark.parametrize("verb", ["yield", "leave"])
def test_all_ranks_leave_at_the_same_step(bench: Bench, verb: str) -> None:
    def script() -> Any:
        trial = gpusched.init()
        trial.track(model=trial.wrap(nn.Linear(1, 1)))
        for _ in range(trial.step, 9):
            trial.report(accuracy=0)
        return "never"

    with daemon(bench, at_step(**{verb: 4})) as fake:
        ended = run_ranks(script, 3, bench)
        assert len(fake.of_kind(RankHello)) == 1
        assert len(fake.of_kind(Report)) == 4
    assert [(rank.code, rank.error) for rank in ended] == [(0, "")] * 3
    saved = 4 if verb == "yield" else None
    assert bench.last_word() == {"why": "yielded", "step": 4, "saved_step": saved}


@pytest.mark.parametrize("refused", ["checkpoints", "last word"])
def test_a_disk_that_refuses_keeps_all_ranks_training(bench: Bench, refused: str) -> None:
    """Rank 1 left where the disk had the checkpoint, and refused the last word."""
    if refused == "checkpoints":
        bench.paths.checkpoints.write_text("in the way")
    else:
        bench.paths.last_word(1).mkdir(parents=True)

    def script() -> list[int]:
        trial = with_a_layer()
        seen = []
        for step in trial.steps(limit=4):
            seen.append(step)
            trial.report(accuracy=0)
        return seen

    with daemon(bench, at_step(**{"yield": 2})) as fake:
        ended = run_ranks(script, 2, bench)
        assert values(ended) == [[0, 1, 2, 3]] * 2
        if refused == "checkpoints":
            assert fake.saved() == []
            told = {frame.text.partition("(")[0] for frame in fake.of_kind(Remark)}
            assert told == {"a checkpoint cannot be saved "}
            assert "no checkpoint of step 2" in ended[0].stderr
            assert "training continues" in ended[0].stderr
            assert bench.last_word() == {"why": "finished", "step": 4, "saved_step": None}


def test_the_default_process_group_is_the_scripts(bench: Bench) -> None:
    def script() -> tuple[bool, float, float]:
        init_process_group("gloo", timeout=timedelta(seconds=77))
        trial = gpusched.init()
        options = dist.group.WORLD._get_backend(torch.device("cpu")).options
        total = torch.ones(1)
        dist.all_reduce(total)
        trial.report(accuracy=1)
        dist.destroy_process_group()
        trial.report(accuracy=1)
        return dist.is_initialized(), options._timeout.total_seconds(), total.item()

    assert values(run_ranks(script, 2, bench)) == [(False, 77.0, 2.0)] * 2
    assert bench.last_word() == {"why": "finished", "step": 2, "saved_step": 2}


def test_a_process_group_that_a_script_makes_too_late_is_refused_with_the_fix(bench: Bench) -> None:
    def script() -> str:
        gpusched.init()
        try:
            dist.init_process_group("gloo")
        except ValueError as error:
            return endings.headline(error, __file__)
        return "made"

    for told in values(run_ranks(script, 2, bench)):
        assert "test_ranks.py" in told
        assert "if not dist.is_initialized():" in told


def test_what_is_there_on_several_ranks_alone_says_so_on_one() -> None:
    layer: Any = nn.Linear(1, 1)
    calls: dict[str, Any] = {
        "write `if not dist.is_initialized(): dist.init_process_group()`": dist.get_rank,
        "write `if dist.is_initialized():` before this line": dist.destroy_process_group,
        "leave .module out": lambda: layer.module,
    }
    for told, wrong in calls.items():
        with pytest.raises((ValueError, AssertionError, AttributeError)) as raised:
            wrong()
        assert told in endings.headline(raised.value, __file__)


def test_a_script_that_mixes_devices_is_told_where_batches_are() -> None:
    text = "Expected all tensors to be on the same device, but found at least two, cuda:0 and cpu!"
    assert "are on trial.device" in endings.headline(RuntimeError(text), __file__)


class Half(nn.Module):
    """As a transformer under a head of the script's own, which leaves its pooler out."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(1, 1), nn.Linear(1, 1)

    def forward(self, x: torch.Tensor) -> Any:
        return self.used(x)


def unused(own: bool = False, steps: int = 4) -> str:
    trial = gpusched.init()
    model: nn.Module = Half()
    if own:
        model = DistributedDataParallel(model, find_unused_parameters=True)
    model = trial.prepare(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    try:
        for _ in trial.steps(steps, model=model, opt=optimizer):
            for _ in range(2):
                descend(optimizer, model(torch.rand(1, 1)).sum())
            trial.report(accuracy=0)
    except RuntimeError as error:
        return endings.headline(error, __file__)
    return "trained"


def test_parameters_that_a_step_leaves_out_are_known_to_ddp_once_a_launch_has_seen_them(
    bench: Bench,
) -> None:
    for told in values(run_ranks(unused, 2, bench.beside("at once"))):
        assert "Write model = trial.wrap(model, find_unused_parameters=True)" in told
    assert through(bench, unused, [(1, 1), (2, 2), (2, END)])[2] == ["trained"] * 2


def test_a_model_that_the_script_has_wrapped_stays_as_it_is(bench: Bench) -> None:
    """A second wrapper held every gradient twice, summed it twice, and refused what the first one allows."""
    assert through(bench, unused, [(2, END)], True) == [["trained"] * 2]


def test_attributes_methods_and_names_of_a_wrapped_model_are_the_models(bench: Bench) -> None:
    """On several ranks ``model.scale *= 0.5`` set it on the wrapper; a ``device`` like transformers' was set by DDP."""

    class Scaled(nn.Linear):
        scale, dim = 1.0, 512

        @property
        def device(self) -> str:
            return str(self.weight.device)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * self.scale

        def decode(self, code: int) -> float:
            return code * self.scale

    def script() -> list[Any]:
        model: Any = gpusched.init().wrap(Scaled(1, 1))
        model.note = "the wrapper's"
        before = model(torch.ones(1)).item()
        model.scale *= 2
        ratio = model(torch.ones(1)).item() / before
        with pytest.raises(AttributeError, match="'Scaled' object has no attribute 'lost'"):
            model.lost  # noqa: B018
        is_wrapped = isinstance(model, DistributedDataParallel)
        own = [model.scale, model.dim, str(model.device), model.decode(3)]
        model.load_state_dict(model.state_dict())
        names = [*model.state_dict(), *(name for name, _ in model.named_parameters())]
        return [ratio, *own, is_wrapped and hasattr(model.module, "note"), *names]

    alone = [2.0, 2.0, 512, "cpu", 6.0, False, *["weight", "bias"] * 2]
    assert values(run_ranks(script, 1, bench.beside("alone"))) == [alone]
    assert values(run_ranks(script, 2, bench)) == [alone] * 2


@pytest.mark.parametrize("own", ["before", "none"])
def test_a_plain_torchrun_script_that_wraps_ddp_itself(bench: Bench, own: str) -> None:
    def script() -> list[float]:
        if own == "before":
            dist.init_process_group("gloo")
        trial = gpusched.init()
        torch.manual_seed(0)
        model = DistributedDataParallel(nn.Linear(2, 1))
        assert dist.get_world_size() == trial.world_size
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        trial.track(model=model, opt=optimizer)
        for _ in range(trial.step, 4):
            descend(optimizer, model(torch.ones(1, 2) * (1 + trial.rank)).sum())
            trial.report(accuracy=0)
        return model.module.weight.flatten().tolist()

    (whole,) = through(bench.beside("whole"), script, [(2, END)])
    left, ended = through(bench, script, [(2, 2), (2, END)])
    assert left == [None, None]
    assert ended == [pytest.approx(weights) for weights in whole]
