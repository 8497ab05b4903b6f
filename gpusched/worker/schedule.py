"""Learning-rate schedules by step, counted as one atom would count them.

With a batch per atom, n atoms take one optimizer step where one atom takes n, so an epoch has fewer steps, and a
schedule made for the steps of one atom (OneCycle, cosine, linear decay) would end too early or never. ``Schedule``
advances the script's scheduler by *base steps*: after each optimizer step it stands where it would stand in a run on
one atom that has seen as many samples. Lengths are therefore those of one atom too (``steps_per_epoch``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

_ROUNDING = 1e-6


def steps_per_epoch(loader: Any, global_batches: int) -> int:
    """Steps of one epoch on one atom, for a ``trial.loader`` or a ``DataLoader`` of the script's own.

    Raises:
        TypeError: The loader does not know its length or its batch size.
    """
    from torch.utils.data import DataLoader

    length, batch, drop_last = None, None, False
    if hasattr(loader, "global_batch"):
        batch, drop_last = loader.global_batch // global_batches, loader.drop_last
        length = loader.length
    elif isinstance(loader, DataLoader):
        sampler = loader.batch_sampler if loader.batch_size is None else loader
        batch = getattr(sampler, "batch_size", None)
        drop_last = bool(getattr(sampler, "drop_last", False))
        length = len(loader.dataset) if hasattr(loader.dataset, "__len__") else None
    if not length or not batch:
        raise TypeError(
            f"trial.steps_per_epoch takes a trial.loader(...) or a DataLoader whose data set has a length, not "
            f"{type(loader).__name__}"
        )
    return int(length // batch if drop_last else math.ceil(length / batch))


def counts_atoms(scheduler: Any) -> bool:
    """Tell whether this is a scheduler from ``accelerator.prepare`` that advances by one step for each rank."""
    counts = getattr(scheduler, "step_with_optimizer", False)
    return bool(counts) and not getattr(scheduler, "split_batches", True)


class Schedule:
    """A scheduler of ``torch.optim.lr_scheduler`` that ``trial.schedule`` counts in base steps; see the module's text.

    Other attributes and methods (``get_last_lr``, ``last_epoch``, ``base_lrs``) are the scheduler's own.
    """

    def __init__(
        self,
        scheduler: Any,
        atoms: int,
        epoch_steps: int | None,
        epochs_seen: Callable[[], float] | None,
    ) -> None:
        """Count for a trial that trains on ``atoms`` atoms.

        Args:
            scheduler: Advanced by its ``step()``.
            atoms: Base batches in a global batch.
            epoch_steps: Base steps of an epoch; None: epochs have no end that steps must fit.
            epochs_seen: Epochs trained on, from a ``trial.loader``; None: counted in calls of ``step``.
        """
        self._scheduler = scheduler
        self._atoms = atoms
        self._epoch_steps = epoch_steps
        self._epochs_seen = epochs_seen
        self._done = 0

    @property
    def scheduler(self) -> Any:
        """The scheduler that was given."""
        return self._scheduler

    @property
    def base_steps(self) -> int:
        """Steps that one atom would have taken by now."""
        return self._done

    def step(self) -> None:
        """Advance the scheduler to where one atom would have it. Call it after each ``optimizer.step()``.

        Raises:
            RuntimeError: On one atom this is not one step: the script steps once in several batches.
        """
        target = self._target()
        if self._atoms == 1 and target != self._done + 1:
            raise RuntimeError(
                f"step {self._done + 1} of the schedule comes after the data of {target} steps: where the optimizer "
                f"steps once in several batches, write trial.schedule(scheduler, batches_per_step=...)"
            )
        for _ in range(target - self._done):
            self._scheduler.step()
        self._done = target

    def state_dict(self) -> dict[str, Any]:
        """Return the scheduler's state and the base steps done."""
        return {"scheduler": self._scheduler.state_dict(), "base_steps": self._done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state, whatever the number of atoms was then."""
        self._scheduler.load_state_dict(state["scheduler"])
        self._done = int(state["base_steps"])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._scheduler, name)

    def _target(self) -> int:
        if self._epoch_steps is None:
            return self._done + self._atoms
        if self._epochs_seen is not None:
            return max(self._done, int(self._epochs_seen() * self._epoch_steps + _ROUNDING))
        end = (self._done // self._epoch_steps + 1) * self._epoch_steps
        return min(self._done + self._atoms, end)
