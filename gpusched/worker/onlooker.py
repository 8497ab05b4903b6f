"""A record of what this rank did between two reports, written down for ``gpusched validate --rehearse``.

Seen from outside the script, so that it holds for any trainer: every optimizer that steps (torch's global hooks), the
rates that are in force while it does, the parameters that it moves, the samples that data loaders draw, and the inputs
of each step. One line a report and rank, in ``logs/<incarnation>/seen-<rank>.jsonl``; ``doctor/rehearsal.py``
compares the lines of two runs. From the launch on that the rehearsal names, the parameters are put back after each
optimizer step, so that several sizes report of one model.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.nn.modules import module
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import dataloader

from gpusched.worker.context import Context
from gpusched.worker.learning_rate import bare_optimizer, owned, power_for
from gpusched.worker.state import sampled
from gpusched.worker.training import Training

SAMPLED = 256
"""Values of parameters that are compared."""
MOST_DRAWN = 200_000
"""Samples of one report that are written down; of more, their number."""
_LARGEST_INPUT = 4096


@dataclass(slots=True, eq=False)
class _Draws:
    """Samples that an iterator of a data set has drawn since the last report. ``trains``: an optimizer step came."""

    data: Any
    samples: list[int] = field(default_factory=list)
    trains: bool = False


class Onlooker:
    """Record of what a script that trains does."""

    def __init__(self, path: Path, training: Training, context: Context) -> None:
        self._path = path
        self._context = context
        self._training = training
        self._optimizers: dict[int, Any] = {}
        self._last_drawn: _Draws | None = None
        #: Whether this launch trains in vain: from a launch on, of the trials that are moved (``cli/rehearse.py``).
        self._stands_still = context.trial % 2 == 0 and context.incarnation >= context.still_from
        #: Of the calls of models since the last step: how deep they are nested, the last input, values of all inputs.
        #: A module without parameters is no model: what a loss is given differs by the rounding of a GPU's kernels.
        self._depth, self._values = 0, 0
        self._input: float | None = None
        self._kept: dict[int, list[Any]] = {}
        self._wants_input = True
        self._clear()
        register_optimizer_step_pre_hook(self._before_step)
        module.register_module_forward_pre_hook(self._before_forward)
        module.register_module_forward_hook(self._after_forward, always_call=True)
        iterator: Any = dataloader._BaseDataLoaderIter
        draw = iterator._next_index

        def _next_index(of: Any) -> Any:
            index = draw(of)
            if torch.is_grad_enabled():
                self._drawn(of, index)
            return index

        iterator._next_index = _next_index

    def reported(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Write down what has happened since the last report."""
        self._note_optimizers()
        optimizers, lr_power = list(self._optimizers.values()), self._context.settings.lr_power
        unread = self._context.unread
        row = {
            "step": step,
            "unread": unread if len(unread) == len(self._context.drawn) else [],
            "ranks": self._context.world_size,
            "metrics": {
                name: number
                for name, value in metrics.items()
                if (number := _number(value)) is not None
            },
            "updates": self._updates,
            "base": self._base,
            "rates": self._rates,
            "target": [
                float(self._training.global_batches ** power_for(optimizer, lr_power))
                for optimizer in optimizers
            ],
            "scaled": all(one in self._training.scalers for one in optimizers),
            "fixed": self._training.keeps_global_batch,
            "inputs": self._inputs,
            "values": median(self._sizes) if self._sizes else 0,
            "held": self._stands_still and self._updates > 0,
            "drawn": list(self._drawn_by_data_set()),
            "start": self._start,
            "moved": self._moved,
            "end": self._sampled(),
        }
        with self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        self._clear()

    def _clear(self) -> None:
        self._updates = 0
        self._base: list[float] = []
        self._rates: list[float] = []
        self._inputs: list[float] = []
        self._sizes: list[int] = []
        self._draws: list[_Draws] = []
        self._start: list[float] | None = None
        #: Where the first step led, if it was undone.
        self._moved: list[float] = []

    def _before_step(self, optimizer: Any, arguments: Any, keywords: Any) -> None:
        if self._training.clock.frozen or bare_optimizer(optimizer) is not optimizer:
            return
        self._note_optimizers(optimizer)
        if self._start is None:
            self._start = self._sampled()
        self._updates += 1
        self._base.append(float(optimizer.param_groups[0]["lr"] or 0.0))
        if self._input is not None:
            self._inputs.append(self._input)
            self._sizes.append(self._values)
        self._input, self._values = None, 0
        if self._last_drawn is not None:
            self._last_drawn.trains = True

    def _note_optimizers(self, *stepping: Any) -> None:
        """Look on at the optimizers that are tracked, the same ones in every launch, and at others once they step."""
        tracked = [] if self._optimizers else map(bare_optimizer, self._training.tracked.values())
        for one in (*tracked, *stepping):
            if id(one) in self._optimizers or not hasattr(one, "register_step_pre_hook"):
                continue
            self._optimizers[id(one)] = one
            one.register_step_pre_hook(self._in_force)  # after those of the learning rate
            if self._stands_still:
                one.register_step_post_hook(self._put_back)
                self._kept[id(one)] = [each.detach().clone() for each in owned(one)]

    def _in_force(self, optimizer: Any, arguments: Any, keywords: Any) -> None:
        if not self._training.clock.frozen:
            self._rates.append(float(optimizer.param_groups[0]["lr"] or 0.0))

    def _put_back(self, optimizer: Any, arguments: Any, keywords: Any) -> None:
        self._moved = self._moved or self._sampled()
        with torch.no_grad():
            for each, kept in zip(owned(optimizer), self._kept[id(optimizer)], strict=True):
                each.copy_(kept)

    def _after_forward(self, module: Any, arguments: Any, result: Any) -> None:
        self._depth = max(0, self._depth - 1)

    def _before_forward(self, module: Any, arguments: Any) -> None:
        self._depth += 1
        if not module.training or not torch.is_grad_enabled():
            return
        if self._depth == 1:
            self._wants_input = next(module.parameters(), None) is not None
        for value in arguments:
            if self._wants_input and isinstance(value, torch.Tensor):
                self._values += value.numel()
                flat = value.detach().reshape(-1)[:_LARGEST_INPUT].to("cpu", torch.float64)
                places = torch.arange(1, flat.numel() + 1, dtype=torch.float64, device="cpu")
                total = float((flat * places.sqrt()).sum())
                self._input = total if math.isfinite(total) else 0.0
                self._wants_input = False

    def _drawn(self, iterator: Any, index: Any) -> None:
        if isinstance(index, int):
            index = [index]
        if not isinstance(index, list) or not all(type(each) is int for each in index):
            return
        drawn = iterator.__dict__.setdefault("_gpusched_drawn", _Draws(iterator._dataset))
        if drawn not in self._draws:
            drawn.samples = []
            self._draws.append(drawn)
        drawn.samples.extend(index)
        self._last_drawn = drawn

    def _drawn_by_data_set(self) -> Iterator[dict[str, Any]]:
        """Yield the samples of each data set, of iterators that an optimizer step has followed."""
        by_data: dict[int, list[_Draws]] = {}
        for drawn in self._draws:
            if drawn.trains:
                by_data.setdefault(id(drawn.data), []).append(drawn)
        for several in by_data.values():
            found = [sample for drawn in several for sample in drawn.samples]
            data = several[0].data
            length = len(data) if hasattr(data, "__len__") else None
            yield {"length": length, "count": len(found), "samples": found[:MOST_DRAWN]}

    def _sampled(self) -> list[float]:
        """A few values of all parameters that optimizers move, the same ones on every rank and in every launch."""
        moved = (each for optimizer in self._optimizers.values() for each in owned(optimizer))
        whole = [each for each in moved if not hasattr(each, "to_local") and each.numel()]
        values: list[float] = sampled(whole, SAMPLED).nan_to_num().tolist()
        return values


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError):
        return None
    return number if math.isfinite(number) else None
