"""Learning rates after a resize: larger global batches get a larger one, gradually; schedules keep their course.

Effective rate = base rate x factor, target factor = (global batch / base batch)^p = atoms^p (p 1: Goyal et al. 2017,
"linear scaling rule"; p 0.5: HyperSched section 6.3; p 0: off; auto: 0.5 for optimizers that divide by the size of
gradients, such as Adam (Malladi et al. 2022), and 1 for others). A larger target is reached by Goyal's gradual warm-up,
linear in the samples trained on, over 5 epochs; a smaller one at once, as the batch is smaller at once.

The factor is put on only while ``optimizer.step()`` runs, by the optimizer's own hooks. So whatever else reads or
writes the rates (any scheduler of ``torch.optim.lr_scheduler``, a checkpoint, a log) sees the base rate alone.
``GradScaler`` that skips a step and gradient accumulation need no care: the ramp moves when the optimizer does.
"""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from gpusched.worker.data import count_batches

WARMUP_EPOCHS = 5.0
AUTO_POWER = -1.0
"""A power p that stands for: by the kind of the optimizer."""

_ADAPTIVE = ("ada", "rmsprop", "rprop", "shampoo", "muon")
"""Words in the names of adaptive optimizers without ``betas``, which Adam and its kin have (Lion, Prodigy, ..)."""


def power_for(optimizer: Any, power: float) -> float:
    """Return the power p of the recipe for this optimizer: ``AUTO_POWER`` is 0.5 for adaptive ones, 1 for others."""
    if power != AUTO_POWER:
        return power
    optimizer = bare_optimizer(optimizer)
    names = [kind.__name__.lower() for kind in type(optimizer).__mro__]
    is_named = any(word in name for name in names for word in _ADAPTIVE)
    return 0.5 if is_named or "betas" in getattr(optimizer, "defaults", ()) else 1.0


@dataclass(slots=True)
class Clock:
    """Epochs trained on, for ramps: those of the training loader that came furthest; without a length, reports.

    Reports are counted whatever step they are of: scripts report every 100th iteration too, as step 100, 200, ..
    While it is ``frozen``, steps are not training and no rate is scaled.
    """

    loaders: Sequence[Any] = ()
    frozen: bool = False
    reports: int = 0

    def epochs(self) -> float:
        """Epochs trained on so far, with a fraction where there is a loader."""
        return self.by_loader() or float(self.reports)

    def by_loader(self) -> float:
        """Epochs of the loader that came furthest; 0.0 without one that has a length and is trained on."""
        return max((float(each.passes) for each in self.loaders if each.base_length), default=0.0)


def bare_optimizer(optimizer: Any) -> Any:
    """Return the optimizer inside a wrapper (Accelerate's, SAM, Lookahead), which has the hooks; else itself."""
    from torch.optim import Optimizer

    held = vars(optimizer).values() if hasattr(optimizer, "param_groups") else ()
    inner = [each for each in held if isinstance(each, Optimizer)]
    return bare_optimizer(inner[0]) if len(inner) == 1 else optimizer


def owned(optimizer: Any) -> list[Any]:
    """Return the parameters that an optimizer moves; none for other objects."""
    return [each for group in getattr(optimizer, "param_groups", ()) for each in group["params"]]


def parameters_of(value: Any) -> list[Any]:
    """Return the parameters of a model, which may be frozen and unfrozen; none for other objects."""
    return list(value.parameters()) if hasattr(value, "named_parameters") else []


