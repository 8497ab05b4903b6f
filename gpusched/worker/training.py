"""Objects that a script has set up with ``trial``: tracked ones, loaders, scaled optimizers; saved and restored as one.

Objects are restored when they are made known, from the checkpoint this incarnation began with; after the first report
that checkpoint is let go. Loaders and optimizers have no names: they are matched by the order in which they were made.
A loader made anew in every iteration of the loop takes the place of its forerunner.
"""

from __future__ import annotations

import math
import sys
import weakref
from collections import Counter
from collections.abc import Set
from contextlib import suppress
from typing import Any

from gpusched.worker.checkpoint import Checkpoint
from gpusched.worker.context import Context
from gpusched.worker.data import BatchWeight, Layout
from gpusched.worker.endings import say
from gpusched.worker.group import script_line
from gpusched.worker.hparams import STATE_NAME, PlainState
from gpusched.worker.learning_rate import (
    Clock,
    RateScaler,
    bare_optimizer,
    counts_atoms,
    numbers_of,
    owned,
    parameters_of,
    refuse_other_numbers,
)

_RATES = {"lr", "momentum", "betas"}  # what schedules set


class Training:
    """The parts of a trial's state that live in the script's process."""

    def __init__(self, context: Context) -> None:
        #: Steps reported, iterations of ``trial.steps()`` finished.
        self.step = self.iteration = 0
        #: Whether the script is inside that loop; has reported in this launch, and a report that was passed over.
        self.is_looping = self.has_reported = self.has_passed_over = False
        #: Whether an iteration over a loader has outlived a body of that loop; a body has made several reports.
        self.is_outlived = self.has_several = False
        #: Steps reported before this iteration; the last iteration that reported.
        self.step_before, self.reported_in = 0, -1
        #: Steps of the script's own loop, where it says so and the recipe says nothing.
        self.length: int | None = None
        self._told_length = 0
        self._checkpoint: Checkpoint | None = None
        self._loaded: dict[str, Any] | None = None
        is_exact = context.settings.batch == "global"
        self.layout = Layout(context.rank, context.world_size, is_exact)
        #: The global batch in base batches (those of one atom).
        self.global_batches = 1 if is_exact else context.world_size
        self.weight = BatchWeight()
        self.loaders: list[Any] = []
        #: Lengths of data sets of which ``trial.eval_loader`` gives each rank a share.
        self.shared_lengths: set[int] = set()
        self.clock = Clock(self.loaders)
        #: Schedules by step, in order, while the script has them: each fold makes new ones, with a model that must go.
        self.schedules = weakref.WeakKeyDictionary[Any, None]()
        #: The script keeps its global batch whatever the number of atoms (``trial.local_batch``).
        self.is_fixed = False
        self.tracked: dict[str, Any] = {}
        #: The ranks that wrote the checkpoint that this launch continues from.
        self.written_by: int | None = None
        #: By the optimizer whose rates are scaled, as long as the script has that.
        self.scalers = weakref.WeakKeyDictionary[Any, RateScaler]()
        #: The index of each loader by the line of the script that made it, and its number there; calls in this round.
        self._slots: dict[tuple[str, int, int], int] = {}
        self._made: Counter[tuple[str, int]] = Counter()
        #: Optimizers that have stepped, tracked or not; steps of each since the last report, by its id; tracked ones.
        self.at_work: weakref.WeakSet[Any] = weakref.WeakSet()
        self.taken: Counter[int] = Counter()
        self.optimizers: set[int] = set()
        self._is_watching = False
        #: Whether a tracked optimizer has stepped in this launch; since the last report; ever without some gradient.
        self.has_stepped = self.has_changed = self.has_unused = False
        #: A rate that the script sets itself, at the trial's first report and at the last one.
        self.rates: tuple[Any, Any] | None = None
        #: Tracked schedulers that the script steps itself, by name, and their positions at the last report.
        self.schedulers: dict[str, Any] = {}
        self.positions: dict[str, int] = {}
        #: Those that step after a report, before the next training; those that the last launch has left before that.
        self._late, self._owed = set[str](), set[str]()
        self.watch_optimizers()

    def whole_length(self, step: int) -> int | None:
        """Return the steps of the script's loop, as far as it is known at this step; None: as was told before.

        A body of ``trial.steps()`` may report several times, or every fifth time: then the loop is so many times as
        long. Counted since the last iteration that has reported; how often a single body will report it alone knows.
        """
        if self.length is None or (self.is_looping and self.length == 1):
            return None
        steps = rounds = 1
        if self.is_looping:
            steps, rounds = step - self.step_before, max(1, self.iteration - self.reported_in)
        if (length := math.ceil(steps * self.length / rounds)) <= self._told_length:
            return None
        self._told_length = length
        return length

    @property
    def has_one_report_each(self) -> bool:
        """Whether each iteration so far, and this one, has made one report (the first alone: one of one step), or at
        most one: where a loader outlives the bodies, each tenth may report."""
        each = self.step == self.iteration + 1 or 0 < self.iteration == self.clock.reports - 1
        return each or (self.is_outlived and not self.has_several)

    @property
    def keeps_global_batch(self) -> bool:
        """Whether the global batch is the same on any number of atoms."""
        return self.layout.exact or self.is_fixed

    @property
    def mid_epoch(self) -> bool:
        """Whether a training loader is in the middle of its epoch."""
        return any(loader.mid_epoch for loader in self.loaders)

    def continue_from(self, checkpoint: Checkpoint | None) -> None:
        """Take the checkpoint to restore from, before anything is set up."""
        if checkpoint is None:
            return
        self._checkpoint = checkpoint
        self.step, self.iteration = checkpoint.step, checkpoint.facts["iteration"]
        self.reported_in, self.written_by = self.iteration - 1, checkpoint.facts["world_size"]
        begun, before = self._saved("begun") or (-1, 0)
        # Saved within a body; at the first report of all it is not known whether its body has others.
        self.step_before = before if begun == self.iteration and self.step > 1 else self.step
        self.clock.reports = self._saved("reports") or 0
        self._owed = set(self._saved("owed") or ())
        self.has_unused, self.rates = bool(self._saved("unused")), self._saved("rates")

    def track(self, objects: dict[str, Any]) -> None:
        """Remember these, and put them back to where the checkpoint has them.

        Raises:
            TypeError: One cannot be saved.
            ValueError: A name is taken, or a schedule was made with other numbers, on another number of atoms.
            RuntimeError: One does not fit its saved state.
        """
        from gpusched.worker import state

        for name, value in objects.items():
            state.refuse_stateless(name, value)
            if any(schedule.scheduler is value for schedule in self.schedules):
                raise ValueError(
                    f"trial.track({name}=...): track what trial.schedule(...) returned, which knows how far it is"
                )
            if self.keeps_global_batch and counts_atoms(value):
                raise ValueError(
                    f"trial.track({name}=...): this scheduler of Accelerate takes a step for each rank, and the global "
                    f"batch is the same on any number of ranks: write Accelerator(step_scheduler_with_optimizer=False)"
                )
            if self.tracked.get(name, value) is not value:
                raise ValueError(f"trial.track({name}=...): {name!r} is tracked already")
        self.watch_optimizers()
        for name, value in tuple(objects.items()):
            if (inner := bare_optimizer(value)) is not value:  # SAM's own state lacks that
                objects[f"{name}.inner"] = inner
        self.tracked.update(objects)
        saved, numbers = self._saved("tracked"), self._saved("numbers") or {}
        self.clock.frozen = True  # loading may step an optimizer to make its state
        for name, value in objects.items():
            if isinstance(value, state.Pickled):
                value.tracked, value.known = self.tracked, {*self.tracked}
            if name in numbers and counts_atoms(value):
                atoms = self._saved("atoms")
                refuse_other_numbers(value.scheduler, numbers[name], atoms, self.global_batches)
            if saved is not None and name in saved:
                state.load_object(name, value, saved[name], self.step, self.tracked.values())
                flags = self._saved("trained")[name]
                for parameter, flag in zip(parameters_of(value), flags, strict=False):
                    parameter.requires_grad_(flag)
            elif saved is not None:
                known = ", ".join(saved) or "nothing"
                say(
                    f"trial.track({name}=...): not in the checkpoint of step {self.step} "
                    f"(which holds {known}); it starts afresh"
                )
            self._look_on_at(name, value)
        for value in objects.values() if saved else ():
            inner = bare_optimizer(value)
            if inner is not value and inner.param_groups[0].keys() <= value.param_groups[0].keys():
                inner.param_groups = value.param_groups  # loading has parted them
        if STATE_NAME not in objects:  # which a loop may read first after it has set a rate
            self._put_rates_back(self.tracked.keys() - objects.keys())
        self.clock.frozen = False

    def _put_rates_back(self, names: Set[str]) -> None:
        """Put the rates of these optimizers back again: a schedule that is made later sets them anew."""
        from torch.optim import Optimizer

        saved = self._saved("tracked") or {}
        for name in names & saved.keys():
            if isinstance(moved := self.tracked[name], Optimizer):
                for group, was in zip(moved.param_groups, saved[name]["param_groups"], strict=True):
                    group.update({key: was[key] for key in _RATES & was.keys()})

    def _look_on_at(self, name: str, value: Any) -> None:
        """Notice what this object does while it trains, if it is an optimizer, a scheduler or a model."""
        if hasattr(value, "param_groups") and hasattr(value, "register_step_post_hook"):
            self.optimizers.add(id(value))
            for loader in self.loaders:
                loader.counts_steps = True
        elif hasattr(value, "last_epoch") and hasattr(value, "optimizer"):
            self.schedulers[name], self.positions[name] = value, value.last_epoch
        elif self.layout.world_size > 1 and hasattr(value, "named_parameters"):
            self.weight.weigh(value.parameters())

    def add_scaler(self, optimizer: Any, power: float) -> None:
        """Scale the rates of an optimizer without a wrapper around it, and continue its ramp."""
        if optimizer in self.scalers:
            return  # trial.prepare has done so already
        saved = (self._saved("scalers") or [])[len(self.scalers) :]
        target = float(self.global_batches**power)
        scaler = self.scalers[optimizer] = RateScaler(optimizer, target, self.clock)
        if saved:
            scaler.load_state_dict(saved[0])

    def add_schedule(self, schedule: Any) -> None:
        """Make a schedule known, and put it back; one that is tracked is put back by its name."""
        from gpusched.worker.state import load_object

        saved = (self._saved("schedules") or [])[len(self.schedules) :]
        self.schedules[schedule] = None
        if saved and saved[0] is not None:
            load_object("schedule", schedule, saved[0], self.step)
            self._put_rates_back(self.tracked.keys())

    def add_loader(self, loader: Any) -> None:
        """Make a loader known; one that the same line of the script has made in an earlier round is replaced by it."""
        site = script_line()
        slot = (*site, self._made[site])
        self._made[site] += 1
        loader.is_set_up = self.is_looping or self.has_reported
        if self.optimizers:
            loader.counts_steps = True
        index = self._slots.setdefault(slot, len(self.loaders))
        loader.tell_apart(index)
        if index < len(self.loaders):
            loader.follow(self.loaders[index])
            self.loaders[index] = loader
            return
        self.loaders.append(loader)
        saved = self._saved("loaders") or []
        if index < len(saved):
            loader.load_state_dict(saved[index])

    def begin_round(self) -> None:
        """Begin an iteration of the loop: loaders made from now on replace those of the last one."""
        self._made.clear()

    def watch_optimizers(self) -> None:
        """Notice every optimizer that steps from here on, by torch's own hooks; once torch is imported."""
        if self._is_watching or "torch" not in sys.modules:
            return
        self._is_watching = True
        from torch.optim.optimizer import (
            register_optimizer_step_post_hook,
            register_optimizer_step_pre_hook,
        )

        register_optimizer_step_pre_hook(self._make_up)
        register_optimizer_step_post_hook(self._stepped)

    def _make_up(self, *_: Any) -> None:
        """Step schedulers that the launch before has left out, unless the script does so at the top of its loop."""
        if self.clock.frozen:
            return
        owed, self._owed = self._owed, set()
        for name in owed & self.schedulers.keys():
            with suppress(TypeError):  # one that goes by a metric
                if not self._has_moved(name):
                    self.schedulers[name].step()

    def _has_moved(self, name: str) -> bool:
        """Tell whether the script has stepped a scheduler since the last report, or since it was tracked."""
        return bool(self.schedulers[name].last_epoch > self.positions[name])

    def _stepped(self, optimizer: Any, arguments: Any, keywords: Any) -> None:
        if bare_optimizer(optimizer) is not optimizer:
            return  # around one that has stepped
        self.at_work.add(optimizer)
        if self.clock.frozen:
            return
        if not self.taken:
            self._late = set(filter(self._has_moved, self.schedulers))
        self.taken[id(optimizer)] += 1
        if id(optimizer) in self.optimizers:
            if self.taken[id(optimizer)] == 1:
                self.has_unused |= any(p.requires_grad and p.grad is None for p in owned(optimizer))
            self.has_stepped = self.has_changed = True
            for loader in self.loaders:
                loader.step_taken()

    def reported(self, step: int) -> None:
        """Note a report: the script is set up, and the checkpoint it was restored from is not needed any more."""
        self.step, self.has_reported, self.has_changed = step, True, False
        self.has_several |= self.is_looping and self.reported_in == self.iteration
        self.reported_in = self.iteration
        self.taken.clear()
        self.positions = {name: each.last_epoch for name, each in self.schedulers.items()}
        self.clock.reports += 1
        self._checkpoint = self._loaded = None
        if not self.mid_epoch:
            self.begin_round()

    def capture(self) -> dict[str, Any]:
        """Return all that is the same on every rank, for ``state.pt``."""
        from gpusched.worker import state

        held, items = self.tracked.values(), self.tracked.items()
        # With trial.state alone optimizers begin afresh, as in a loop over folds, and schedules with them.
        is_afresh = bool(held) and all(isinstance(each, PlainState) for each in held)
        return {
            "tracked": {n: state.save_object(n, each, held) for n, each in items},
            "loaders": [loader.state_dict() for loader in self.loaders],
            "scalers": [scaler.state_dict() for scaler in self.scalers.values()],
            # Those of trial.prepare and trial.schedule that the script forgot to track.
            "schedules": [
                None if is_afresh or each in held else state.save_object("schedule", each)
                for each in self.schedules
            ],
            "numbers": {n: numbers_of(each.scheduler) for n, each in items if counts_atoms(each)},
            "atoms": self.global_batches,
            "begun": (self.iteration, self.step_before),
            "reports": self.clock.reports,
            "owed": [n for n in self._late if not (self.is_looping or self._has_moved(n))],
            "trained": {n: [p.requires_grad for p in parameters_of(each)] for n, each in items},
            "unused": self.has_unused,
            "rates": state.portable(self.rates, "the learning rate"),  # perhaps numpy's
        }

    def _saved(self, part: str) -> Any:
        """Return the checkpoint's content for this part; None without one."""
        if self._checkpoint is None or "state.pt" not in self._checkpoint.files:
            return None
        if self._loaded is None:
            self._loaded = self._checkpoint.load("state.pt")
        return self._loaded.get(part)
