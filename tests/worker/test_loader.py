from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import (
    BatchSampler,
    ChainDataset,
    DataLoader,
    Dataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from gpusched.worker.data import BatchWeight, Layout
from gpusched.worker.loader import ShareTerms, TrainingLoader
from gpusched.worker.prepare import arguments_of, loader_options, place_batch
from gpusched.worker.stream import evaluation_loader

CPU = torch.device("cpu")


class Numbers(Dataset[Any]):
    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> int:
        return index


def loaders(
    length: int, world_size: int, batch_size: int = 4, **options: Any
) -> list[TrainingLoader]:
    exact, kind = options.pop("exact", False), options.pop("kind", Numbers)
    layouts = [Layout(rank, world_size, exact) for rank in range(world_size)]
    seed = options.pop("seed", 5)
    return [
        TrainingLoader(
            ShareTerms(layout, 1 if exact else world_size, seed, BatchWeight(), CPU),
            kind(length),
            batch_size,
            **options,
        )
        for layout in layouts
    ]


def weight_of(loader: TrainingLoader) -> float:
    """Return the weight of the gradients of the loader's present batch."""
    return loader._weight.value


def take(made: list[TrainingLoader], at_most: int = 10**6) -> list[list[int]]:
    """Up to so many global batches from all ranks in lockstep, each in the order of the epoch."""
    iterators = [iter(loader) for loader in made]
    taken: list[list[int]] = []
    while len(taken) < at_most:
        parts = [next(iterator, None) for iterator in iterators]
        if parts[0] is None:
            assert parts == [None] * len(parts)
            break
        taken.append(
            [
                n
                for part, loader in zip(parts, made, strict=True)
                if weight_of(loader)
                for n in part.tolist()
            ]
        )
    states = [loader.state_dict() for loader in made]
    assert all(state == states[0] for state in states)
    for iterator in iterators:
        iterator.close()
    made[0].last_state = states[0]
    return taken


@settings(max_examples=40)
@given(
    length=st.integers(1, 60),
    worlds=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 4)), max_size=4),
    batch_size=st.integers(1, 9),
    shuffle=st.booleans(),
    exact=st.booleans(),
)
def test_two_epochs_resized_anywhere(
    length: int, worlds: list[tuple[int, int]], batch_size: int, shuffle: bool, exact: bool
) -> None:
    """Real loaders; wherever training is stopped and resized, both epochs visit all samples in the same order."""
    options = {"batch_size": batch_size, "shuffle": shuffle, "exact": exact}
    (plain,) = loaders(length, 1, **options)
    expected = [n for _ in range(2) for batch in plain for n in batch.tolist()]
    visited: list[int] = []
    state = None
    for world_size, at_most in [*worlds, (2, 10**6), (3, 10**6), (1, 10**6)]:
        made = loaders(length, world_size, **options)
        if state is not None:
            for loader in made:
                loader.load_state_dict(state)
        for batch in take(made, at_most):
            assert len(batch) <= made[0].global_batch, "a GPU may be full"
            visited.extend(batch)
        state = made[0].last_state
        if len(visited) >= 2 * length:
            break
    assert visited[: 2 * length] == expected


def test_samples_that_a_script_adds_to_its_data_are_visited_from_the_next_epoch_on() -> None:
    (loader,) = loaders(6, 1)
    assert len([*loader]) == 2
    loader.dataset._length = 9
    assert sorted(n for batch in take([loader]) for n in batch) == list(range(9))


def test_data_that_fill_no_global_batch_make_one() -> None:
    """A trial that had grown beyond its data was refused."""
    assert [len(batch) for batch in take(loaders(6, 2, drop_last=True))] == [6]
    assert [len(batch) for batch in take(loaders(6, 1, drop_last=True))] == [4]


@pytest.mark.parametrize("persistent", [False, True])
def test_worker_processes_change_nothing(persistent: bool) -> None:
    (plain,) = loaders(23, 1)
    (parallel,) = loaders(23, 1, num_workers=2, persistent_workers=persistent)
    for _ in range(2):
        assert [b.tolist() for b in parallel] == [b.tolist() for b in plain]
    if persistent:
        # Left to the garbage collector, torch waits for 5 s for each of them in whatever test it comes up.
        parallel._loader._iterator._shutdown_workers()


