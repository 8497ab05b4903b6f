"""Iterable data sets, dealt to the ranks: every sample once an epoch, whatever the number of ranks, also over a resize.

Every rank reads the same stream and keeps its share of each global batch; the data set knows nothing of ranks. With
worker processes (``num_workers``) a data set that splits itself by ``torch.utils.data.get_worker_info()`` is read in
parts, one a worker, and global batches come from the workers in turn; one that does not is read by the first worker.

A data set, or its iterator, with ``state_dict`` and ``load_state_dict`` is asked for its state and put back (as
torchdata's ``StatefulDataLoader`` does); any other is read again up to where it was, with the same random numbers:
those that it draws from the global generators come from seed, epoch and worker, on every rank alike.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, NamedTuple, cast

import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate
from torch.utils.data._utils import worker as torch_worker

from gpusched.worker.data import Layout, derive_seed
from gpusched.worker.group import Call, Group
from gpusched.worker.learning_rate import base_steps
from gpusched.worker.loader import BaseLoader, Position, ShareTerms, place_batch
from gpusched.worker.loader_options import refuse_foreign_options
from gpusched.worker.rng import OwnGenerators
from gpusched.worker.state import Stateful, portable, unportable


class Place(NamedTuple):
    """Position in the part of one worker: samples taken of this epoch, whether it has ended, of how many parts it is
    one, and the data set's own state."""

    taken: int = 0
    has_ended: bool = False
    parts: int = 1
    state: Any = None


class Piece(NamedTuple):
    """One rank's share of a global batch of ``total`` samples; ``samples`` is 0 for a stand-in."""

    batch: Any
    samples: int
    total: int
    worker: int
    place: Place
    digest: int


class _Shown:
    """Return value of ``get_worker_info()`` in a worker process: torch's own, which notes that it was asked."""

    def __init__(self, info: Any) -> None:
        self._info, self.is_asked = info, False

    def __getattr__(self, name: str) -> Any:
        self.is_asked = self.is_asked or name in ("id", "num_workers")
        return getattr(self._info, name)


class _Part:
    """The part of a stream that one worker reads, under random numbers of its own, from ``place`` on."""

    def __init__(self, dataset: Any, info: Any, seed: int, place: Place) -> None:
        """Open it.

        Raises:
            ValueError: This epoch was begun in other parts.
        """
        number, workers = (0, 1) if info is None else (info.id, info.num_workers)
        self._taken, self._has_ended = place.taken, place.has_ended
        self._info = None if info is None else _Shown(info)
        self._random = OwnGenerators(derive_seed(seed, number))
        with self._reading():
            source = iter(dataset)
            self._stateful = source if isinstance(source, Stateful) else dataset
            if place.state is None:
                next(islice(source, place.taken, place.taken), None)
            else:
                self._stateful.load_state_dict(unportable(place.state))
                source = source if self._stateful is source else iter(dataset)
            first = list(islice(source, 1))
        self._source = chain(first, source)
        self._parts = workers if self._info is not None and self._info.is_asked else 1
        if place.taken and place.parts != self._parts:
            raise ValueError(
                f"trial.loader(..., num_workers=...): this epoch of the stream was begun in {place.parts} parts, one "
                f"for each worker, and there are {self._parts} now: num_workers must be the same in every launch"
            )
        if number > 0 and self._parts == 1:  # each worker would read the whole stream
            self._has_ended = True

    def take(self, most: int) -> list[Any]:
        """Read up to so many samples; fewer at the end."""
        if self._has_ended:
            return []
        with self._reading():
            found = list(islice(self._source, most))
        self._taken += len(found)
        self._has_ended = len(found) < most
        return found

    @property
    def place(self) -> Place:
        state = None
        if isinstance(self._stateful, Stateful):
            with self._reading():
                state = copy.deepcopy(portable(self._stateful.state_dict(), "the data set"))
        return Place(self._taken, self._has_ended, self._parts, state)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        before = torch_worker._worker_info
        if self._info is not None:
            torch_worker._worker_info = self._info  # type: ignore[assignment]
        try:
            with self._random:
                yield
        finally:
            torch_worker._worker_info = before


@dataclass(eq=False)
class _Reader(IterableDataset[Piece]):
    """Reads one rank's pieces of what is left of an epoch, in the rank or in its worker processes."""

    dataset: Any
    places: Mapping[int, Place]
    seed: int
    layout: Layout
    global_batch: int
    drop_last: bool
    collate: Callable[[list[Any]], Any]

    def __iter__(self) -> Iterator[Piece]:
        info = torch.utils.data.get_worker_info()
        worker = 0 if info is None else info.id
        part = _Part(self.dataset, info, self.seed, self.places.get(worker, Place()))
        while samples := part.take(self.global_batch):
            if self.drop_last and len(samples) < self.global_batch:
                return
            mine = samples[self.layout.rank :: self.layout.world_size]
            batch = self.collate(mine or samples[:1])
            digest = _digest(samples[0])
            yield Piece(batch, len(mine), len(samples), worker, part.place, digest)


