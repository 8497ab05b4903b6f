"""Loaders: batches of this rank's share of the data, on this rank's device.

``TrainingLoader`` is what ``trial.loader`` gives: it knows its epoch and how many samples of it are consumed, and
continues from there after a checkpoint, whatever the number of ranks. A batch counts as consumed when it is handed out,
not when a worker process fetched it. ``stream.py`` is the same for iterable data sets.

Random numbers: the order comes from seed and epoch; worker processes are seeded from seed, epoch, position and rank,
and nothing here draws from torch's global generator, so evaluating does not change training.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any

import torch
from torch.utils.data import DataLoader

from gpusched.worker.data import (
    BatchWeight,
    Layout,
    count_batches,
    derive_seed,
    share,
    stretches,
)
from gpusched.worker.group import script_line
from gpusched.worker.prepare import Lists, batches_of, draw, loader_options, place_batch

_WRONG_LENGTH = (
    "trial.loader: the sampler has {} indices by its len(), and yields another number: correct its __len__ (where "
    "epochs differ, draw in set_epoch(epoch), which is called before)"
)


@dataclass(slots=True)
class Position:
    """Position of training: ``consumed`` samples of epoch ``epoch``; ``places``: in each worker's part of a stream."""

    epoch: int = 0
    consumed: int = 0
    places: Mapping[int, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ShareTerms:
    """Terms on which all loaders of a trial give this rank its share; ``base_batches`` make a global batch."""

    layout: Layout
    base_batches: int
    seed: int
    weight: BatchWeight
    device: torch.device


class BaseLoader(ABC):
    """Epoch, position and the batch weight; what the two training loaders share."""

    #: Samples of an epoch; None for a stream.
    length: int | None = None

    def __init__(
        self, terms: ShareTerms, dataset: Any, batch_size: int, *, drop_last: bool
    ) -> None:
        self.dataset = dataset
        self.drop_last = drop_last
        self._layout, self._seed = terms.layout, terms.seed
        self.global_batch = batch_size * (1 if self._layout.exact else self._layout.world_size)
        self._base_batch = self.global_batch // terms.base_batches
        self._weight, self._device = terms.weight, terms.device
        self._position = Position()
        #: Epochs, and parts of them, that were not trained on: a `break` left them out, or no optimizer has stepped.
        self._left_out = 0.0
        #: Where the last optimizer step left off; not asked where no optimizer is known.
        self._stepped = Position()
        self._is_last = self.is_set_up = False
        #: Whether a batch counts as consumed only once an optimizer has stepped (``step_taken``).
        self.counts_steps = False
        #: Where the iteration under way began, and whether that was before the script was set up.
        self._under_way: Position | None = None
        self._is_look = False
        #: Batches that this launch has handed out; that, and epochs seen, where the iteration under way began.
        self.batches_handed_out = 0
        self.before = (0.0, 0)
        #: Passes of this launch in which an optimizer has stepped, and in which none has.
        self.passes_trained = self.passes_untrained = 0
        #: Line of the script that has asked for the length before it trains, where one atom has another.
        self.length_read_at: str | None = None
        #: The ``DataLoader`` that ``trial.prepare`` was given, whose attributes this one has too, and the script's
        #: line; whether it was read the last time, whole on every rank, as this one is where no gradients are recorded:
        #: for evaluation.
        self.given: Any = None
        self.given_at = ""
        self.reads_given = False
        self._generator = torch.Generator()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or self.__dict__.get("given") is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.given, name)

    def __len__(self) -> int:
        """Count the batches of a whole epoch: of one atom until training begins, which is what schedules by step are
        made of; from ``trial.track`` or the first epoch on, on the atoms that the trial has."""
        if self.reads_given and not (self.passes_trained and torch.is_grad_enabled()):
            return len(self.given)
        now = self._epoch_batches()
        if self.is_running or self.is_set_up or self.base_length in (None, now):
            return now
        self.length_read_at = ":".join(map(str, script_line()))
        return self.base_length or now

    @abstractmethod
    def _epoch_batches(self) -> int:
        """Batches of a whole epoch in this launch."""

    def _samples(self) -> int:
        """Samples of an epoch; 0: unknown."""
        return self.length or (len(self.dataset) if hasattr(self.dataset, "__len__") else 0)

    @abstractmethod
    def _read(self, where: Position) -> Iterator[tuple[Any, float, Position, bool]]:
        """Yield the batches from ``where`` on: each with its weight, the position after it, and whether it is the
        epoch's last."""

    def __iter__(self) -> Iterator[Any]:
        self.reads_given = self.given is not None and not torch.is_grad_enabled()
        if self.reads_given:
            yield from (place_batch(batch, self._device) for batch in batches_of(self.given))
            return
        where = self._begin()
        is_empty = where.consumed == 0
        try:
            for batch, weight, position, is_last in self._read(where):
                if self._under_way is not where:
                    raise RuntimeError(
                        "trial.loader: a loop continues after a newer one has begun: make a loader for each"
                    )
                is_empty = False
                self._position, self._is_last = position, is_last
                self._weight.hand_out(self, weight)
                self.batches_handed_out += 1
                yield place_batch(batch, self._device)
        finally:
            self._end(where)
        if is_empty:
            raise ValueError(
                f"trial.loader: this stream yields no sample, or with drop_last=True fewer than one global batch of "
                f"{self.global_batch}: use drop_last=False, a smaller batch_size, or `batch: global`"
            )

    @property
    def base_length(self) -> int | None:
        """Batches of a whole epoch on one atom; None: unknown."""
        samples = self._samples()
        batches = count_batches(samples, 0, self._base_batch, drop_last=self.drop_last)
        return batches if samples else None

    @property
    def epoch(self) -> int:
        """Epochs finished; while one is under way, its number."""
        return self._position.epoch

    @property
    def is_running(self) -> bool:
        """Whether the script is inside a loop over this loader."""
        return self._under_way is not None

    @property
    def mid_epoch(self) -> bool:
        """Whether an epoch is under way and has samples left."""
        return self.is_running and not self._is_last

    @property
    def epochs_seen(self) -> float:
        """Epochs trained on so far, with the fraction of the one under way, where the data set knows its length."""
        where, samples = self._settled(), self._samples()
        seen = min(1.0, where.consumed / samples) if samples else 0.0
        return where.epoch + seen - self._left_out

    @property
    def passes(self) -> float:
        """``epochs_seen``, where a sampler draws more than the data set has in passes over the data set."""
        size = len(self.dataset) if self.length and hasattr(self.dataset, "__len__") else 0
        return self.epochs_seen * (max(1.0, (self.length or 0) / size) if size else 1.0)

    def follow(self, forerunner: BaseLoader) -> None:
        """Take the place of a loader that the same line of the script has made before: its next epoch comes next."""
        self._position = Position(forerunner._settled().epoch)
        self._left_out = forerunner._left_out
        self.batches_handed_out = forerunner.batches_handed_out
        self.passes_trained = forerunner.passes_trained

    def tell_apart(self, index: int) -> None:
        """Visit samples in another order than the loaders made before this one, the ``index``-th of a script."""
        if index > 0:
            self._seed = derive_seed(self._seed, index)

    def step_taken(self) -> None:
        """Remember that an optimizer has stepped on all that was handed out."""
        self._stepped = replace(self._position)

    def state_dict(self) -> dict[str, Any]:
        """Return the position to save; a finished epoch is the beginning of the next.

        Batches handed out since the last optimizer step are in nothing that a checkpoint holds: they come again.
        """
        where = self._settled()
        if self.counts_steps and self.mid_epoch:
            where = self._stepped
        places = {number: tuple(place) for number, place in where.places.items()}
        state = {"epoch": where.epoch, "consumed": where.consumed, "places": places}
        ranks = self._layout.world_size
        return {**state, "left_out": self._left_out, "length": self.length, "ranks": ranks}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved position.

        Raises:
            ValueError: It is in an epoch of a data set of another length, or the length goes by the number of ranks.
        """
        ranks, length = self._layout.world_size, self.length or 0
        apart = abs((state["length"] or 0) * state["ranks"] - length * ranks)
        is_share = state["ranks"] != ranks and apart < state["ranks"] + ranks
        if state["length"] != self.length and (state["consumed"] or is_share):
            raise ValueError(
                f"trial.loader: the checkpoint was made with {state['length']} samples, this data "
                f"set has {self.length}: the data must be the same in every launch of a trial"
            )
        self._position = Position(state["epoch"], state["consumed"], state["places"])
        self._left_out = state["left_out"]

    def _settled(self) -> Position:
        return Position(self.epoch + 1) if self.is_running and self._is_last else self._position

    def _begin(self) -> Position:
        if self._under_way is not None:  # a new iteration while an older one is still held
            self._end(self._under_way)
        self._under_way = where = replace(self._position)
        self._is_last, self._is_look = False, not self.is_set_up
        self.before = (self.epochs_seen, self.batches_handed_out)
        self._stepped = replace(where)
        self._generator.manual_seed(
            derive_seed(self._seed, where.epoch, where.consumed, self._layout.rank)
        )
        return where

    def _end(self, began: Position) -> None:
        """End the iteration that began there, which has come to its end, was left, or gives way to a newer one."""
        if self._under_way is not began:
            return
        self._under_way = None
        self._weight.end(self)
        has_stepped = self.counts_steps and self._stepped != began
        if self._is_look and not (self._is_last or has_stepped):
            self._position = began  # a look at some batches, while the script sets itself up
            return
        self.is_set_up = True
        # A step on the only batch of an iteration comes after its end: next(iter(loader)).
        is_trained = has_stepped or not (self.counts_steps and self._is_last)
        self.passes_trained += has_stepped
        self.passes_untrained += not is_trained
        if samples := self._samples():
            read = 1.0 if self._is_last else min(1.0, self._position.consumed / samples)
            self._left_out += 1.0 - (read if is_trained else 0.0)
        self._position = Position(self._position.epoch + 1)


class TrainingLoader(BaseLoader):
    """Iterates over what is left of the epoch; the next iteration is the next epoch."""

    def __init__(
        self,
        terms: ShareTerms,
        dataset: Any,
        batch_size: int,
        *,
        shuffle: bool = True,
        drop_last: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(terms, dataset, batch_size, drop_last=drop_last)
        options = loader_options(dataset, options, self._device)
        self._sampler = options.pop("sampler", None)
        self._counted = dataset if self._sampler is None else self._sampler
        self.length: int = len(self._counted)
        if self.length == 0:
            raise ValueError("trial.loader: the data set is empty")
        self._shuffle = shuffle
        options.update(batch_sampler=Lists(self._shares), generator=self._generator)
        self._loader: DataLoader[Any] = DataLoader(dataset, **options)

    @property
    def _terms(self) -> dict[str, Any]:
        is_enough = self.length >= self.global_batch  # else none would be left
        return {"global_batch": self.global_batch, "drop_last": self.drop_last and is_enough}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self._sampler is not None:
            draw(self._sampler, self._seed, state["epoch"])
            self.length = len(self._sampler)  # in that epoch
        super().load_state_dict(state)

    def _epoch_batches(self) -> int:
        return count_batches(self.length, 0, **self._terms)

    def _read(self, where: Position) -> Iterator[tuple[Any, float, Position, bool]]:
        self._where = where
        if self._sampler is not None:
            self._drawn = draw(self._sampler, self._seed, where.epoch)
        if where.consumed == 0:
            self.length = len(self._counted)  # a script may add to its data
        stretched = stretches(self.length, where.consumed, layout=self._layout, **self._terms)
        for (begin, end), batch in zip(stretched, batches_of(self._loader), strict=True):
            weight = share(begin, end, self._layout).weight
            is_last = count_batches(self.length, end, **self._terms) == 0
            yield batch, weight, Position(where.epoch, end), is_last

    def _shares(self) -> Iterator[list[int]]:
        """Yield this rank's indices of each global batch that is left of the epoch."""
        where = self._where
        drawn: Iterable[Any] = range(self.length)
        if self._sampler is not None:
            drawn = self._drawn
        elif self._shuffle:
            order = torch.Generator().manual_seed(derive_seed(self._seed, where.epoch))
            drawn = torch.randperm(self.length, generator=order, device="cpu").tolist()
        indices = islice(drawn, where.consumed, None)
        stretched = stretches(self.length, where.consumed, layout=self._layout, **self._terms)
        for begin, end in stretched:
            found = list(islice(indices, end - begin))
            if len(found) < end - begin:
                raise ValueError(_WRONG_LENGTH.format(self.length))
            part = share(begin, end, self._layout)
            mine = found[part.begin - begin : part.stop - begin]
            is_batches = isinstance(mine[0], list) or getattr(self.given, "batch_size", 1) is None
            yield [*chain(*mine)] if is_batches else mine
        if not self._terms["drop_last"] and next(indices, None) is not None:
            raise ValueError(_WRONG_LENGTH.format(self.length))
