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
from typing import Any

import torch
from torch import nn


class BatchWeight:
    """The weight of the batch that is being trained on; loaders set it, wrapped models read it."""

    def __init__(self) -> None:
        self.value = 1.0


class _ScaleGradient(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, tensor: torch.Tensor, factor: float) -> torch.Tensor:
        context.factor = factor
        return tensor.clone()  # not a view: the script may change it in place

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient * context.factor, None


def scale_gradient(output: Any, factor: float) -> Any:
    """``output`` with the gradient of every tensor in it (down lists, tuples, maps, dataclasses) times ``factor``."""
    if isinstance(output, torch.Tensor):
        if output.requires_grad:
            return _ScaleGradient.apply(output, factor)
        return output
    if isinstance(output, tuple):
        parts = [scale_gradient(part, factor) for part in output]
        return type(output)(*parts) if hasattr(output, "_fields") else type(output)(parts)
    if isinstance(output, list):
        return [scale_gradient(part, factor) for part in output]
    if isinstance(output, dict):
        scaled = copy.copy(output)
        for name, part in output.items():
            scaled[name] = scale_gradient(part, factor)
        return scaled
    if dataclasses.is_dataclass(output) and not isinstance(output, type):
        changes = {
            field.name: scale_gradient(getattr(output, field.name), factor)
            for field in dataclasses.fields(output)
            if field.init
        }
        return dataclasses.replace(output, **changes)
    return output


def weigh_outputs(model: nn.Module, weight: BatchWeight) -> None:
    """Have the gradient of ``model``'s outputs multiplied by the weight of the batch that is being trained on."""

    def hook(module: nn.Module, arguments: Any, output: Any) -> Any:
        if weight.value == 1.0 or not torch.is_grad_enabled():
            return None
        return scale_gradient(output, weight.value)

    model.register_forward_hook(hook)
