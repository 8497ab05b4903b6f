"""The gradient of an uneven global batch: each sample counts once, whichever rank had it.

DDP takes the plain mean over the ranks of each rank's mean gradient. Where ranks have different numbers of samples that
is not the mean over the samples. So each gradient that reaches a parameter is multiplied by the rank's weight,
world_size * share / global batch, before the ranks take their mean. This is exact for losses that are a mean over the
batch, whatever models they pass through (a GAN; an encoder and a head), under gradient accumulation too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

_FIRST = 32


class BatchWeight:
    """The weight of the batch that is being trained on: that of the batch handed out last."""

    def __init__(self) -> None:
        #: The last weight of each loader that is in an epoch; the latest is last.
        self._live: dict[int, float] = {}
        #: Weights of batches that were handed out since the last gradient.
        self._pending: set[float] = set()
        self._is_used = False
        #: The loader that is whole on every rank whose batch was handed out last; None once it is at its end.
        self.whole: object = None
        self._has_shared = False
        #: Gradients came while no loader of gpusched was in use; while only one was that all ranks read alike.
        self.is_foreign = self.is_whole = False
        #: A few values of each of the first gradients.
        self._first: list[torch.Tensor] = []
        self._watched: set[int] = set()

    @property
    def value(self) -> float:
        """Factor for the gradients that come now.

        Raises:
            RuntimeError: They are of several batches that were handed out, with different weights.
        """
        self._is_used = True
        if len(self._pending) > 1:
            raise RuntimeError(
                "one backward() for several batches of trial.loader whose samples the ranks share unevenly: their "
                "gradients need different weights. Write trial.loader(..., drop_last=True) with a batch_size that "
                "divides by the number of ranks, or call backward() after each batch"
            )
        return next(reversed(self._live.values()), 1.0)

    def hand_out(self, loader: object, weight: float) -> None:
        """Note that ``loader`` hands out a batch of this weight."""
        self._has_shared = True
        if self._is_used:
            self._pending.clear()
            self._is_used = False
        self._pending.add(weight)
        self._live.pop(id(loader), None)
        self._live[id(loader)] = weight

    def end(self, loader: object) -> None:
        """Note that an epoch of ``loader`` is over."""
        self._live.pop(id(loader), None)
        self._pending.clear()

    def weigh(self, parameters: Iterable[nn.Parameter]) -> None:
        """Have the gradients of these multiplied by the weight of the batch that is being trained on."""
        for parameter in parameters:
            if parameter.requires_grad:
                self._watched.add(id(parameter))
                parameter.register_hook(self._weighted)

    def weigh_sharded(self, model: nn.Module) -> None:
        """``weigh`` a model of ``fully_shard``, whose whole parameters there are only while it runs."""
        known: set[int] = set()

        def found(module: nn.Module, arguments: Any) -> None:
            new = (each for each in module.parameters() if id(each) not in known)
            whole = [each for each in new if not hasattr(each, "device_mesh")]
            known.update(map(id, whole))
            self.weigh(whole)

        for module in model.modules():
            if any(True for _ in module.parameters(recurse=False)):
                module.register_forward_pre_hook(found)

    def watch(self, model: nn.Module) -> None:
        """Note the first gradients of a model that the script has wrapped by itself, as they are."""
        for parameter in model.parameters():
            if parameter.requires_grad and id(parameter) not in self._watched:
                parameter.register_hook(self._note)

    def _weighted(self, gradient: torch.Tensor) -> torch.Tensor:
        gradient = gradient if (factor := self.value) == 1.0 else gradient * factor
        self._note(gradient)
        return gradient

    def _note(self, gradient: torch.Tensor) -> None:
        if not self._has_shared and self.whole is not None:
            self.is_whole = True
        elif not self._live and self.whole is None:
            self.is_foreign = True
        if len(self._first) < _FIRST and gradient.layout == torch.strided:
            values = gradient.detach().reshape(-1)[:_FIRST]
            self._first.append(values.to(torch.float64, copy=True))

    def first_gradients(self) -> bytes:
        """Return a few values of each of the first gradients; nothing where there is none, or all are 0."""
        values = torch.cat(self._first).cpu() if self._first else torch.empty(0)
        return values.numpy().tobytes() if bool(values.count_nonzero()) else b""


class OpenDDP(DistributedDataParallel):
    """``DistributedDataParallel`` through which the model's own attributes and methods are reachable."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "module":
                raise
            return getattr(self.module, name)
