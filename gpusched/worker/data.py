"""Samples and the ranks that train on them: exact for any number of ranks, and across a resize in mid-epoch.

An epoch is one order of all samples, fixed by seed and epoch alone. A *global batch* is the next stretch of that order;
its ranks share it as evenly as can be. Where training stands is therefore one number, the samples consumed so far, and
whoever continues from it, with however many ranks, trains on exactly the samples that are left.

Two cases in which ranks cannot have equal shares:

* A stretch that does not divide: the shares differ by one sample. ``weight`` corrects the gradient, see ``weights.py``.
* A remainder smaller than the number of ranks, which would leave a rank without work: with a batch per atom it joins
  the batch before it. With a fixed global batch (``exact``) the batches may not depend on the number of ranks, so a
  rank with nothing to do repeats one sample with weight zero; so it does where fewer samples than ranks are left.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Layout:
    """The split of global batches. ``exact``: the global batch does not depend on the number of ranks."""

    rank: int
    world_size: int
    atoms: int
    exact: bool

    def global_batch(self, batch_size: int) -> int:
        """Return samples that all ranks together train on before one optimizer step, given the recipe's batch size.

        Raises:
            ValueError: Fewer than one sample an atom.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}: at least 1")
        return batch_size if self.exact else batch_size * self.atoms


@dataclass(frozen=True, slots=True)
class Share:
    """One rank's part of one global batch.

    ``weight`` is what its mean gradient must be multiplied by so that the mean over the ranks is the mean over the
    global batch; ``end`` is how many samples of the epoch are consumed after it.
    """

    begin: int
    stop: int
    end: int
    weight: float


def derive_seed(*parts: int) -> int:
    """Return a seed (63 bits) from several numbers; unlike a sum, near numbers give unrelated seeds."""
    text = ",".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) >> 1


def epoch_order(length: int, seed: int, epoch: int) -> torch.Tensor:
    """Return the order in which one epoch visits the samples of a shuffled data set."""
    import torch

    generator = torch.Generator().manual_seed(derive_seed(seed, epoch))
    return torch.randperm(length, generator=generator)


def count_batches(
    length: int, offset: int, global_batch: int, layout: Layout, *, drop_last: bool
) -> int:
    """Count the global batches of what is left of an epoch after ``offset`` samples."""
    full, rest = divmod(max(0, length - offset), global_batch)
    joins_the_last = rest < layout.world_size and full > 0 and not layout.exact
    return full + (rest > 0 and not drop_last and not joins_the_last)


def stretches(
    length: int, offset: int, global_batch: int, layout: Layout, *, drop_last: bool
) -> Iterator[tuple[int, int]]:
    """Yield the global batches of what is left of an epoch after ``offset`` samples: (begin, end) in its order."""
    number = count_batches(length, offset, global_batch, layout, drop_last=drop_last)
    for begin in range(offset, offset + number * global_batch, global_batch):
        is_last = begin == offset + (number - 1) * global_batch
        yield begin, length if is_last and not drop_last else begin + global_batch


def share(begin: int, end: int, layout: Layout) -> Share:
    """Return this rank's part of the global batch ``[begin, end)``."""
    total, world_size, rank = end - begin, layout.world_size, layout.rank
    lower = begin + total * rank // world_size
    upper = begin + total * (rank + 1) // world_size
    weight = world_size * (upper - lower) / total
    if upper == lower:
        lower = min(lower, end - 1)
        upper = lower + 1
    return Share(lower, upper, end, weight)