def test_what_workers_fetched_ahead_is_not_consumed() -> None:
    (loader,) = loaders(40, 1, num_workers=2, prefetch_factor=4)
    iterator = iter(loader)
    first = [next(iterator).tolist() for _ in range(3)]
    state = loader.state_dict()
    assert (state["epoch"], state["consumed"]) == (0, 12)
    iterator.close()
    (resumed,) = loaders(40, 1)
    resumed.load_state_dict(state)
    rest = [batch.tolist() for batch in resumed]
    assert sorted(n for batch in [*first, *rest] for n in batch) == list(range(40))


def test_position_epoch_and_mid_epoch() -> None:
    (loader,) = loaders(8, 1)
    assert not loader.mid_epoch
    iterator = iter(loader)
    next(iterator)
    assert loader.mid_epoch
    assert loader.epochs_seen == 0.5
    next(iterator)
    assert not loader.mid_epoch, "the last batch is out: this is the end of the epoch"
    assert loader.state_dict()["epoch"] == 1
    assert loader.state_dict()["consumed"] == 0
    assert len(loader) == 2, "of a whole epoch, wherever it stands"
    assert list(iterator) == []
    assert (loader.epoch, loader.epochs_seen) == (1, 1.0)


def test_break_ends_an_epoch() -> None:
    (loader,) = loaders(20, 1)
    first = next(iter(loader)).tolist()
    assert (loader.epoch, loader.state_dict()["consumed"]) == (0, 0), "a look before the training"
    loader.is_set_up = True
    for batch in loader:
        assert batch.tolist() == first
        break
    assert not loader.mid_epoch
    assert (loader.epoch, loader.state_dict()["consumed"]) == (1, 0)
    assert loader.epochs_seen == pytest.approx(0.2)
    assert sorted(n for batch in loader for n in batch.tolist()) == list(range(20))
    assert loader.epoch == 2


def test_a_look_that_is_held_costs_no_part_of_an_epoch_and_must_not_go_on_beside_a_newer() -> None:
    """After a pause in mid-epoch the rest of that epoch was lost."""
    (loader,) = loaders(20, 1)
    loader.load_state_dict({**loader.state_dict(), "consumed": 8})
    look = iter(loader)
    first = next(look).tolist()
    loader.is_set_up = True
    batches = [batch.tolist() for batch in loader]
    assert (batches[0], len(batches), loader.epoch) == (first, 3, 1)
    with pytest.raises(RuntimeError, match="a loop continues after a newer one"):
        next(look)


def test_steps_on_the_first_batches_of_many_iterations_are_training() -> None:
    """``next(iter(loader))`` in the loop: rates after a resize never rose."""
    (loader,) = loaders(20, 1)
    loader.counts_steps = True
    loader.is_set_up = True
    for _ in range(5):
        next(iter(loader))
        loader.step_taken()
    assert (loader.epoch, loader.passes) == (5, pytest.approx(1.0))


def test_foreign_samplers_and_loaders_are_refused_and_other_options_fitted() -> None:
    with pytest.raises(TypeError, match="takes a data set, not a DataLoader"):
        loaders_of(DataLoader(Numbers(3)))
    with pytest.raises(TypeError, match="takes a data set with a length"):
        evaluation_loader(ChainDataset([]), 4, Layout(0, 1, exact=False), CPU)
    with pytest.raises(TypeError, match="leave batch_sampler out"):
        loaders_of(Numbers(3), batch_sampler=object())
    assert len(loaders_of(Numbers(3), generator=torch.Generator())) == 2, "it has its own"
    for device, is_pinned in (("cpu", True), ("meta", False)):  # what is on the GPU cannot be
        data = TensorDataset(torch.ones(3, device=device))
        assert loader_options(data, {}, torch.device("cuda"))["pin_memory"] == is_pinned
    with pytest.raises(ValueError, match="empty"):
        loaders_of(Numbers(0))


def test_data_of_another_length_are_refused_within_an_epoch_and_by_the_number_of_ranks() -> None:
    """A fold, a rollout or a curriculum may have another length in every epoch; a part for each rank may not."""
    (loader,), (other,) = loaders(9, 1), loaders(10, 1)
    (fold, _), (part, _) = loaders(10, 2), loaders(5, 2)
    other.load_state_dict(begun := loader.state_dict())
    fold.load_state_dict(begun)
    iterator = iter(loader)
    next(iterator)
    for into, state in ((other, loader.state_dict()), (part, begun)):
        with pytest.raises(ValueError, match="made with 9 samples, this data set has"):
            into.load_state_dict(state)


