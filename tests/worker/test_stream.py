"""Iterable data sets, dealt to real ranks over gloo: every sample once an epoch, also over a resize in mid-epoch."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import IterableDataset, get_worker_info

import gpusched
from gpusched.worker.data import Layout
from gpusched.worker.group import Group
from gpusched.worker.loader import ShareTerms
from gpusched.worker.stream import StreamLoader
from gpusched.worker.weights import BatchWeight
from tests.worker.fakes import Bench, at_step, daemon, run_ranks
from tests.worker.test_ranks import values

LENGTH = 45


class Plain(IterableDataset[int]):
    """Knows nothing of ranks, workers or positions; in an order that is drawn from Python's generator."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        order = [1000 * self.epoch + n for n in range(LENGTH)]
        random.shuffle(order)
        yield from order


class Stateful(Plain):
    """Says where it is, and counts what is read of it."""

    def __init__(self) -> None:
        self.begin = self.next = self.read = 0

    def __iter__(self) -> Iterator[int]:
        for number in range(self.begin, LENGTH):
            self.read += 1
            self.next = number + 1
            yield 1000 * self.epoch + number
        self.begin = 0

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.begin = state["next"]


class Sharded(Plain):
    """Splits itself among workers, as torch's documentation has it; shards of unequal length, in a random order."""

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        own = [1000 * self.epoch + n for n in range(LENGTH) if n * n % info.num_workers == info.id]
        random.shuffle(own)
        yield from own


class Unequal(IterableDataset[int]):
    """Two shards: four samples, and twelve."""

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        yield from range(4, 16) if info.id else range(4)


