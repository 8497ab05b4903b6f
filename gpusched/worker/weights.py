"""The gradient of an uneven global batch: each sample counts once, whichever rank had it.

DDP takes the plain mean over the ranks of each rank's mean gradient. Where ranks have different numbers of samples that
is not the mean over the samples. So the gradient that flows back into a wrapped model's outputs is multiplied by the
rank's weight, world_size * share / global batch. This is exact for losses that are a mean over the batch, under
gradient accumulation too, and leaves penalties on the parameters themselves (which every rank computes alike) as they
are.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

_TAG = "_gpusched_weight"


class BatchWeight:
    """The weight of the batch that was handed out last; for inputs that do not say which batch they are of."""

    def __init__(self) -> None:
        self.value = 1.0


def each_part(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return ``value`` with what ``change`` makes of everything in it, down lists, tuples and maps."""
    if isinstance(value, tuple):
        parts = [each_part(part, change) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, list):
        return [each_part(part, change) for part in value]
    if isinstance(value, dict):
        changed = copy.copy(value)
        for name, part in value.items():
            changed[name] = each_part(part, change)
        return changed
    return change(value)


def tagged(batch: Any, weight: float) -> Any:
    """Return ``batch``, each of whose tensors says the weight of its batch: there may be several loaders."""
    for tensor in _tensors(batch):
        setattr(tensor, _TAG, weight)
    return batch


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _tensors(part)
    elif isinstance(value, dict):
        yield from _tensors(tuple(value.values()))


class _ScaleGradient(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, tensor: torch.Tensor, factor: float) -> torch.Tensor:
        context.factor = factor
        return tensor.clone()  # not a view: the script may change it in place

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient * context.factor, None


def scale_gradient(output: Any, factor: float) -> Any:
    """Return ``output`` with the gradient of every tensor in it (in dataclasses too) times ``factor``."""

    def scaled(part: Any) -> Any:
        if dataclasses.is_dataclass(part) and not isinstance(part, type):
            changes = {
                field.name: scale_gradient(getattr(part, field.name), factor)
                for field in dataclasses.fields(part)
                if field.init
            }
            return dataclasses.replace(part, **changes)
        is_trained = isinstance(part, torch.Tensor) and part.requires_grad
        return _ScaleGradient.apply(part, factor) if is_trained else part

    return each_part(output, scaled)


def weigh_outputs(model: nn.Module, weight: BatchWeight) -> None:
    """Have the gradient of ``model``'s outputs multiplied by the weight of the batch that is being trained on."""

    def hook(module: nn.Module, arguments: Any, keywords: Any, output: Any) -> Any:
        if not torch.is_grad_enabled():
            return None
        tags = (getattr(tensor, _TAG, None) for tensor in _tensors((arguments, keywords)))
        value = next((tag for tag in tags if tag is not None), weight.value)
        return None if value == 1.0 else scale_gradient(output, value)

    model.register_forward_hook(hook, with_kwargs=True)
