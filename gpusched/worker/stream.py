"""Iterable data sets, dealt to the ranks: every sample once an epoch, whatever the number of ranks, also over a resize.

Two ways, neither of which asks the data set to know of ranks:

* Sample by sample. Every rank reads the whole stream, the same one, and keeps its share of each global batch. Where
  training stands is one number, as in a map-style data set.
* In logical shards (``shards=N``), for data sets that split themselves by ``torch.utils.data.get_worker_info()``: each
  of the N shards is read by one rank, which is shown to the data set as worker s of N. N is the same in every launch;
  a resize deals the shards anew, and each goes on after the samples that were consumed of it.

How a shard is read, and gone on with, stands in ``shard.py``.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate

from gpusched.worker.data import Layout, derive_seed
from gpusched.worker.foreign import refuse_foreign_options
from gpusched.worker.group import Call, Group
from gpusched.worker.loader import BaseLoader, Position, ShareTerms, place_batch
from gpusched.worker.shard import Place, Shard
from gpusched.worker.state import packed
from gpusched.worker.weights import tagged


class Piece(NamedTuple):
    """Part of a global batch that one rank trains on.

    ``samples``: 0 for a stand-in; ``total``: of all ranks, where that is known.
    """

    batch: Any
    samples: int
    total: int
    places: Mapping[int, Place]
    digest: int


@dataclass(eq=False)
class _Reader(IterableDataset[Piece]):
    """Reads one rank's pieces of what is left of an epoch, in the rank or in its worker processes."""

    dataset: Any
    shards: int
    places: Mapping[int, Place]
    seed: int
    layout: Layout
    global_batch: int
    drop_last: bool
    collate: Callable[[list[Any]], Any]

    def __iter__(self) -> Iterator[Piece]:
        info = torch.utils.data.get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        return self._shares(worker, workers) if self.shards == 1 else self._own(worker, workers)

    def _open(self, number: int) -> Shard:
        place = self.places.get(number, Place())
        return Shard(self.dataset, number, self.shards, self.seed, place)

    def _shares(self, worker: int, workers: int) -> Iterator[Piece]:
        """Read the whole stream; yield this rank's share of each global batch (of every ``workers``-th one)."""
        shard, number = self._open(0), 0
        while samples := shard.take(self.global_batch):
            if self.drop_last and len(samples) < self.global_batch:
                return
            if number % workers == worker:
                mine = samples[self.layout.rank :: self.layout.world_size]
                batch = self.collate(mine or samples[:1])
                places = {0: shard.place}
                yield Piece(batch, len(mine), len(samples), places, _digest(samples[0]))
            number += 1

    def _own(self, worker: int, workers: int) -> Iterator[Piece]:
        """Read the shards of this rank (of every ``workers``-th one); a batch is as mixed as there are shards left.

        A shard that ends leaves the rest of its batch to the others: only the last batch of a reader may be short.
        """
        rank, ranks = self.layout.rank, self.layout.world_size
        size = self.global_batch * (rank + 1) // ranks - self.global_batch * rank // ranks
        left = [n for n in range(self.shards) if not self.places.get(n, Place()).has_ended]
        live = [self._open(number) for number in left[rank::ranks][worker::workers]]
        is_idle = worker == 0
        while live:
            samples: list[Any] = []
            read: dict[int, Shard] = {}
            while live and len(samples) < size:
                each = -(-(size - len(samples)) // len(live))
                for shard in live:
                    if (wanted := min(each, size - len(samples))) > 0:
                        samples += shard.take(wanted)
                        read[shard.number] = shard
                live = [shard for shard in live if not shard.has_ended]
            live = live[1:] + live[:1]
            if samples and not (self.drop_last and len(samples) < size):
                is_idle = False
                places = {number: shard.place for number, shard in read.items()}
                yield Piece(self.collate(samples), len(samples), 0, places, 0)
        if is_idle and not self.drop_last:
            # The rest is another rank's or worker's: a sample to take part with, that counts for nothing.
            for number in range(self.shards):
                shard = Shard(self.dataset, number, self.shards, self.seed, Place())
                if samples := shard.take(1):
                    yield Piece(self.collate(samples), 0, 0, {}, 0)
                    return


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
        shards: int = 1,
        **options: Any,
    ) -> None:
        super().__init__(terms, batch_size)
        layout = terms.layout
        refuse_foreign_options(dataset, options)
        if shards > 1 and shards < layout.world_size:
            raise ValueError(
                f"trial.loader(..., shards={shards}): {layout.world_size} ranks cannot share them; use more shards, "
                f"or leave them out"
            )
        if shards > 1 and self.global_batch < layout.world_size:
            raise ValueError(
                f"trial.loader(..., shards={shards}): a global batch of {self.global_batch} gives no sample to some of "
                f"{layout.world_size} ranks, whose shards would never be read; use a larger batch_size"
            )
        self.dataset = dataset
        self._shards = shards
        self._drop_last = drop_last
        self._group = group
        self._collate = options.pop("collate_fn", None) or default_collate
        options.pop("persistent_workers", None)  # each epoch is read from where it stands
        options.setdefault("pin_memory", terms.device.type == "cuda")
        self._options = options
        self._is_last = False
        self._is_compared = layout.world_size == 1 or shards > 1

    def __len__(self) -> int:
        """Count the batches of a whole epoch, where the data set knows its length."""
        return -(-len(self.dataset) // self.global_batch)

    def __iter__(self) -> Iterator[Any]:
        where = self._begin()
        self._is_last = False
        if callable(set_epoch := getattr(self.dataset, "set_epoch", None)):
            set_epoch(where.epoch)
        pieces = self._read(where)
        piece, last = next(pieces, None), None
        try:
            while True:
                following = next(pieces, None) if piece is not None else None
                total, goes_on = self._agree(piece, following is not None)
                last = piece or last
                if total == 0 and goes_on:  # every rank has a stand-in before what it has to read
                    piece = following
                    continue
                if total == 0:
                    break
                if self._position.epoch != where.epoch:
                    raise RuntimeError("trial.loader: an older iteration outlived a newer one")
                assert last is not None, "each rank has a piece, or something to take part with"
                samples = piece.samples if piece is not None else 0
                self._weight.value = self._layout.world_size * samples / total
                here = self._position
                places = {**here.places, **(piece.places if piece is not None else {})}
                self._position = Position(where.epoch, here.consumed + total, places)
                self._is_last = not goes_on
                yield tagged(place_batch(last.batch, self._device), self._weight.value)
                piece = following
            if where.consumed == 0 and self._position == where:
                raise ValueError(
                    f"trial.loader: this stream does not fill one global batch of {self.global_batch} samples, and "
                    f"drop_last=True leaves none: use a smaller batch_size"
                    if self._drop_last
                    else "trial.loader: this stream yields no sample"
                )
        finally:
            self._end(where.epoch)

    def _read(self, where: Position) -> Iterator[Piece]:
        reader = _Reader(
            self.dataset,
            self._shards,
            where.places,
            derive_seed(self._seed, where.epoch),
            self._layout,
            self.global_batch,
            self._drop_last,
            self._collate,
        )
        return iter(
            DataLoader(
                reader,
                batch_size=None,
                collate_fn=cast(Any, _as_it_is),
                generator=self._generator,
                **self._options,
            )
        )

    def _agree(self, piece: Piece | None, has_more: bool) -> tuple[int, bool]:
        """Return the samples of this global batch on all ranks, and whether another batch follows.

        Raises:
            ValueError: The ranks read different streams.
        """
        if self._shards > 1:
            samples = piece.samples if piece is not None else 0
            rows = self._group.exchange(Call.BATCH, samples, has_more)
            if self._drop_last and not all(row[0] for row in rows):
                return 0, False
            return int(sum(row[0] for row in rows)), any(row[1] for row in rows)
        if not self._is_compared:
            self._is_compared = True
            digest = float(piece.digest) if piece is not None else 0.0
            if len(set(self._group.exchange(Call.BATCH, digest))) > 1:
                raise ValueError(
                    "trial.loader: this iterable data set yields other samples on other ranks. gpusched deals the "
                    "samples to the ranks, so each must read the same stream: leave out what depends on the rank, and "
                    "draw random numbers from the global generators, which are seeded alike for it. A data set that "
                    "splits itself by torch.utils.data.get_worker_info() can be read in shards: shards=N"
                )
        return (piece.total if piece is not None else 0), has_more

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
        """Return the position of every shard; all ranks call it."""
        where = self._kept()
        places = {number: tuple(place) for number, place in where.places.items()}
        if self._shards > 1 and self.mid_epoch:
            for data in self._group.gather_bytes(Call.SAVE, packed(places)):
                for number, place in torch.load(io.BytesIO(data), weights_only=True).items():
                    # Of a shard that another rank reads, this rank knows where the launch began.
                    places[number] = max(place, places.get(number, place), key=lambda one: one[:2])
        return {
            "epoch": where.epoch,
            "consumed": where.consumed,
            "shards": self._shards,
            "places": places,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved position.

        Raises:
            ValueError: The stream was split into another number of shards.
        """
        if state.get("shards", self._shards) != self._shards:
            raise ValueError(
                f"trial.loader: the checkpoint was made with shards={state['shards']}, now it is {self._shards}: the "
                f"number must be the same in every launch of a trial"
            )
        if "places" not in state:  # written before streams were dealt: this epoch begins again
            state = {"epoch": state["epoch"], "consumed": 0, "places": {}}
        places = {number: Place(*place) for number, place in state["places"].items()}
        self._position = Position(state["epoch"], state["consumed"], places)


def _as_it_is(piece: Piece) -> Piece:
    return piece


def _digest(sample: Any) -> int:
    """Return a number (48 bits) that tells samples apart by the tensors, numbers and texts in them."""
    found = hashlib.blake2b(digest_size=6)
    rest = [sample]
    while rest:
        part = rest.pop()
        if isinstance(part, torch.Tensor):
            found.update(part.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        elif isinstance(part, Mapping):
            rest += part.values()
        elif isinstance(part, list | tuple):
            rest += part
        elif isinstance(part, bool | int | float | str | bytes):
            found.update(repr(part).encode())
        elif hasattr(part, "tobytes"):
            found.update(part.tobytes())
    return int.from_bytes(found.digest())
