"""Accelerate's ``Accelerator`` as a trial: ``prepare`` also tracks what it prepares, and scales learning rates.

::

    accelerator = gpusched.accelerate.Accelerator()  # in the place of accelerate's; accelerator.trial.hparams
    model, opt, loader, schedule = accelerator.prepare(model, opt, loader, schedule)
    for epoch in accelerator.trial.steps(3):
        ...
        accelerator.trial.report(val_loss=evaluate(model))

A prepared scheduler counts the steps of one atom by itself: no ``trial.schedule``, and no ``accelerator.num_processes``
in its numbers.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import accelerate
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.scheduler import AcceleratedScheduler
from torch import nn

import gpusched

_KINDS = {"model": nn.Module, "optimizer": AcceleratedOptimizer, "schedule": AcceleratedScheduler}


class Accelerator(accelerate.Accelerator):
    """Accelerate's own, with a ``trial``: takes the arguments of Accelerate's."""

    def __init__(self, **arguments: Any) -> None:
        self.trial = gpusched.init()
        self._prepared: Counter[str] = Counter()
        # Ranks on CPU slots: Accelerate takes each for a process of its own unless it is told.
        arguments["cpu"] = self.trial.device.type == "cpu" or arguments.get("cpu", False)
        super().__init__(**arguments)
        if self.split_batches:  # the global batch stays as it is, and the rates with it
            self.trial.local_batch(self.trial.world_size)

    def prepare(self, *objects: Any, **options: Any) -> Any:
        """Prepare objects as Accelerate does; track models, optimizers and schedulers, scale the optimizers' rates."""
        prepared = super().prepare(*objects, **options)
        tracked = {}
        if self.scaler is not None and not self._prepared["scaler"]:
            self._prepared["scaler"] += 1
            tracked["scaler"] = self.scaler
        for one in prepared if isinstance(prepared, tuple) else (prepared,):
            for kind, of in _KINDS.items():
                if isinstance(one, of):
                    self._prepared[kind] += 1
                    number = self._prepared[kind]
                    name = kind if number == 1 else f"{kind}{number}"
                    tracked[name] = one
                    if kind == "optimizer":
                        self.trial.scale_lr(one)
        if tracked:
            self.trial.track(**tracked)
        return prepared
