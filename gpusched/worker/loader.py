"""Loaders: batches of this rank's share of the data, on this rank's device.

``TrainingLoader`` is what ``trial.loader`` gives: it knows its epoch and how many samples of it are consumed, and
goes on from there after a checkpoint, whatever the number of ranks. A batch counts as consumed when it is handed out,
not when a worker process fetched it. ``stream.py`` is the same for iterable data sets.
``EvaluationLoader`` gives every sample to exactly one rank, without padding.

Random numbers: the order comes from seed and epoch; worker processes are seeded from seed, epoch, position and rank,
and nothing here draws from torch's global generator, so evaluating does not change training.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch.utils.data import DataLoader

from gpusched.worker.data import Layout, derive_seed, epoch_order, share, stretches
from gpusched.worker.learning_rate import base_steps
from gpusched.worker.loader_options import draw, own_sampler, refuse_foreign_options
from gpusched.worker.state import Stateful, portable, unportable
from gpusched.worker.weights import BatchWeight, each_part


@dataclass(slots=True)
class Position:
    """Position of training: ``consumed`` samples of epoch ``epoch``; ``places``: in each worker's part of a stream."""

    epoch: int = 0
    consumed: int = 0
    places: Mapping[int, Any] = field(default_factory=dict)


def place_batch(batch: Any, device: torch.device) -> Any:
    """``batch`` with every tensor in it on ``device``, and every other object that can be moved."""

    def moved(part: Any) -> Any:
        if isinstance(part, torch.Tensor):
            return part.to(device, non_blocking=True)
        move = getattr(part, "to", None)
        return move(device) if callable(move) else part

    return each_part(batch, moved)


@dataclass(frozen=True, slots=True)
class ShareTerms:
    """Terms on which all loaders of a trial give this rank its share."""

    layout: Layout
    seed: int
    weight: BatchWeight
    device: torch.device