class RateScaler:
    """Scales the rates of one optimizer, which holds its scaler by its hooks; the ramp survives checkpoints."""

    def __init__(self, optimizer: Any, target: float, clock: Clock) -> None:
        self._clock = clock
        #: Factors from which and to which the ramp goes; the epochs that were trained on when it began.
        self._ramp = (1.0, target, 0.0)
        #: Groups of parameters and their base rates, while a step runs.
        self._applied: list[tuple[dict[str, Any], Any]] = []
        self._epochs = 0.0  # after the last optimizer step
        optimizer.register_step_pre_hook(self._before_step)
        optimizer.register_step_post_hook(self._after_step)

    @property
    def factor(self) -> float:
        """Factor of the rates at the next optimizer step."""
        start, target, began = self._ramp
        if target <= start:
            return target
        done = min(1.0, max(0.0, (self._trained - began) / WARMUP_EPOCHS))
        return start + (target - start) * done

    @property
    def _trained(self) -> float:
        """Epochs trained on before the next optimizer step: a loader counts the batch of that step already."""
        return self._epochs if self._clock.by_loader() else self._clock.epochs()

    def state_dict(self) -> dict[str, Any]:
        return {"ramp": self._ramp, "factor": self.factor, "epochs": self._trained}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue a saved ramp; where the target is another now, a new one begins at the saved factor."""
        _, target, _ = self._ramp
        self._ramp, self._epochs = state["ramp"], state["epochs"]
        if self._ramp[1] != target:
            self._ramp = (state["factor"], target, self._epochs)

    def _before_step(self, optimizer: Any, arguments: Any, keywords: Any) -> None:
        self._put_back()  # a step that raised did not
        if self._clock.frozen:
            return
        factor = self.factor
        for group in optimizer.param_groups:
            rate = group["lr"]
            if rate is not None:  # Adafactor sets its own rate by the size of its parameters
                self._applied.append((group, rate))
                group["lr"] = rate * factor

    def _after_step(self, optimizer: Any, arguments: Any, keywords: Any) -> None:
        self._put_back()
        if not self._clock.frozen:
            self._epochs = self._clock.epochs()

    def _put_back(self) -> None:
        for group, rate in self._applied:
            group["lr"] = rate
        self._applied = []


# ---------------------------------------------------------------- schedules by step


_ROUNDING = 1e-6
_NUMBERS = (
    *("T_max", "total_steps", "total_iters", "step_size", "milestones", "T_0"),
    *("t_initial", "warmup_t", "decay_t"),  # timm's
)
_PROBES = (1, 10, 100, 1000, 10_000)


def steps_per_epoch(loader: Any, *, has_shares: bool = False) -> int:
    """Count the steps of one epoch on one atom, for a ``trial.loader`` or a ``DataLoader`` of the script's own.

    ``has_shares``: its batch is a rank's share of the global one, where its sampler deals out shares.

    Raises:
        TypeError: The loader does not know its length or its batch size.
    """
    length = getattr(loader, "base_length", None)
    has_length = hasattr(getattr(loader, "dataset", None), "__len__")
    if length is None and has_length and (batch := getattr(loader, "batch_size", None)):
        # A sampler may draw a part of the data; of one that deals out shares, the whole is its data set.
        drawn = loader.sampler
        if hasattr(drawn, "num_replicas"):
            batch *= drawn.num_replicas if has_shares else 1
            drawn = getattr(drawn, "dataset", None)
        whole = drawn if hasattr(drawn, "__len__") else loader.dataset
        length = count_batches(len(whole), 0, batch, drop_last=loader.drop_last)
    if not length:
        raise TypeError(
            f"trial.steps_per_epoch takes a trial.loader(...) or a DataLoader with a batch_size and a length, not "
            f"{type(loader).__name__}"
        )
    return int(length)


def counts_atoms(scheduler: Any) -> bool:
    """Tell whether this is a scheduler from ``accelerator.prepare`` that advances by one step for each rank."""
    counts = getattr(scheduler, "step_with_optimizer", False)
    return bool(counts) and not getattr(scheduler, "split_batches", True)


def without_functions(state: Any) -> Any:
    """Return the state of a schedule, and of those in it, without the functions that the script has given them."""
    if type(state) is dict:
        kept = {key: each for key, each in state.items() if not inspect.isroutine(each)}
        return {key: without_functions(each) for key, each in kept.items()}
    return [*map(without_functions, state)] if type(state) is list else state


class Schedule:
    """A scheduler of ``torch.optim.lr_scheduler`` that ``trial.schedule`` counts in steps of one atom, *base steps*.

    With a batch per atom, n atoms take one optimizer step where one atom takes n, so an epoch has fewer steps, and a
    schedule made for the steps of one atom (OneCycle, cosine, linear decay) would end too early or never. After each
    optimizer step the scheduler stands where it would stand in a run on one atom that has seen as many samples. Lengths
    are those of one atom too (``len(loader)`` before training, ``steps_per_epoch``). Batches that make one step are
    counted. A step that is told an epoch or a metric is one of the scheduler's. Other attributes and methods are the
    scheduler's own, and so is the class, by which scripts tell where to step it.
    """

    def __init__(
        self,
        scheduler: Any,
        atoms: int,
        epoch_batches: int | None = None,
        loaders: Sequence[Any] = (),
    ) -> None:
        """Count for a trial of ``atoms`` base batches in a global batch, by the one of ``loaders`` that is trained on;
        or, for a loader of the script's own, by ``epoch_batches`` on one atom.
        """
        #: The scheduler that was given.
        self.scheduler = scheduler
        #: Steps that one atom would have taken by now.
        self.base_steps = 0
        self._atoms = atoms
        self._epoch_batches = epoch_batches
        self._loaders = loaders
        #: Batches that made an optimizer step, and how often.
        self._seen: Counter[int] = Counter()
        self._handed_out = 0
        #: Whether it is stepped once an epoch; None: where its first step comes after a loop over a loader.
        self.is_by_epoch: bool | None = False
        self._offset: float | None = None
        #: Epochs trained on at its last step, without those before the epoch in which it was first stepped.
        self._epochs = self._missed = 0.0

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self.scheduler)

    def step(self, *told: Any, **named: Any) -> None:
        """Advance the scheduler to where one atom would have it. Call it after each ``optimizer.step()``."""
        if self.is_by_epoch is None:
            self.is_by_epoch = not any(loader.is_running for loader in self._loaders)
        if self.is_by_epoch or told or named:
            self.scheduler.step(*told, **named)
            return
        target = self._target()
        if self._atoms > 1 and (most := getattr(self.scheduler, "total_steps", None)):
            target = min(target, most)  # several batches a step may round up in every epoch
        for _ in range(target - self.base_steps):
            self.scheduler.step()
        self.base_steps = target

    def step_update(self, num_updates: int, metric: Any = None) -> None:
        """Advance a scheduler of timm's, which is told how many updates there were, to where one atom would have it."""
        self.base_steps = self._target()
        self.scheduler.step_update(self.base_steps, metric)

    def state_dict(self) -> dict[str, Any]:
        """Return the scheduler's state, and how it is counted."""
        return {
            "scheduler": self.scheduler.state_dict(),
            "base_steps": self.base_steps,
            "seen": dict(self._seen),
            "is_by_epoch": self.is_by_epoch,
            "epochs": self._epochs,
            "missed": self._missed,
            "atoms": self._atoms,
            "numbers": numbers_of(self.scheduler),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state, whatever the number of atoms was then.

        Raises:
            ValueError: The schedule was made with other numbers, on another number of atoms.
        """
        refuse_other_numbers(self.scheduler, state["numbers"], state["atoms"], self._atoms)
        self.scheduler.load_state_dict(state["scheduler"])
        self.base_steps = int(state["base_steps"])
        self._seen = Counter(state["seen"])
        self.is_by_epoch = state["is_by_epoch"]
        self._epochs, self._missed = state["epochs"], state["missed"]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "scheduler":
            raise AttributeError(name)
        return getattr(self.scheduler, name)

    def _target(self) -> int:
        length, each, loader = self._epoch_batches, 1, None
        if length is None:
            trained = (each for each in self._loaders if each.is_running or each.epochs_seen)
            loader = max(trained, key=lambda each: each.is_running, default=None)
        if loader is not None:
            if not self._seen:
                self._missed, self._handed_out = loader.before
            self._seen[loader.batches_handed_out - self._handed_out] += 1
            self._handed_out = loader.batches_handed_out
            length, each = loader.base_length, self._seen.most_common(1)[0][0] or 1
        seen = 0.0 if loader is None else loader.epochs_seen - self._missed
        before, self._epochs = self._epochs, seen
        if self._atoms == 1:
            return self.base_steps + 1
        if length is None:
            return self.base_steps + self._atoms
        steps = math.ceil(length / each)
        if loader is None:
            return min(self.base_steps + self._atoms, (self.base_steps // steps + 1) * steps)
        if self._offset is None:  # where another launch counted otherwise by more than rounding
            offset = self.base_steps - before * steps
            self._offset = 0.0 if abs(offset) <= 1 else offset
        return max(self.base_steps, int(self._offset + self._epochs * steps + _ROUNDING))


def numbers_of(scheduler: Any) -> list[Any]:
    """Return what a schedule was made with: its lengths, or values of its functions."""
    found: list[Any] = []
    for one in (scheduler, *getattr(scheduler, "_schedulers", ())):
        found += [f"{name}={vars(one)[name]}" for name in _NUMBERS if name in vars(one)]
        for function in getattr(one, "lr_lambdas", ()):
            with suppress(Exception):  # a function of the script's own may know fewer steps
                found.append([round(float(function(step)), 6) for step in _PROBES])
    return found


def refuse_other_numbers(scheduler: Any, before: list[Any], atoms_before: int, atoms: int) -> None:
    """Raise ValueError where a schedule was made with other numbers on another number of atoms."""
    now = numbers_of(scheduler)
    if atoms_before != atoms and before != now:
        pairs = (f"{old} and {new}" for old, new in zip(before, now, strict=False) if old != new)
        raise ValueError(
            f"this {type(scheduler).__name__} was made with other numbers on {atoms_before} atoms than on {atoms} "
            f"({next(pairs, 'of other kinds')}): a schedule is counted in steps of one atom, so write its lengths with "
            f"trial.steps_per_epoch(loader), and leave the number of ranks out of them (accelerator.num_processes too)"
        )