class Wrong(RandomSampler):
    def __len__(self) -> int:
        return 8


@pytest.mark.parametrize("samples", [7, 9])
def test_a_sampler_that_is_not_as_long_as_it_says_is_refused(samples: int) -> None:
    with pytest.raises(ValueError, match="has 8 indices by its len"):
        list(loaders_of(Numbers(9), sampler=Wrong(range(9), num_samples=samples)))


def test_a_sampler_that_never_ends_is_drawn_as_it_is_read() -> None:
    """makemore's: an epoch of 1e10 indices, dealt exactly over a resize; a pass over the data is what rates go by."""
    sampler = RandomSampler(range(40), replacement=True, num_samples=10**10)
    (whole,), resized = (loaders(40, ranks, sampler=sampler, shuffle=False) for ranks in (1, 2))
    assert len(whole) == 10**10 // 4
    expected = [n for batch in take([whole], 30) for n in batch]
    (first,) = loaders(40, 1, sampler=sampler)
    seen = [n for batch in take([first], 10) for n in batch]
    for loader in resized:
        loader.load_state_dict(first.last_state)
        assert loader.passes == pytest.approx(1.0)
    seen += [n for batch in take(resized, 10) for n in batch]
    assert seen == expected


def loaders_of(dataset: Any, **options: Any) -> TrainingLoader:
    terms = ShareTerms(Layout(0, 1, exact=False), 1, 0, BatchWeight(), CPU)
    return TrainingLoader(terms, dataset, **{"batch_size": 2, **options})


def test_nothing_draws_from_the_global_generator_or_on_the_default_device() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    data = TensorDataset(torch.arange(10))
    (loader,) = loaders(10, 1, kind=lambda _: data)
    evaluation = evaluation_loader(data, 4, Layout(0, 1, exact=False), CPU)
    with torch.device("meta"):  # as torch.set_default_device("cuda")
        assert len(list(loader)) == len(list(evaluation)) == 3
    assert torch.equal(torch.get_rng_state(), before)


@given(length=st.integers(0, 50), world_size=st.integers(1, 6), batch_size=st.integers(1, 9))
def test_evaluation_gives_each_sample_to_one_rank(
    length: int, world_size: int, batch_size: int
) -> None:
    """Of a sampler's too: a subset that was held out was evaluated together with the data trained on."""
    for step in (1, 2):
        seen: Counter[int] = Counter()
        own = {"sampler": SubsetRandomSampler(range(0, length, 2))} if step == 2 else {}
        for rank in range(world_size):
            layout = Layout(rank, world_size, exact=False)
            loader = evaluation_loader(Numbers(length), batch_size, layout, CPU, **own)
            assert isinstance(loader.dataset, Numbers), "what a worker_init_fn sees"
            batches = [batch.tolist() for batch in loader]
            assert len(batches) == len(loader)
            assert all(0 < len(batch) <= batch_size for batch in batches)
            seen.update(n for batch in batches for n in batch)
        assert seen == Counter(range(0, length, step))


class Pair(NamedTuple):
    image: torch.Tensor
    label: torch.Tensor


def test_batches_are_placed_whatever_they_are_made_of() -> None:
    meta = torch.device("meta")
    one = torch.zeros(2)
    given = {"a": one, "b": [one, (one, "text")], "c": Pair(one, one), "d": 3}
    batch = place_batch({**given, "e": pack_sequence([one])}, meta)
    assert batch["a"].device == batch["b"][0].device == batch["b"][1][0].device == meta
    assert isinstance(batch["c"], Pair)
    assert batch["c"].label.device == meta
    assert (batch["e"].data.device, batch["e"].batch_sizes.device) == (meta, CPU)
    assert (batch["b"][1][1], batch["d"]) == ("text", 3)
    (loader,) = [loaders_of(TensorDataset(torch.zeros(4, 2), torch.zeros(4)))]
    assert [tuple(x.shape) for x, _ in loader] == [(2, 2), (2, 2)]


