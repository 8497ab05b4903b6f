"""Samples and the ranks that train on them: exact for any number of ranks, and across a resize in mid-epoch.

An epoch is one order of all samples, fixed by seed and epoch alone. A *global batch* is the next stretch of that order;
its ranks share it as evenly as can be. Where training stands is therefore one number, the samples consumed so far, and
whoever continues from it, with however many ranks, trains on exactly the samples that are left.

Two cases in which ranks cannot have equal shares:

* A stretch that does not divide: the shares differ by one sample. DDP takes the plain mean over the ranks of each
  rank's mean gradient, so each gradient that reaches a parameter is multiplied by the rank's ``weight``, world_size *
  share / global batch, before (``BatchWeight``). This is exact for losses that are a mean over the batch, whatever
  models they pass through (a GAN; an encoder and a head), under gradient accumulation too.
* A remainder of fewer than two samples for each rank, and batch norm fails on one: with a batch per atom it is evened
  out with the batch before it, which must not grow, as a GPU may be full. With a fixed global batch (``exact``) the
  batches may not depend on the number of ranks, so a rank with nothing to do repeats one sample with weight zero; so it
  does where fewer samples than ranks are left.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch
    from torch import nn

_FIRST = 32


@dataclass(frozen=True, slots=True)
class Layout:
    """The split of global batches. ``exact``: the global batch does not depend on the number of ranks."""

    rank: int
    world_size: int
    exact: bool


class Share(NamedTuple):
    """One rank's part of one global batch.

    ``weight`` is what its mean gradient must be multiplied by so that the mean over the ranks is the mean over the
    global batch.
    """

    begin: int
    stop: int
    weight: float


def derive_seed(*parts: int) -> int:
    """Return a seed (63 bits) from several numbers; unlike a sum, near numbers give unrelated seeds."""
    text = ",".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) >> 1


def count_batches(length: int, offset: int, global_batch: int, *, drop_last: bool) -> int:
    """Count the global batches of what is left of an epoch after ``offset`` samples."""
    full, rest = divmod(max(0, length - offset), global_batch)
    return full + (rest > 0 and not drop_last)


def stretches(
    length: int, offset: int, global_batch: int, layout: Layout, *, drop_last: bool
) -> Iterator[tuple[int, int]]:
    """Yield the global batches of what is left of an epoch after ``offset`` samples: (begin, end) in its order."""
    is_plain = drop_last or layout.exact or layout.world_size == 1
    few = 0 if is_plain else min(global_batch, 2 * layout.world_size)
    for _ in range(count_batches(length, offset, global_batch, drop_last=drop_last)):
        end = min(offset + global_batch, length)
        if 0 < length - end < few:
            end = (offset + length + 1) // 2
        yield offset, end
        offset = end


def share(begin: int, end: int, layout: Layout) -> Share:
    """Return this rank's part of the global batch ``[begin, end)``."""
    total, world_size, rank = end - begin, layout.world_size, layout.rank
    lower = begin + total * rank // world_size
    upper = begin + total * (rank + 1) // world_size
    weight = world_size * (upper - lower) / total
    if upper == lower:
        lower = min(lower, end - 1)
        upper = lower + 1
    return Share(lower, upper, weight)


class BatchWeight:
    """The weight of the batch that is being trained on: that of the batch handed out last."""

    def __init__(self) -> None:
        #: The last weight of each loader that is in an epoch; the latest is last.
        self._live: dict[int, float] = {}
        #: The loader that is whole on every rank whose batch was handed out last; None once it is at its end.
        self.whole: object = None
        self._has_shared = False
        #: Gradients came while only a loader was in use that all ranks read alike.
        self.is_whole = False
        #: A few values of each of the first gradients.
        self._first: list[torch.Tensor] = []

    def __deepcopy__(self, memo: object) -> BatchWeight:
        """Return this one: a copy of a model that has it is trained on the same batches."""
        return self

    @property
    def value(self) -> float:
        """Factor for the gradients that come now."""
        return next(reversed(self._live.values()), 1.0)

    def hand_out(self, loader: object, weight: float) -> None:
        """Note that ``loader`` hands out a batch of this weight."""
        self._has_shared = True
        self._live.pop(id(loader), None)
        self._live[id(loader)] = weight

    def end(self, loader: object) -> None:
        """Note that an epoch of ``loader`` is over."""
        self._live.pop(id(loader), None)

    def weigh(self, parameters: Iterable[nn.Parameter]) -> None:
        """Have the gradients of these multiplied by the weight of the batch that is being trained on; not of shards."""
        for each in parameters:
            is_whole = each.requires_grad and not hasattr(each, "device_mesh")
            if is_whole and self._weighted not in (each._backward_hooks or {}).values():
                each.register_hook(self._weighted)

    def weigh_sharded(self, model: nn.Module) -> None:
        """``weigh`` a model of ``fully_shard``, whose whole parameters there are only while it runs."""

        def found(module: nn.Module, arguments: Any) -> None:
            self.weigh(module.parameters())

        for module in model.modules():
            if any(True for _ in module.parameters(recurse=False)):
                module.register_forward_pre_hook(found)

    def _weighted(self, gradient: torch.Tensor) -> torch.Tensor:
        gradient = gradient if (factor := self.value) == 1.0 else gradient * factor
        self.is_whole |= not self._has_shared and self.whole is not None
        if len(self._first) < _FIRST and not gradient.is_sparse:
            self._first.append(gradient.detach().reshape(-1)[:_FIRST].double().clone())
        return gradient

    def first_gradients(self) -> bytes:
        """Return a few values of each of the first gradients; nothing where there is none, or all are 0."""
        import torch

        values = torch.cat(self._first).cpu() if self._first else torch.empty(0)
        # The first scale of a GradScaler is too large: later gradients count.
        if not bool(values.isfinite().all()):
            self._first, values = [], torch.empty(0)
        return values.numpy().tobytes() if bool(values.count_nonzero()) else b""
