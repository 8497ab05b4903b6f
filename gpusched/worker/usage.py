"""Uses of ``gpusched`` that would train a model wrongly: found at a report, named with the line to change.

What is certain is refused: ranks that train apart or on the same samples (``together.py``), state of the tracked
objects that a checkpoint lacks at a resume. What is only likely is told on screen, once. What a script keeps in its own
variables is proved by a rehearsal. Ranks that make different calls are found by ``group.py``, wrong arguments by the
function that is called; ``endings.py`` adds the script's line to an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gpusched.text import show_bytes
from gpusched.worker.backing import Backing
from gpusched.worker.context import Context
from gpusched.worker.group import Group
from gpusched.worker.learning_rate import Schedule, bare_optimizer, owned, parameters_of
from gpusched.worker.together import Together
from gpusched.worker.training import Training

MUCH_BYTES = 1 << 30
"""Frozen parameters of this size are worth leaving out of each checkpoint, if they are most of a model."""
_SAVE = (
    "track what it learns (trial.track(model=model); gpusched.pickled(clf) for an object without state_dict; "
    "trial.state for plain values; trial.checkpoint_dir() for files), or say with trial.track() that the step is all "
    "there is"
)


class Usage:
    """Calls that a script has made to its trial, and calls that are missing.

    What is missing is an error where the launch continues from a checkpoint that lacks it, or on other ranks than it
    was written by; elsewhere it is told, once.
    """

    def __init__(
        self, context: Context, group: Group, training: Training, backing: Backing
    ) -> None:
        """Check the script of one rank; ``backing`` tells the search once of the same matter."""
        self._context, self._group, self._training = context, group, training
        self._backing = backing
        self._is_scheduled = context.paths is not None
        #: ``trial.track`` was called, perhaps with nothing to save.
        self.tracks = False
        #: ``trial.mean`` was called: the script knows that ranks have shares.
        self.has_mean = False
        self._reports = self._passes = 0
        #: Comparison of this rank with the others.
        self.together = Together(group, training)

    def at_report(self, metrics: Mapping[str, Any], *, is_counted: bool) -> None:
        """Check what was set up, at the first report, and how the script has trained since the last one. All ranks.

        ``is_counted``: the script has not said which step this is, and its loop is not ``trial.steps()``.

        Raises:
            RuntimeError: The script would train a wrong model.
        """
        training, writes_files = self._training, self._backing.writes_files
        training.watch_optimizers()
        self._reports += 1
        looks_again = self._reports & (self._reports - 1) == 0  # at 1, 2, 4, 8, ..
        has_ranks = self._group.world_size > 1
        if self._is_scheduled and not (training.tracked or writes_files):
            self._check_saves_nothing(training.step)
        if looks_again and has_ranks:
            self.together.refuse_apart()
            name = self._context.settings.metric or ""
            if wrong := self.together.differing_metric(name, metrics):
                self._tell("share", wrong)
        if self._reports == 1:
            self._tell_of_set_up()
            self._check_size()
        self._check_own_rate()
        if training.schedulers:
            self._check_steps()
        if looks_again and self._is_scheduled and not writes_files:
            self._check_lost()
        self._check_evaluation()
        if is_counted:
            self._check_epochs()
        if has_ranks:
            self.together.refuse_same_work()

    def _tell(self, about: str, wrong: str, *, is_error: bool = False) -> None:
        """Tell of what is likely wrong, once; raise RuntimeError where that is certain. With one size some is right."""
        if is_error:
            raise RuntimeError(wrong)
        if self._context.settings.is_resized or about not in ("rate", "schedule", "evaluation"):
            self._backing.remark(wrong, about)

    def _tell_of_set_up(self) -> None:
        """Tell what the first report shows: hyperparameters not read, rates not scaled, a length in a loss."""
        if names := self._context.unread:
            self._tell(
                "unread",
                f"the script has not read {', '.join(names)} by its first report, so trials that differ in nothing "
                f"else train the same: read trial.hparams, or pass it to the script, args: "
                f'["--{names[0]}=${{{names[0]}}}"] in the recipe; one that only some trials need gets a `when` there',
            )
        self._tell_of_rates()
        training = self._training
        read = next((loader for loader in training.loaders if loader.length_read_at), None)
        if read is not None and not training.schedules:
            self._tell(
                "length",
                f"{read.length_read_at}: len(loader) before training is {read.base_length}, the batches of one atom "
                f"(for schedules by step), and an epoch of this launch has {len(read)}: where it divides a loss, or "
                f"counts iterations for a rate that the script sets, read it inside the loop",
            )

    def _tell_of_rates(self) -> None:
        """Tell of a rate that does not follow the ranks, and of one that the script multiplies by them."""
        training, ranks, drawn = self._training, self._group.world_size, self._context.drawn
        follows = self._context.settings.lr_power != 0 and not training.keeps_global_batch
        rates = {n: v for n, v in drawn.items() if isinstance(v, float) and re.search("lr|rate", n)}
        for one in training.at_work if ranks > 1 else ():
            kind, rate = type(one).__name__, one.defaults.get("lr")
            is_scaled = follows and one in training.scalers
            of = [n for n, v in rates.items() if rate in (v * ranks, v * ranks**0.5)]
            is_multiple = bool(of) and rate not in rates.values()
            if is_multiple and (is_scaled or self._context.settings.is_resized):
                self._tell(
                    "ranks",
                    f"the script multiplies the learning rate of {kind} ({of[0]}) by its {ranks} ranks"
                    f"{', and trial.scale_lr does so again' * is_scaled}: leave them out of it. A checkpoint keeps the "
                    f"rate that its trial began with, on any number of ranks; trial.scale_lr(opt) follows their number",
                )
            elif follows and not is_scaled and id(one) in training.optimizers:
                self._tell(
                    "rate",
                    f"on several atoms a trial has a batch for each, and nothing here scales the learning rate of "
                    f"{kind}: unless the script does, write trial.scale_lr(opt) before trial.track or trial.steps, or "
                    f"`lr_scaling: none` in the recipe; a loader of your own keeps its batch by trial.local_batch(..)",
                )

    def _check_own_rate(self) -> None:
        """Find a rate that the script sets by a counter of its own, which begins anew with each launch."""
        training = self._training
        tracked = (one for one in training.tracked.values() if id(one) in training.optimizers)
        groups = (group for one in tracked for group in one.param_groups[:1])
        now = next((group.get("lr") for group in groups if "initial_lr" not in group), None)
        first, last = training.rates or (now, now)
        training.rates = (first, now)
        if self._reports == 1 and isinstance(last, float) and now == first != last:
            self._tell(
                "own rate",
                f"the learning rate is {now:.4g} again, as at the first report of all, and was {last:.4g} when this "
                f"trial was saved: where the script sets it by a counter, that begins anew with each launch. Keep the "
                f"counter in trial.state, or compute it from trial.step",
            )

    def _check_size(self) -> None:
        """Find a model of which a small part is trained, adapters say, and all of which every checkpoint holds."""
        for name, value in self._training.tracked.items():
            sizes = {True: 0, False: 0}
            for each in parameters_of(value):
                sizes[each.requires_grad] += each.numel() * each.element_size()
            if self._is_scheduled and sizes[False] > max(MUCH_BYTES, sizes[True]):
                self._tell(
                    "size",
                    f"{show_bytes(sizes[False])} of {name} are frozen, and each checkpoint holds them: if every launch "
                    f"loads them anew, track what is trained alone, {name}=torch.nn.ParameterList(p for p in "
                    f"{name}.parameters() if p.requires_grad)",
                )

    def _check_epochs(self) -> None:
        """Find a loop of epochs that reports less often, without saying so, and would repeat epochs at a resume.

        Several passes over the data for each report may be right, as in PPO: it is told, no more. What a launch does
        before its first report may be a preparation, so the later ones count.
        """
        loaders = self._training.loaders[:1]
        before, self._passes = self._passes, sum(one.passes_trained for one in loaders)
        if self._reports > 1 and self._passes - before > 1:
            self._tell(
                "epochs",
                "this script trains on its data several times for a report, and trial.track(...) returns the number of "
                "reports: a loop over epochs would repeat some after a pause. Say how many are done: "
                "trial.report(step=epoch + 1, ...)",
            )

    def _check_evaluation(self) -> None:
        """Find a loader that shuffles or samples, of which each rank has a share, and on which a model is evaluated.

        It is read whole where no gradients are recorded, if that is said before the loop over it.
        """
        values = self._training.tracked.values()
        modes = [each.training for each in values if isinstance(getattr(each, "training", 0), bool)]
        if any(modes) or not modes:
            return
        for loader in self._training.loaders:
            is_evaluated = loader.passes_untrained and not loader.passes_trained
            if loader.given is not None and is_evaluated and not self.has_mean:
                self._tell(
                    "evaluation",
                    f"{loader.given_at}: trial.prepare(...) was given a DataLoader that shuffles or samples, of which "
                    f"each rank has a share, and the script evaluates on it: the metric would be one of a share. Write "
                    f"`with torch.no_grad():` around the loop over it, or shuffle=False",
                    is_error=self._group.world_size > 1,
                )

    def _check_saves_nothing(self, step: int) -> None:
        """Refuse a script that trains and tracks nothing; tell of one that says so, or of which nothing is known.

        Raises:
            RuntimeError: It trains by torch, or continues from a step without having restored anything.
        """
        for optimizer in list(self._training.at_work):
            if not optimizer.state and all(each.grad is None for each in owned(optimizer)):
                continue
            self._tell(
                "nothing",
                f"this script trains a model (it steps {type(optimizer).__name__}) and saves nothing of it, so nothing "
                f"could be resumed: add trial.track(model=model, opt=opt) before the loop that reports",
                is_error=not self.tracks,
            )
        if self.tracks:
            return
        if step > 0 and self._reports == 1:
            raise RuntimeError(
                f"this launch continues at step {step}, but the script restores nothing, so it begins with an "
                f"untrained model that would be ranked as one of step {step}: {_SAVE}"
            )
        empty = f"nothing of this script is saved, so its checkpoints are empty and hold no model: {_SAVE}"
        self._tell("nothing", empty)

    def _check_steps(self) -> None:
        """Find a scheduler that is stepped with its optimizer: a launch on more atoms has fewer steps in an epoch."""
        training = self._training
        if training.keeps_global_batch:
            return
        for name, value in training.schedulers.items():
            if isinstance(value, Schedule) and not value.is_by_epoch:
                continue  # it counts the steps of one atom
            steps = value.last_epoch - training.positions[name]
            if steps < 2 or 2 * steps < training.taken[id(bare_optimizer(value.optimizer))]:
                continue
            call, kind = f"trial.schedule({name})", type(getattr(value, "scheduler", value))
            if isinstance(value, Schedule):  # of trial.prepare, which knows no loader of the script
                call = f"trial.schedule({name}, steps_per_epoch=trial.steps_per_epoch(loader))"
            self._tell(
                "schedule",
                f"trial.track({name}=...): this {kind.__name__} is stepped {steps} times between two reports, "
                f"once for each step of the optimizer, of which an epoch has fewer on more atoms: its rates would be "
                f"wrong after a resize. Write {name} = {call} before trial.track; for a loop of "
                f"iterations write `batch: global` in the recipe, or one size, `sizes: [1]`",
                is_error=training.written_by not in (None, self._group.world_size),
            )

    def _check_lost(self) -> None:
        """Find what trains and no checkpoint holds.

        A tracked object of the script's own may hold anything, so nothing is certain then, nor told; so may
        ``trial.state``, if it is all that is tracked and has more than numbers and texts.
        """
        training = self._training
        tracked = list(training.tracked.values())
        values = [value for value in tracked if not isinstance(value, dict)]
        kept = [each for value in tracked if isinstance(value, dict) for each in value.values()]
        is_plain = all(isinstance(each, int | float | str | None) for each in kept)
        if not tracked or not (values or is_plain) or not all(map(_is_known, values)):
            return
        held = {id(value) for value in values}
        known = [each for each in values if not hasattr(each, "param_groups")]
        known += [each.scheduler for each in training.schedules]
        moved_by = {id(bare_optimizer(getattr(each, "optimizer", None))) for each in known}
        parameters = {id(each) for value in values for each in parameters_of(value)}
        for optimizer in list(training.at_work):
            name = type(optimizer).__name__
            moved = [id(each) in parameters for each in owned(optimizer)]
            if id(optimizer) not in held:
                about = "optimizer"
                lost = f"this script steps an optimizer ({name}) that trial.track does not have"
                is_certain = any(moved) and any(optimizer.state.values())
            elif not all(moved):
                about = "parameters"
                lost = f"the tracked optimizer ({name}) moves parameters of a model that trial.track does not have"
                is_certain = not kept
            elif id(optimizer) not in moved_by and "initial_lr" in optimizer.param_groups[0]:
                about, is_certain = "scheduler", False
                lost = "a scheduler has set the learning rates, and trial.track does not have it"
            else:
                continue
            self._tell(
                about,
                f"{lost}: it would begin afresh at every launch, while the rest continues. Track all that training "
                f"changes: trial.track(model=model, opt=opt, sched=sched), by one name each",
                is_error=is_certain and training.written_by is not None,
            )


def _is_known(value: Any) -> bool:
    """Tell whether the state of a tracked object is torch's own: a model, an optimizer, a scheduler, a scaler."""
    import torch

    if isinstance(value, torch.nn.Module):
        return type(value).get_extra_state is torch.nn.Module.get_extra_state
    kinds = (torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler, torch.amp.GradScaler)
    return isinstance(value, (*kinds, Schedule))