class BaseLoader(ABC):
    """Epoch, position and the batch weight; what the two training loaders share."""

    def __init__(self, terms: ShareTerms, batch_size: int) -> None:
        self.global_batch = terms.layout.global_batch(batch_size)
        self._base_batch = batch_size
        self._layout, self._seed = terms.layout, terms.seed
        self._weight, self._device = terms.weight, terms.device
        self._position = Position()
        #: Where the last optimizer step left off; None: no optimizer is known, a batch counts when it is handed out.
        self._stepped: Position | None = None
        self._counts_steps = False
        self._running = False
        self._is_set_up = False
        #: Batches that this launch has handed out.
        self.batches_handed_out = 0
        #: The ``DataLoader`` that ``trial.prepare`` was given, whose attributes this one has too.
        self.given: Any = None
        self._generator = torch.Generator()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or self.__dict__.get("given") is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.given, name)

    def __len__(self) -> int:
        """Count the batches of a whole epoch: of one atom until training begins, which is what schedules by step are
        made of; from ``trial.track`` or the first batch on, on the atoms that the trial has."""
        return (
            self._epoch_batches() if self._is_set_up else self.base_length or self._epoch_batches()
        )

    @abstractmethod
    def _epoch_batches(self) -> int:
        """Batches of a whole epoch in this launch."""

    @property
    @abstractmethod
    def base_length(self) -> int | None:
        """Batches of a whole epoch on one atom; None: unknown."""

    @property
    def is_running(self) -> bool:
        """Whether the script is inside a loop over this loader."""
        return self._running

    def set_up(self) -> None:
        """Note that training begins."""
        self._is_set_up = True

    @property
    def epoch(self) -> int:
        """Epochs finished; while one is under way, its number."""
        return self._position.epoch

    @property
    @abstractmethod
    def mid_epoch(self) -> bool:
        """Whether an epoch is under way and has samples left."""

    @property
    @abstractmethod
    def epochs_seen(self) -> float:
        """Epochs trained on so far, with the fraction of the one under way."""

    def follow(self, forerunner: BaseLoader) -> None:
        """Take the place of a loader that the same line of the script has made before: its next epoch comes next."""
        self._position = Position(forerunner._settled().epoch)
        self.batches_handed_out = forerunner.batches_handed_out

    def tell_apart(self, index: int) -> None:
        """Visit samples in another order than the loaders made before this one, the ``index``-th of a script."""
        if index > 0:
            self._seed = derive_seed(self._seed, index)

    def count_steps(self) -> None:
        """Count a batch as consumed, from now on, when an optimizer has stepped (``step_taken``)."""
        self._counts_steps = True

    def step_taken(self) -> None:
        """Remember that an optimizer has stepped on all that was handed out."""
        self._stepped = replace(self._position)

    def _kept(self) -> Position:
        """Return the position to save; a finished epoch is the beginning of the next.

        Batches handed out since the last optimizer step are in nothing that a checkpoint holds: they come again.
        """
        where = self._settled()
        if self._counts_steps and self._running and self.mid_epoch:
            where = self._stepped or Position(where.epoch)
        return where

    def _settled(self) -> Position:
        if self._running and not self.mid_epoch:
            return Position(self._position.epoch + 1)
        return self._position

    def _begin(self) -> Position:
        if self._running:  # a new iteration while an older one is still held: that epoch is over
            self._position = Position(self._position.epoch + 1)
        self._running = self._is_set_up = True
        where = self._position
        self._stepped = replace(where)
        self._generator.manual_seed(
            derive_seed(self._seed, where.epoch, where.consumed, self._layout.rank)
        )
        return replace(where)

    def _end(self, epoch: int) -> None:
        """End epoch ``epoch``, which has come to its end or was left by a ``break``."""
        if self._position.epoch != epoch:
            return
        self._position = Position(epoch + 1)
        self._running = False
        self._weight.end(self)


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
        super().__init__(terms, batch_size)
        self._sampler = own_sampler(options)
        refuse_foreign_options(dataset, options)
        self.dataset = dataset
        self.length = len(dataset) if self._sampler is None else len(self._sampler)
        if self.length == 0:
            raise ValueError("trial.loader: the data set is empty")
        self._shuffle = shuffle
        self.drop_last = drop_last
        self._batches: list[list[int]] = []
        #: A data set with a state of its own is asked for it, on rank 0; copies in worker processes cannot be.
        self._asks_dataset = isinstance(dataset, Stateful) and not options.get("num_workers")
        options.setdefault("pin_memory", self._device.type == "cuda")
        self._loader: DataLoader[Any] = DataLoader(
            dataset,
            batch_sampler=cast(Any, _Lists(lambda: self._batches)),
            generator=self._generator,
            **options,
        )

    def _epoch_batches(self) -> int:
        return len(self._stretches(0))

    @property
    def base_length(self) -> int:
        """Batches of a whole epoch on one atom."""
        return base_steps(self.length, self._base_batch, drop_last=self.drop_last)

    def __iter__(self) -> Iterator[Any]:
        where = self._begin()
        order = self._order(where.epoch)
        shares = [share(*each, self._layout) for each in self._stretches(where.consumed)]
        if not shares and where.consumed == 0:
            raise ValueError(
                f"trial.loader: {self.length} samples do not fill one global batch of {self.global_batch}, and "
                f"drop_last=True leaves none: use drop_last=False, a smaller batch_size, or `batch: global`"
            )
        self._batches = [order[part.begin : part.stop].tolist() for part in shares]
        try:
            for part, batch in zip(shares, self._loader, strict=True):
                if self._position.epoch != where.epoch:
                    raise RuntimeError("trial.loader: an older iteration outlived a newer one")
                self._position.consumed = part.end
                self._weight.hand_out(self, part.weight)
                self.batches_handed_out += 1
                yield place_batch(batch, self._device)
        finally:
            self._end(where.epoch)

    @property
    def batches_done(self) -> int:
        """Batches of this epoch that were handed out, before a resize too: ``enumerate(loader,
        loader.batches_done)``."""
        return self._epoch_batches() - len(self._stretches(self._position.consumed))

    @property
    def mid_epoch(self) -> bool:
        return self._running and len(self._stretches(self._position.consumed)) > 0

    @property
    def epochs_seen(self) -> float:
        """Epochs trained on so far, with the fraction of the one under way."""
        where = self._settled()
        return where.epoch + where.consumed / self.length

    def state_dict(self) -> dict[str, Any]:
        where = self._kept()
        state = {"epoch": where.epoch, "consumed": where.consumed, "length": self.length}
        if self._asks_dataset:
            state["dataset"] = portable(self.dataset.state_dict(), "the data set")
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved position.

        Raises:
            ValueError: It is of a data set of another length.
        """
        if state["length"] != self.length:
            raise ValueError(
                f"trial.loader: the checkpoint was made with {state['length']} samples, this data "
                f"set has {self.length}: the data must be the same in every launch of a trial"
            )
        self._position = Position(state["epoch"], state["consumed"])
        if self._asks_dataset and "dataset" in state:
            self.dataset.load_state_dict(unportable(state["dataset"]))

    def _order(self, epoch: int) -> torch.Tensor:
        if self._sampler is None:
            if not self._shuffle:
                return torch.arange(self.length)
            return epoch_order(self.length, self._seed, epoch)
        drawn = draw(self._sampler, self._seed, epoch)
        if len(drawn) != self.length:
            raise ValueError(
                f"trial.loader: the sampler has {self.length} indices by its len(), but yields {len(drawn)}"
            )
        return torch.tensor(drawn)

    def _stretches(self, consumed: int) -> list[tuple[int, int]]:
        """Return the global batches that are left of an epoch after so many samples."""
        return stretches(
            self.length, consumed, self.global_batch, self._layout, drop_last=self.drop_last
        )


class _Lists:
    """A batch sampler that hands out lists prepared elsewhere."""

    def __init__(self, lists: Callable[[], list[list[int]]]) -> None:
        self._lists = lists

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self._lists())

    def __len__(self) -> int:
        return len(self._lists())


class EvaluationLoader:
    """Every sample exactly once over the ranks of ``layout`` (of one rank: all on each), in order, nothing padded."""

    def __init__(
        self, dataset: Any, batch_size: int, layout: Layout, device: torch.device, **options: Any
    ) -> None:
        refuse_foreign_options(dataset, options)
        self.dataset = dataset
        self._device = device
        options.setdefault("pin_memory", device.type == "cuda")
        mine = range(layout.rank, len(dataset), layout.world_size)
        lists = [list(mine[i : i + batch_size]) for i in range(0, len(mine), batch_size)]
        options["batch_sampler"] = _Lists(lambda: lists)
        self._loader: DataLoader[Any] = DataLoader(
            dataset, generator=torch.Generator().manual_seed(0), **options
        )

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        for batch in self._loader:
            yield place_batch(batch, self._device)


class WholeLoader:
    """A ``DataLoader`` in order that ``trial.prepare`` was given: for evaluation, the whole of it on every rank.

    Other attributes are those of the ``DataLoader``.
    """

    def __init__(self, given: DataLoader[Any], weight: BatchWeight, device: torch.device) -> None:
        self.given = given
        self._weight, self._device = weight, device

    def __len__(self) -> int:
        return len(self.given)

    def __iter__(self) -> Iterator[Any]:
        try:
            for batch in self.given:
                self._weight.look(self)
                yield place_batch(batch, self._device)
        finally:
            self._weight.look(None)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.given, name)
