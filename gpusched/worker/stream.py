"""Iterable data sets, dealt to the ranks: every sample once an epoch, whatever the number of ranks, also over a resize.

Every rank reads the same stream and keeps its share of each global batch; the data set knows nothing of ranks. With
worker processes (``num_workers``) a data set splits itself by ``torch.utils.data.get_worker_info()``, as under torch's
own loader: it is read in parts, one a worker, and global batches come from the workers in turn.

In mid-epoch a launch reads the stream again up to where it was, with the same random numbers: those that a data set
draws from the global generators come from seed, epoch and worker, on every rank alike. A data set's own ``state_dict``
is not asked: it may leave out what a shuffle buffer holds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, IterableDataset, default_collate

from gpusched.worker.data import Layout, count_batches, derive_seed
from gpusched.worker.group import Call, Group
from gpusched.worker.loader import BaseLoader, Position, ShareTerms
from gpusched.worker.prepare import PlacedLoader, batches_of, draw, loader_options
from gpusched.worker.rng import OwnGenerators


class Place(NamedTuple):
    """Position in the part of one worker: samples taken of this epoch, whether it has ended, and of how many parts it
    is one."""

    taken: int = 0
    has_ended: bool = False
    parts: int = 1


class Piece(NamedTuple):
    """One rank's share of a global batch of ``total`` samples; ``samples`` is 0 for a stand-in."""

    batch: Any
    samples: int
    total: int
    worker: int
    place: Place
    digest: int


@dataclass(eq=False)
class _Reader(IterableDataset[Piece]):
    """Reads one rank's pieces of what is left of an epoch, in the rank or in its worker processes."""

    dataset: Any
    places: Mapping[int, Any]
    seed: int
    layout: Layout
    global_batch: int
    drop_last: bool
    collate: Callable[[list[Any]], Any]

    def __iter__(self) -> Iterator[Piece]:
        """Read the part of this worker from its place on, under random numbers of its own."""
        info: Any = torch.utils.data.get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        place = Place(*self.places.get(worker, ()))
        generators = OwnGenerators(derive_seed(self.seed, worker))
        with generators:
            source = iter(self.dataset)
            next(islice(source, place.taken, place.taken), None)
        taken, has_ended = place.taken, place.has_ended
        while not has_ended:
            with generators:
                samples = list(islice(source, self.global_batch))
                has_ended = len(samples) < self.global_batch
                if not samples or (has_ended and self.drop_last):
                    return
            digest = _digest(samples) if taken == place.taken else 0  # only the first is compared
            taken += len(samples)
            mine = samples[self.layout.rank :: self.layout.world_size]
            batch = self.collate(mine or samples[:1])
            here = Place(taken, has_ended, workers)
            yield Piece(batch, len(mine), len(samples), worker, here, digest)


class StreamLoader(BaseLoader):
    """Iterates over what is left of an epoch of an iterable data set. ``set_epoch`` is called if there is one."""

    def __init__(
        self,
        terms: ShareTerms,
        dataset: Any,
        batch_size: int,
        *,
        group: Group,
        drop_last: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(terms, dataset, batch_size, drop_last=drop_last)
        self._group = group
        options = loader_options(dataset, options, terms.device)
        self._collate = options.pop("collate_fn", None) or default_collate
        begin = partial(_begin_worker, options.pop("worker_init_fn", None))
        # Each epoch is read from where it stands.
        self._options = {**options, "persistent_workers": False, "worker_init_fn": begin}

    def _epoch_batches(self) -> int:
        return count_batches(len(self.dataset), 0, self.global_batch, drop_last=self.drop_last)

    def _read(self, where: Position) -> Iterator[tuple[Any, float, Position, bool]]:
        if callable(set_epoch := getattr(self.dataset, "set_epoch", None)):
            set_epoch(where.epoch)
        seed, batches = derive_seed(self._seed, where.epoch), (self.global_batch, self.drop_last)
        reader = _Reader(self.dataset, where.places, seed, self._layout, *batches, self._collate)
        options = {**self._options, "collate_fn": _as_it_is, "generator": self._generator}
        # As many workers as have begun this epoch, by which the data set splits itself; one reads as none does.
        parts = max((Place(*each).parts for each in where.places.values()), default=0)
        if parts not in (0, max(1, options.get("num_workers", 0))):
            options["num_workers"] = parts
        pieces = batches_of(DataLoader(reader, batch_size=None, **options))
        piece = next(pieces, None)
        if self.batches_handed_out == 0:
            self._compare(piece)
        consumed, places = where.consumed, where.places
        while piece is not None:
            following = next(pieces, None)
            consumed, places = consumed + piece.total, {**places, piece.worker: piece.place}
            weight = self._layout.world_size * piece.samples / piece.total
            here = Position(where.epoch, consumed, places)
            yield piece.batch, weight, here, following is None
            piece = following

    def _compare(self, piece: Piece | None) -> None:
        """Raise ValueError where the ranks read different streams."""
        if len(set(self._group.exchange(Call.BATCH, piece.digest if piece else 0))) > 1:
            raise ValueError(
                "trial.loader: this iterable data set yields other samples on other ranks. gpusched deals the "
                "samples to the ranks, so each must read the same stream: leave out what depends on the rank, and "
                "draw random numbers from the global generators, which are seeded alike for it"
            )


def evaluation_loader(
    dataset: Any, batch_size: int, layout: Layout, device: torch.device, **options: Any
) -> PlacedLoader:
    """Return every sample exactly once over the ranks of ``layout``, in order, nothing padded."""
    if isinstance(dataset, IterableDataset):
        raise TypeError(
            "trial.eval_loader takes a data set with a length: evaluate a stream whole on every rank, with "
            "torch.utils.data.DataLoader(stream, batch_size)"
        )
    options = loader_options(dataset, options, device)
    sampler = options.pop("sampler", None)
    drawn = range(len(dataset)) if sampler is None else list(draw(sampler, 0, 0))
    options["sampler"] = drawn[layout.rank :: layout.world_size]
    options.update(shuffle=False, drop_last=False, generator=torch.Generator().manual_seed(0))
    return PlacedLoader(DataLoader(dataset, batch_size, **options), device)


def _begin_worker(own: Callable[[int], Any] | None, worker: int) -> None:
    """Begin a worker as the script does (``worker_init_fn``), which may split its data set here, as torch's manual."""
    info: Any = torch.utils.data.get_worker_info()
    object.__setattr__(info, "dataset", info.dataset.dataset)  # torch has it frozen
    if own is not None:
        own(worker)


def _as_it_is(piece: Piece) -> Piece:
    return piece


def _digest(samples: Any) -> int:
    """Return a number (48 bits) that tells samples apart by the tensors, numbers and texts in them."""
    found = hashlib.blake2b(digest_size=6)
    for part in tree_leaves(samples):
        if isinstance(part, torch.Tensor):
            part = part.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        if isinstance(part, bool | int | float | str | bytes):
            found.update(repr(part).encode())
        elif hasattr(part, "tobytes"):
            found.update(part.tobytes())
    return int.from_bytes(found.digest())
