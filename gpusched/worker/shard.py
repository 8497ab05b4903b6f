"""One logical shard of an iterable data set, read under random numbers of its own and put back to where it was.

A data set, or its iterator, with ``state_dict`` and ``load_state_dict`` is asked for its state and put back (as
torchdata's ``StatefulDataLoader`` does); any other is read again up to where it was, with the same random numbers:
those that a shard draws from the global generators come from seed, epoch and shard, on every rank alike.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, NamedTuple

from torch.utils.data._utils import worker as torch_worker

from gpusched.worker.data import derive_seed
from gpusched.worker.rng import OwnGenerators
from gpusched.worker.state import Stateful, portable, unportable


class Place(NamedTuple):
    """Position in a shard: samples taken of this epoch, whether it has ended, and the data set's own state."""

    taken: int = 0
    has_ended: bool = False
    state: Any = None


class _Shown:
    """Return value of ``get_worker_info()`` while a shard is read."""

    def __init__(self, dataset: Any, shard: int, shards: int, seed: int) -> None:
        self.dataset, self.seed = dataset, seed
        self._numbers = (shard, shards)
        self.is_asked = False

    @property
    def id(self) -> int:
        self.is_asked = True
        return self._numbers[0]

    @property
    def num_workers(self) -> int:
        self.is_asked = True
        return self._numbers[1]


class Shard:
    """One logical shard that is being read; a stream that is dealt sample by sample is shard 0 of 1."""

    def __init__(self, dataset: Any, shard: int, shards: int, seed: int, place: Place) -> None:
        if shards > 1 and isinstance(dataset, Stateful):
            dataset = copy.deepcopy(dataset)  # the data set's state is that of one shard
        self.number, self._taken, self.has_ended = shard, place.taken, place.has_ended
        self._info = _Shown(dataset, shard, shards, seed) if shards > 1 else None
        self._random = OwnGenerators(derive_seed(seed, shard))
        with self._reading():
            source = iter(dataset)
            self._stateful = source if isinstance(source, Stateful) else dataset
            if place.state is None:
                next(islice(source, place.taken, place.taken), None)
            else:
                self._stateful.load_state_dict(unportable(place.state))
                source = source if self._stateful is source else iter(dataset)
            self._source = source

    def take(self, most: int) -> list[Any]:
        """Read up to so many samples; fewer at the end of the shard.

        Raises:
            TypeError: The data set does not split itself, so that every shard would be the whole stream.
        """
        with self._reading():
            found = list(islice(self._source, most))
        if found and self._info is not None and not self._info.is_asked:
            raise TypeError(
                "trial.loader(..., shards=...): this data set does not ask torch.utils.data.get_worker_info(), so each "
                "shard would be the whole stream; leave shards out"
            )
        self._taken += len(found)
        self.has_ended = len(found) < most
        return found

    @property
    def place(self) -> Place:
        state = None
        if isinstance(self._stateful, Stateful):
            with self._reading():
                state = copy.deepcopy(portable(self._stateful.state_dict(), "the data set"))
        return Place(self._taken, self.has_ended, state)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Show the data set its shard, and random numbers of the shard's own."""
        before = torch_worker._worker_info
        torch_worker._worker_info = self._info  # type: ignore[assignment]
        try:
            with self._random:
                yield
        finally:
            torch_worker._worker_info = before