class HardFirst(RandomSampler):
    def __iter__(self) -> Iterator[int]:
        return iter(sorted(super().__iter__(), reverse=True))


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"shuffle": True, "drop_last": True}, {"drop_last": True}),
        ({"shuffle": True, "collate_fn": sorted, "num_workers": 2}, {"num_workers": 2}),
        ({"sampler": (once := RandomSampler(range(9), num_samples=5))}, {"sampler": once}),
        ({"sampler": (again := RandomSampler(range(9), replacement=True))}, {"sampler": again}),
        ({"sampler": (hard := HardFirst(range(9)))}, {"sampler": hard}),
    ],
    ids=["shuffled", "by workers", "a part", "with replacement", "of the script's own"],
)
def test_a_ready_made_loader_keeps_its_options(
    options: dict[str, Any], kept: dict[str, Any]
) -> None:
    found = arguments_of(DataLoader(Numbers(9), batch_size=3, **options))
    assert {**found, **kept, "batch_size": 3} == found
    assert found["collate_fn"] is options.get("collate_fn", found["collate_fn"])
    assert "shuffle" in kept or "shuffle" not in found
    assert found["pin_memory"] is False, "its data may be on the GPU"
    assert loaders_of(Numbers(9), **found).global_batch == 3


@pytest.mark.parametrize("batches", [BatchSampler(range(9), 3, False), None])
def test_a_loader_whose_batches_cannot_be_shared_is_refused(batches: Any) -> None:
    loader = DataLoader(Numbers(9), batch_sampler=batches, batch_size=1 if batches else None)
    with pytest.raises(TypeError, match="cannot be shared by ranks"):
        arguments_of(loader, splits=batches is not None)


class OfOneKind(BatchSampler):
    """As torchvision's ``GroupedBatchSampler``: even numbers in one batch, odd ones in another, which is a tensor."""

    def __iter__(self) -> Iterator[Any]:
        drawn = list(self.sampler)
        for kind in (0, 1, 0, 1):
            of_kind = [number for number in drawn if number % 2 == kind][: self.batch_size]
            drawn = [number for number in drawn if number not in of_kind]
            yield torch.tensor(of_kind) if kind else of_kind


def test_batches_of_a_batch_sampler_are_dealt_whole_and_on_over_a_resize() -> None:
    batches = OfOneKind(RandomSampler(range(8)), 2, drop_last=False)
    options = arguments_of(DataLoader(Numbers(8), batch_sampler=batches))
    whole = take(loaders(8, 1, **options))
    assert [[number % 2 for number in batch] for batch in whole] == [[0, 0], [1, 1]] * 2
    first, (rest,) = loaders(8, 2, **options), loaders(8, 1, **options)
    assert take(first, 1) == [whole[0] + whole[1]]
    rest.load_state_dict(first[0].last_state)
    assert take([rest]) == whole[2:]


class OfItsOwn(Sampler[int]):
    """Goes by a generator of its own, and draws one sample fewer in every epoch."""

    left = 9

    def __init__(self, own: Any) -> None:
        self.own = own

    def set_epoch(self, epoch: int) -> None:
        self.left = 9 - epoch

    def __len__(self) -> int:
        return self.left

    def __iter__(self) -> Iterator[int]:
        drawn = [*range(self.left)]
        self.own.shuffle(drawn)
        return iter(drawn)


@pytest.mark.parametrize(
    "make",
    [
        lambda: OfItsOwn(random.Random(1)),
        lambda: OfItsOwn(np.random.default_rng(1)),
        lambda: BatchSampler(RandomSampler(range(8), generator=torch.Generator()), 1, False),
        lambda: WeightedRandomSampler([1.0, 0, 0, 5, 0, 9], 24),
    ],
    ids=["of Python", "of numpy", "of torch, in a batch sampler", "the global one"],
)
def test_an_epoch_of_a_sampler_goes_on_over_a_resize_whatever_it_draws_by(make: Any) -> None:
    """A launch begins with a generator as the script makes it: samples came twice, and others not at all."""
    (alone,), (first,) = (loaders(9, 1, 2, sampler=make()) for _ in range(2))
    _, expected = take([alone]), take([alone])
    _, begun, rest = take([first]), take([first], 1), loaders(9, 2, 1, sampler=make())
    for loader in rest:
        loader.load_state_dict(first.last_state)
    assert begun + take(rest) == expected