class ByRank(IterableDataset[int]):
    """Takes a share for its rank by itself."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.own = range(rank, LENGTH, ranks)

    def __iter__(self) -> Iterator[int]:
        return iter(self.own)


def make(kind: str, trial: gpusched.Trial) -> Any:
    if kind == "by rank":
        return ByRank(trial.rank, trial.world_size)
    return {"stateful": Stateful, "sharded": Sharded}.get(kind, Plain)()


def consume(kind: str, options: dict[str, Any], epochs: int = 2) -> dict[str, Any]:
    """The samples of every optimizer step, of a script that reports after every second one."""
    trial = gpusched.init()
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dataset = make(kind, trial)
    loader = trial.loader(dataset, **{"batch_size": 4, **options})
    trial.track(model=model, opt=optimizer)
    steps: list[list[int]] = []
    weights = []
    found = {"steps": steps, "weights": weights, "read": 0}
    while loader.epoch < epochs:
        for batch in loader:
            torch.rand(3)  # the training draws too
            optimizer.step()
            weights.append(batch._gpusched_weight)
            steps.append(batch.tolist() if weights[-1] else [])
            if len(steps) % 2 == 0:
                try:
                    trial.report(accuracy=0)
                except SystemExit:
                    return found
            found["read"] = getattr(dataset, "read", 0)
    return found


def through(bench: Bench, sizes: list[int], kind: str, **options: Any) -> list[list[list[int]]]:
    """The global batches of a trial that leaves after two more reports at each size but the last."""
    batches = []
    for number, ranks in enumerate(sizes, 1):
        last = number == len(sizes)
        with daemon(bench, at_step(**({} if last else {"yield": 2 * number}))):
            found = values(run_ranks(consume, ranks, bench, number, (kind, options)))
        lengths = {len(one["steps"]) for one in found}
        assert len(lengths) == 1, "every rank has as many batches"
        batches += list(zip(*(one["steps"] for one in found), strict=True))
    return batches


def flat(batches: Any) -> list[int]:
    return [sample for batch in batches for part in batch for sample in part]


EVERY_SAMPLE = Counter([*range(LENGTH), *range(1000, 1000 + LENGTH)])
SIZES = [1, 2, 3, 1]
CASES = [
    ("plain", {}),
    ("plain", {"num_workers": 2}),
    ("stateful", {}),
    ("stateful", {"num_workers": 1}),
    ("sharded", {"shards": 5}),
    ("sharded", {"shards": 5, "num_workers": 2}),
]


@pytest.mark.parametrize(("kind", "options"), CASES)
def test_no_sample_is_lost_or_repeated_over_resizes_in_mid_epoch(
    bench: Bench, kind: str, options: dict[str, Any]
) -> None:
    batches = through(bench, SIZES, kind, **options)
    seen = flat(batches)
    assert Counter(seen) == EVERY_SAMPLE
    assert [sample >= 1000 for sample in seen] == sorted(sample >= 1000 for sample in seen)


def test_a_data_set_with_a_state_is_not_read_again(bench: Bench) -> None:
    with daemon(bench, at_step(**{"yield": 2})):
        values(run_ranks(consume, 1, bench, 1, ("stateful", {}, 1)))
    for found in values(run_ranks(consume, 2, bench, 2, ("stateful", {}, 1))):
        assert found["read"] == LENGTH - 16


def test_shares_of_the_last_batch_are_weighted(bench: Bench) -> None:
    """45 samples, 8 at a time: 3 and 2 of the last five; 4 at a time with a fixed global batch: one sample for two."""
    one, other = values(run_ranks(consume, 2, bench, arguments=("plain", {}, 1)))
    assert (one["weights"][-1], other["weights"][-1]) == (2 * 3 / 5, 2 * 2 / 5)
    bench.prepare(batch="global")
    one, other = values(run_ranks(consume, 2, bench, 2, ("plain", {}, 1)))
    assert (one["weights"][-1], other["weights"][-1]) == (2.0, 0.0)


def test_what_does_not_fill_a_batch_is_left_out_on_wish(bench: Bench) -> None:
    (one,) = values(run_ranks(consume, 1, bench, arguments=("plain", {"drop_last": True}, 1)))
    assert [len(step) for step in one["steps"]] == [4] * 11


@pytest.mark.parametrize("drop_last", [True, False])
def test_a_shard_that_ends_leaves_the_rest_of_its_batch_to_the_others(
    bench: Bench, drop_last: bool
) -> None:
    """Five shards of 45 samples: two are empty, three end one after another."""
    options = {"shards": 5, "drop_last": drop_last}
    (one,) = values(run_ranks(consume, 1, bench, arguments=("sharded", options, 1)))
    assert [len(step) for step in one["steps"]] == [4] * 11 + [1] * (not drop_last)


@pytest.mark.parametrize("drop_last", [True, False])
def test_a_worker_process_with_nothing_left_does_not_end_the_epoch(drop_last: bool) -> None:
    def loader() -> StreamLoader:
        terms = ShareTerms(Layout(0, 1, 1, exact=False), 0, BatchWeight(), torch.device("cpu"))
        options: dict[str, Any] = {"num_workers": 2, "shards": 2, "drop_last": drop_last}
        return StreamLoader(terms, Unequal(), 4, group=Group(0, 1), **options)

    begun, goes_on = loader(), loader()
    batches = iter(begun)
    assert next(batches).tolist() == [0, 1, 2, 3], "the whole first shard"
    goes_on.load_state_dict(begun.state_dict())
    assert [n for batch in goes_on for n in batch.tolist()] == list(range(4, 16))


@pytest.mark.parametrize(
    ("kind", "options", "told"),
    [
        ("by rank", {}, "yields other samples on other ranks"),
        ("plain", {"shards": 4}, "does not ask torch.utils.data.get_worker_info()"),
        ("sharded", {"shards": 2}, "3 ranks cannot share them"),
        ("sharded", {"shards": 5, "batch_size": 2}, "gives no sample to some of 3 ranks"),
        ("plain", {"drop_last": True, "batch_size": 46}, "does not fill one global batch of 46"),
    ],
)
def test_a_stream_that_would_lose_or_repeat_samples_is_refused(
    bench: Bench, kind: str, options: dict[str, Any], told: str
) -> None:
    bench.prepare(batch="global")
    for rank in run_ranks(consume, 3, bench, arguments=(kind, options)):
        assert told in rank.error
