"""Iterable data sets, dealt to real ranks over gloo: every sample once an epoch, also over a resize in mid-epoch."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

import gpusched
from tests.worker.fakes import END, Bench, run_ranks, through, values
from tests.worker.models import linear

LENGTH = 45


class Plain(IterableDataset[int]):
    """Knows nothing of ranks, workers or positions; in an order that is drawn from Python's generator."""

    epoch, own = 0, range(LENGTH)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        order = [1000 * self.epoch + n for n in self.own]
        random.shuffle(order)
        yield from order


class Stateful(Plain):
    """Says where it is, and not what its shuffle buffer holds, as streams of Hugging Face's datasets do."""

    def __init__(self) -> None:
        self.next = 0

    def __iter__(self) -> Iterator[int]:
        buffer: list[int] = []
        for number in range(self.next, LENGTH):
            self.next = number + 1
            buffer.append(1000 * self.epoch + number)
            if len(buffer) == 6:
                yield buffer.pop(random.randrange(6))
        self.next = 0
        yield from buffer

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.next = state["next"]


class Splitting(Plain):
    """Splits itself among workers, as torch's documentation has it; parts of unequal length, in a random order."""

    def __iter__(self) -> Iterator[int]:
        number, workers = (info.id, info.num_workers) if (info := get_worker_info()) else (0, 1)
        own = [1000 * self.epoch + n for n in range(LENGTH) if n * n % workers == number]
        random.shuffle(own)
        yield from own


def split(worker: int) -> None:
    """Give a worker its part as the other example of torch's documentation does, by ``worker_init_fn``."""
    info: Any = get_worker_info()
    info.dataset.own = info.dataset.own[worker :: info.num_workers]


class ByRank(IterableDataset[int]):
    """Takes a share for its rank by itself, but for the first sample."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.own = [0, *range(1 + rank, LENGTH, ranks)]

    def __iter__(self) -> Iterator[int]:
        return iter(self.own)


def make(kind: str, trial: gpusched.Trial) -> Any:
    if kind == "by rank":
        return ByRank(trial.rank, trial.world_size)
    return {"stateful": Stateful, "splitting": Splitting}.get(kind, Plain)()


def consume(kind: str, options: dict[str, Any], epochs: int = 2) -> dict[str, Any]:
    """The samples of every optimizer step, of a script that reports after every second one."""
    trial = gpusched.init()
    model, optimizer = linear()
    if kind == "splitting":  # as many workers as there is room for
        options = {"num_workers": 3 - trial.world_size}
    loader = trial.loader(make(kind, trial), **{"batch_size": 4, **options})
    trial.track(model=model, opt=optimizer)
    steps: list[list[int]] = []
    weights = []
    found = {"steps": steps, "weights": weights}
    while loader.epoch < epochs:
        for batch in loader:
            torch.rand(3)  # the training draws too
            optimizer.step()
            weights.append(trial._training.weight.value)
            steps.append(batch.tolist() if weights[-1] else [])
            if len(steps) % 2 == 0:
                try:
                    trial.report(accuracy=0)
                except SystemExit:
                    return found
    return found


def dealt(bench: Bench, sizes: list[int], kind: str, **options: Any) -> list[Any]:
    """The global batches of a trial that leaves after two more reports at each size but the last."""
    plan = [(ranks, 2 * number) for number, ranks in enumerate(sizes, 1)]
    batches: list[Any] = []
    for found in through(bench, consume, [*plan[:-1], (sizes[-1], END)], kind, options):
        batches += zip(*(one["steps"] for one in found), strict=True)
    return batches


def flat(batches: Any) -> list[int]:
    return [sample for batch in batches for part in batch for sample in part]


EVERY_SAMPLE = Counter([*range(LENGTH), *range(1000, 1000 + LENGTH)])
SIZES = [1, 2, 3, 1]
BY_WORKERS = {"num_workers": 2, "worker_init_fn": split}
CASES = [("plain", {}), ("plain", BY_WORKERS), ("stateful", {}), ("stateful", {"num_workers": 1})]
CASES += [("splitting", {})]


@pytest.mark.parametrize(("kind", "options"), CASES)
def test_no_sample_is_lost_or_repeated_over_resizes_in_mid_epoch(
    bench: Bench, kind: str, options: dict[str, Any]
) -> None:
    batches = dealt(bench, SIZES, kind, **options)
    seen = flat(batches)
    assert Counter(seen) == EVERY_SAMPLE
    assert [sample >= 1000 for sample in seen] == sorted(sample >= 1000 for sample in seen)


def test_shares_of_the_last_batch_are_weighted(bench: Bench) -> None:
    """45 samples, 8 at a time: 3 and 2 of the last five; 4 at a time with a fixed global batch: one sample for two."""
    one, other = values(run_ranks(consume, 2, bench, arguments=("plain", {}, 1)))
    assert (one["weights"][-1], other["weights"][-1]) == (2 * 3 / 5, 2 * 2 / 5)
    whole = bench.beside("global", batch="global")
    one, other = values(run_ranks(consume, 2, whole, arguments=("plain", {}, 1)))
    assert (one["weights"][-1], other["weights"][-1]) == (2.0, 0.0)


@pytest.mark.parametrize(
    ("kind", "options", "told"),
    [
        ("by rank", {}, "yields other samples on other ranks"),
        ("plain", {"drop_last": True, "batch_size": 46}, "fewer than one global batch of 46"),
    ],
)
def test_a_stream_that_would_lose_or_repeat_samples_is_refused(
    bench: Bench, kind: str, options: dict[str, Any], told: str
) -> None:
    bench.prepare(batch="global")
    for rank in run_ranks(consume, 3, bench, arguments=(kind, options)):
        assert told in rank.error