def read_pieces(reader: _Reader, options: dict[str, Any], generator: torch.Generator) -> Any:
    """Return an iterator over the pieces of a rank, read with the options of a ``DataLoader``."""
    collate = cast(Any, _as_it_is)
    return iter(
        DataLoader(reader, batch_size=None, collate_fn=collate, generator=generator, **options)
    )


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
        super().__init__(terms, batch_size)
        refuse_foreign_options(dataset, options)
        self.dataset = dataset
        self.drop_last = drop_last
        self._group = group
        self._collate = options.pop("collate_fn", None) or default_collate
        options.pop("persistent_workers", None)  # each epoch is read from where it stands
        options.setdefault("pin_memory", terms.device.type == "cuda")
        self._options = options
        self._is_last = False
        self._is_compared = terms.layout.world_size == 1

    def _epoch_batches(self) -> int:
        return base_steps(len(self.dataset), self.global_batch, drop_last=self.drop_last)

    @property
    def base_length(self) -> int | None:
        """Batches of a whole epoch on one atom, where the data set knows its length."""
        length = len(self.dataset) if hasattr(self.dataset, "__len__") else None
        return length and base_steps(length, self._base_batch, drop_last=self.drop_last)

    def __iter__(self) -> Iterator[Any]:
        where = self._begin()
        self._is_last = False
        if callable(set_epoch := getattr(self.dataset, "set_epoch", None)):
            set_epoch(where.epoch)
        seed = derive_seed(self._seed, where.epoch)
        reader = _Reader(
            self.dataset,
            where.places,
            seed,
            self._layout,
            self.global_batch,
            self.drop_last,
            self._collate,
        )
        pieces = read_pieces(reader, self._options, self._generator)
        piece = next(pieces, None)
        self._compare(piece)
        if piece is None and where.consumed == 0:
            raise ValueError(
                f"trial.loader: this stream does not fill one global batch of {self.global_batch} samples, and "
                f"drop_last=True leaves none: use a smaller batch_size"
                if self.drop_last
                else "trial.loader: this stream yields no sample"
            )
        try:
            while piece is not None:
                following = next(pieces, None)
                if self._position.epoch != where.epoch:
                    raise RuntimeError("trial.loader: an older iteration outlived a newer one")
                self.batches_handed_out += 1
                self._weight.hand_out(self, self._layout.world_size * piece.samples / piece.total)
                here = self._position
                places = {**here.places, piece.worker: piece.place}
                self._position = Position(where.epoch, here.consumed + piece.total, places)
                self._is_last = following is None
                yield place_batch(piece.batch, self._device)
                piece = following
        finally:
            self._end(where.epoch)

    def _compare(self, piece: Piece | None) -> None:
        """Raise ValueError where the ranks read different streams: once, at the first batch."""
        if self._is_compared:
            return
        self._is_compared = True
        digest = float(piece.digest) if piece is not None else 0.0
        if len(set(self._group.exchange(Call.BATCH, digest))) > 1:
            raise ValueError(
                "trial.loader: this iterable data set yields other samples on other ranks. gpusched deals the "
                "samples to the ranks, so each must read the same stream: leave out what depends on the rank, and "
                "draw random numbers from the global generators, which are seeded alike for it"
            )

    @property
    def mid_epoch(self) -> bool:
        return self._running and not self._is_last and self._position.consumed > 0

    @property
    def epochs_seen(self) -> float:
        """Epochs trained on so far; the fraction only where the data set knows its length."""
        where = self._settled()
        length = len(self.dataset) if hasattr(self.dataset, "__len__") else 0
        return where.epoch + (min(1.0, where.consumed / length) if length else 0.0)

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the part of every worker."""
        where = self._kept()
        places = {number: tuple(place) for number, place in where.places.items()}
        return {"epoch": where.epoch, "consumed": where.consumed, "places": places}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved position."""
        places = {number: Place(*place) for number, place in state["places"].items()}
        self._position = Position(state["epoch"], state["consumed"], places)


class EvaluationStream:
    """Every sample of an iterable data set exactly once over the ranks of ``layout``, in the order of the stream."""

    def __init__(
        self, dataset: Any, batch_size: int, layout: Layout, device: torch.device, **options: Any
    ) -> None:
        refuse_foreign_options(dataset, options)
        self.dataset = dataset
        self._device = device
        collate = options.pop("collate_fn", None) or default_collate
        options.pop("persistent_workers", None)
        options.setdefault("pin_memory", device.type == "cuda")
        size = batch_size * layout.world_size
        self._reader = _Reader(dataset, {}, 0, layout, size, drop_last=False, collate=collate)
        self._options = options

    def __iter__(self) -> Iterator[Any]:
        for piece in read_pieces(self._reader, self._options, torch.Generator().manual_seed(0)):
            if piece.samples:
                yield place_batch(piece.batch, self._device)


def _as_it_is(piece: Piece) -> Piece:
    return piece


def _digest(sample: Any) -> int:
    """Return a number (48 bits) that tells samples apart by the tensors, numbers and texts in them."""
    found = hashlib.blake2b(digest_size=6)
    rest = [sample]
    while rest:
        part = rest.pop()
        if isinstance(part, torch.Tensor):
            data = part.detach().cpu().contiguous().reshape(-1)
            found.update(data.view(torch.uint8).numpy().tobytes())
        elif isinstance(part, Mapping):
            rest += part.values()
        elif isinstance(part, list | tuple):
            rest += part
        elif isinstance(part, bool | int | float | str | bytes):
            found.update(repr(part).encode())
        elif hasattr(part, "tobytes"):
            found.update(part.tobytes())
    return int.from_bytes(found.digest())
