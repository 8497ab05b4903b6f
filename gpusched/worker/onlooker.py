"""A record of what this rank did between two reports, written down for ``gpusched validate --rehearse``.

Seen from outside the script, so that it holds for any trainer: every optimizer that steps (torch's global hooks), the
rates that are in force while it does, the parameters that it moves, the samples that data loaders draw, and the first
input of each step. One line a report and rank, in ``logs/<incarnation>/seen-<rank>.jsonl``; ``doctor/rehearsal.py``
compares the lines of two runs.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpusched.worker.forgotten import owned
from gpusched.worker.learning_rate import bare_optimizer, power_for
from gpusched.worker.training import Training

SAMPLED = 256
"""Values of parameters that are compared."""
MOST_DRAWN = 200_000
"""Samples of one report that are written down; of more, their number."""
_LARGEST_INPUT = 4096


class Onlooker:
    """Record of what a script that trains does."""

    def __init__(self, path: Path, training: Training, world_size: int, lr_power: float) -> None:
        self._path = path
        self._training = training
        self._world_size = world_size
        self._lr_power = lr_power
        self._optimizers: dict[int, Any] = {}
        self._data_sets: dict[int, tuple[int, Any]] = {}
        self._trained_on: set[int] = set()
        self._last_drawn: int | None = None
        self._attached = False
        self._wants_input = True
        self._clear()
        self.attach()

    def attach(self) -> None:
        """Look on at torch, once the script has imported it."""
        torch = sys.modules.get("torch")
        if self._attached or torch is None:
            return
        self._attached = True
        from torch.nn.modules.module import register_module_forward_pre_hook
        from torch.optim.optimizer import register_optimizer_step_pre_hook
        from torch.utils.data import dataloader

        register_optimizer_step_pre_hook(self._before_step)
        register_module_forward_pre_hook(self._before_forward)
        iterator: Any = dataloader._BaseDataLoaderIter
        draw = iterator._next_index

        def _next_index(of: Any) -> Any:
            index = draw(of)
            if torch.is_grad_enabled():
                self._drawn(of._dataset, index)
            return index

        iterator._next_index = _next_index

    def reported(
        self, step: int, metrics: Mapping[str, Any], shared: list[tuple[str, bool]]
    ) -> None:
        """Write down what has happened since the last report; ``shared``: of ``Files.collisions``."""
        self.attach()
        tracked = [_bare(value) for value in self._training.tracked.values()]
        kept = _parameters_of(tracked)
        optimizers = list(self._optimizers.values())
        row = {
            "step": step,
            "ranks": self._world_size,
            "metrics": {
                name: number
                for name, value in metrics.items()
                if (number := _number(value)) is not None
            },
            "updates": self._updates,
            "base": self._base,
            "rates": self._rates,
            "target": [
                self._training.target_factor(power_for(optimizer, self._lr_power))
                for optimizer in optimizers
            ],
            "scaled": {id(optimizer) for optimizer in optimizers}
            <= {id(scaler.optimizer) for scaler in self._training.scalers},
            "fixed": self._training.keeps_global_batch,
            "inputs": self._inputs,
            "drawn": [
                {"length": _length(data), "count": len(found), "samples": found[:MOST_DRAWN]}
                for key, (_, data) in self._data_sets.items()
                if key in self._trained_on and (found := self._samples.get(key))
            ],
            "start": self._start,
            "end": self._sampled(),
            "untracked": [
                type(optimizer).__name__
                for optimizer in optimizers
                if not any(optimizer is value for value in tracked)
            ],
            "loose": sum(
                id(each) not in kept for optimizer in optimizers for each in owned(optimizer)
            ),
            "shared": shared,
        }
        with self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        self._clear()

    def _clear(self) -> None:
        self._updates = 0
        self._base: list[float] = []
        self._rates: list[float] = []
        self._inputs: list[float] = []
        self._samples: dict[int, list[int]] = {}
        self._start: list[float] | None = None

    def _before_step(self, optimizer: Any, arguments: Any, keywords: Any) -> None:
        if self._training.clock.frozen:
            return
        tracked = map(
            bare_optimizer, self._training.tracked.values() if not self._optimizers else ()
        )
        for one in (*filter(_is_optimizer, tracked), optimizer):
            if id(one) not in self._optimizers:
                self._optimizers[id(one)] = one
                one.register_step_pre_hook(self._in_force)  # after those of the learning rate
        if self._start is None:
            self._start = self._sampled()
        self._updates += 1
        self._base.append(_rate(optimizer))
        self._wants_input = True
        if self._last_drawn is not None:
            self._trained_on.add(self._last_drawn)

    def _in_force(self, optimizer: Any, arguments: Any, keywords: Any) -> None:
        if not self._training.clock.frozen:
            self._rates.append(_rate(optimizer))

    def _before_forward(self, module: Any, arguments: Any) -> None:
        if not self._wants_input or not module.training:
            return
        torch = sys.modules["torch"]
        if not torch.is_grad_enabled():
            return
        for value in arguments:
            if isinstance(value, torch.Tensor):
                flat = value.detach().reshape(-1)[:_LARGEST_INPUT].to("cpu", torch.float64)
                places = torch.arange(1, flat.numel() + 1, dtype=torch.float64)
                total = float((flat * places.sqrt()).sum())
                self._inputs.append(total if math.isfinite(total) else 0.0)
                self._wants_input = False
                return

    def _drawn(self, data: Any, index: Any) -> None:
        if isinstance(index, int):
            index = [index]
        if not isinstance(index, list) or not all(type(each) is int for each in index):
            return
        key = id(data)
        self._data_sets.setdefault(key, (len(self._data_sets), data))
        self._samples.setdefault(key, []).extend(index)
        self._last_drawn = key

    def _sampled(self) -> list[float]:
        """A few values of all parameters that optimizers move, the same ones on every rank and in every launch."""
        if not self._optimizers:
            return []
        from gpusched.worker.state import sampled

        moved = (each for optimizer in self._optimizers.values() for each in owned(optimizer))
        whole = [each for each in moved if not hasattr(each, "to_local") and each.numel()]
        return [float(value) for value in sampled(whole, SAMPLED).nan_to_num()]


def _is_optimizer(value: Any) -> bool:
    return hasattr(value, "param_groups") and hasattr(value, "step")


def _bare(value: Any) -> Any:
    return bare_optimizer(value) if _is_optimizer(value) else value


def _parameters_of(values: list[Any]) -> set[int]:
    found = (value.parameters() for value in values if callable(getattr(value, "parameters", None)))
    return {id(each) for parameters in found for each in parameters}


def _rate(optimizer: Any) -> float:
    rate = optimizer.param_groups[0]["lr"]
    return 0.0 if rate is None else float(rate)


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError):
        return None
    return number if math.isfinite(number) else None


def _length(data: Any) -> int | None:
    try:
        return len(data)
    except TypeError:
        return None
