"""The training script's view of its trial: what ``gpusched.init()`` returns.

Rules. Every rank makes the same calls; rank 0 alone speaks to the daemon and writes; what it is told, all ranks do. A
trial that is to leave does so at the end of the loop's body where it can (inside ``steps()``, at the end of an epoch),
so that what follows ``report`` there is in the checkpoint; elsewhere ``report`` saves and ends the script on all ranks
together. A trial that cannot save does not leave. Without a search behind it reports are printed, nothing is saved.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpusched.worker import rng
from gpusched.worker.context import Context, refuse_own_choice
from gpusched.worker.group import Call, Group
from gpusched.worker.hparams import STATE_NAME, PlainState
from gpusched.worker.setup import TrialSetup

_COUNTER = "a counter of the script's own begins at trial.step, not at 0"


class Trial(TrialSetup):
    """One hyperparameter configuration being trained, as one of its ranks sees it."""

    def __init__(self, context: Context, group: Group) -> None:
        super().__init__(context, group)
        self._state: PlainState | None = None
        self._diverged = False
        saver = self._backing.saver
        self._checkpoint = saver.newest() if saver is not None else None
        self._training.continue_from(self._checkpoint)
        self._step_began_s = time.monotonic()

    def take_charge(self) -> None:
        """Leave it to the script to ask ``should_yield``: from now on ``report`` always returns."""
        self._backing.in_charge = True

    def begin(self) -> None:
        """Tell the daemon that all ranks have joined."""
        if self._backing.channel is not None:
            self._backing.channel.connect()

    @property
    def step(self) -> int:
        """Steps finished so far, which is the last one reported; 0 before the first."""
        if self._state is not None and not self._diverged:  # a script may track nothing else
            self._set_generators()
        return self._training.step

    @property
    def state(self) -> PlainState:
        """A dictionary of plain values that every checkpoint holds: counters, running means. Put back when first read.

        Begin a value by ``trial.state.setdefault("best", 0.0)``: an assignment would begin anew at each launch.

        Raises:
            RuntimeError: Read for the first time after the first ``report``: what was saved is let go of then.
        """
        if self._state is None:
            if self._training.has_reported:
                raise RuntimeError(
                    "trial.state must be read before the first trial.report(...): write state = trial.state beside "
                    "trial.track(...)"
                )
            self._state = PlainState()
            self._training.track({STATE_NAME: self._state})
        return self._state

    @property
    def folder(self) -> Path:
        """A private folder of this trial for files of its own (logs, samples), the same for every launch; made here.

        What training needs to continue belongs into a checkpoint: this folder does not go back with one. In a
        plain run: the folder that ``GPUSCHED_TRIAL_DIR`` names, else the working directory.
        """
        folder = Path(os.environ.get("GPUSCHED_TRIAL_DIR") or ".").absolute()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder

    def track(self, **objects: Any) -> int:
        """Name what a checkpoint must hold, restore the objects from the checkpoint if there is one, return ``step``.

        Takes anything with ``state_dict`` and ``load_state_dict``: models (wrapped or not), optimizers, schedulers,
        scalers, objects of your own; nothing where the step is all the state there is. Call it before the loop, when
        all of them and the data are made (a random split!): random numbers go on from the checkpoint, other ones on
        each rank. A loop of your own begins at the step that is returned, the epochs that are done; one that does not
        report every epoch writes ``trial.report(step=epoch + 1, ...)``::

            for epoch in range(trial.track(model=model, opt=opt), 50):

        Raises:
            TypeError: An object has no state.
            ValueError: A name is used twice.
            RuntimeError: An object does not fit what was saved; or training has begun.
        """
        if self._training.has_reported:
            raise RuntimeError(
                "trial.report(...) comes before trial.steps(...) or trial.track(...), so it counts as a step of "
                "training: move it into the loop, or give it step=0, which is passed over. What a second loop trains "
                "is made and tracked before the first one; a loop over folds, with a model for each, reports once a "
                "fold, and keeps its scores in trial.state instead"
            )
        if self._device is None:
            refuse_own_choice()
        self._usage.tracks = True
        for loader in self._training.loaders:
            loader.is_set_up = True
        if objects:
            self._training.track(objects)
        self._set_generators()
        self._step_began_s = time.monotonic()
        return self._training.step

    # ------------------------------------------------------------------ training

    def steps(self, limit: int | None = None, **objects: Any) -> Iterator[int]:
        """Iterate from where the trial left off: 0, 1, 2, .. until the scheduler, the recipe or ``limit`` ends it.

        ``objects`` are tracked first (see ``track``): ``for epoch in trial.steps(50, model=model, opt=opt):``.

        One ``report`` an iteration makes the two count alike. A trial that is to leave does so at the end of the loop's
        body; ``break`` leaves without saving.
        """
        if objects:
            self.track(**objects)
        if limit is not None:
            first = self._training.length
            self.plan(limit)
            if self._training.has_reported and first is not None and first < limit:
                self.remark(
                    f"a loop of {first} steps is followed by one of trial.steps({limit}), which no trial comes to: "
                    f"the search takes the first for the whole. Write `policy: {{R: {limit}}}` in the recipe"
                )
        self._set_generators()
        self._training.is_looping = True
        self._step_began_s = time.monotonic()
        try:
            while not self._done(limit):
                self._training.begin_round()
                yield self._training.iteration
                self._training.iteration += 1
                self._training.is_outlived |= self._training.mid_epoch
                self._training.step_before = self._training.step
                # After 1, 2, 4, .. bodies without a report: nor may another rank have made one.
                silent = self._training.iteration - 1 - self._training.reported_in
                if silent & (silent - 1) == 0 < silent and not self._backing.has_left:
                    self._group.exchange(Call.STEPS)
                ended_s = time.monotonic()
                if self._backing.at_end_of_body(is_over=self._done(limit)):
                    return
                self._step_began_s += time.monotonic() - ended_s  # a save is no training
            if self._training.has_reported:
                self._backing.save_final()
        finally:
            self._training.is_looping = False

    def plan(self, steps: int) -> None:
        """Say how many steps this trial trains for, where a trainer owns the loop; ``steps(limit)`` says so by itself.

        That is R, the length of the search's trials, unless the recipe gives one. ``sys.maxsize``, the epochs of
        transformers where ``max_steps`` ends a stream, says nothing.
        """
        if self._context.settings.max_steps is None and 0 < steps < 1 << 32:
            self._training.length = int(steps)

    @property
    def is_cut(self) -> bool:
        """Whether all steps are reported that the recipe's R allows."""
        most = self._context.settings.max_steps
        return most is not None and self.step >= most

    @property
    def is_over(self) -> bool:
        """Whether all steps are reported that the recipe's R allows, or that a trainer has planned."""
        length = self._training.length
        return self.is_cut or (length is not None and self.step >= length)

    def compare(self, model: Any) -> None:
        """Have a trainer's own model compared between the ranks at reports, and their samples at the first."""
        self._usage.together.models.append(model)
        if self.world_size > 1:
            self._training.weight.weigh(model.parameters())

    def remark(self, text: str) -> None:
        """Tell whoever looks at the trial's log, and whoever looks at the search."""
        self._backing.remark(text)

    def report(self, *unnamed: Any, step: int | None = None, **metrics: Any) -> None:
        """Tell how the trial does after one more step, and do what the scheduler says. Every rank calls it.

        Args:
            unnamed: Nothing: metrics have names, ``report(loss=0.3)`` or ``report(**metrics)``.
            step: Steps finished, in the unit of the recipe's ``r`` and ``R`` (epochs, iterations); by default one more
                than the last. A loop that evaluates before it trains passes its iteration: a step that is reported
                already, and step 0, are passed over at the beginning of a launch. So is, in a launch that continues, a
                report without ``step`` before training.
            metrics: Numbers of rank 0, which count: floats, ints, tensors or numpy scalars of one element.

        Raises:
            TypeError: A metric is not a number or has no name.
            ValueError: The recipe's metric is missing, the report is too large, or ``step`` does not go up.
            RuntimeError: The script would train a wrong model (``usage.py``); the message has the line to change.
            SystemExit: The scheduler has this trial leave here (never with ``in_charge``).
        """
        if unnamed or os.getpid() != self._pid:
            self._refuse_misplaced(unnamed)
        training = self._training
        if self._backing.has_left:
            if not self._backing.in_charge:
                raise SystemExit(0)
            return
        is_counted = step is None and not training.is_looping
        is_first = is_counted and training.step > 0 and not training.has_passed_over
        is_untrained = step == 0 or (is_first and bool(training.optimizers))
        is_again = step == training.step > 0 or (is_untrained and not training.has_stepped)
        if is_again and not training.has_reported:
            if training.has_stepped:
                self.remark(f"this launch trained, and reports the last step again: {_COUNTER}")
            training.has_passed_over = True
            return  # a loop that evaluates before it trains begins with the last step of the launch before
        step = self._next_step(step)
        self._usage.at_report(metrics, is_counted=is_counted)
        if self._onlooker is not None:
            self._onlooker.reported(step, metrics)
        self._backing.report(step, self._step_began_s, metrics)
        self._step_began_s = time.monotonic()

    def mean(self, correct: Any, total: Any) -> float:
        """Return ``correct / total`` over all ranks, each of which gives what it has seen; NaN for a total of 0."""
        self._usage.has_mean = True
        rows = self._group.exchange(Call.MEAN, float(correct), float(total))
        totals = [row[1] for row in rows]
        loaders = [each.length for each in self._training.loaders if not each.reads_given]
        if self.world_size > 1 and {*self._training.shared_lengths, *loaders}.issuperset(totals):
            self.remark(
                f"trial.mean(.., {total}) on each rank: if that is all the data, of which a loader gives each its "
                f"share, the mean is too small by the number of ranks: give it what a rank has seen, total += len(y)"
            )
        return sum(row[0] for row in rows) / sum(totals) if any(totals) else float("nan")

    def should_yield(self) -> bool:
        """Ask, after each ``report``, whether to leave now; a script that hears True must end. Every rank calls it.

        For scripts that must tidy up: begin with ``gpusched.init(in_charge=True)``, and ``report`` never raises
        ``SystemExit``. What ``track`` was given is saved before the answer is True; a script that saves files of its
        own (``checkpoint_dir``) saves them before it asks, or, after True, before it ends. False too where the disk
        refused the checkpoint: the trial trains on then.
        """
        return self._backing.when_asked()

    def should_save(self) -> bool:
        """Ask, after each ``report``, whether a checkpoint of this step is wanted. Every rank calls it.

        For scripts that save files of their own: a step that is the best so far, one after which the trial must leave,
        or one that ends a long stretch without a checkpoint; outside a search none. What ``track`` was given is saved
        without a question.
        """
        return self._backing.should_save()

    @contextmanager
    def checkpoint_dir(self) -> Iterator[Path]:
        """Save a checkpoint of the last reported step that holds files of the script's own. Every rank enters it.

        The folder is empty, the same one on every rank, and any rank may write into it. When all ranks have left the
        block, it is committed together with what ``track`` was given, whole or not at all, while training continues.
        After the next launch ``restored_dir`` is the same folder::

            trial.report(loss=loss)
            if trial.should_save():
                with trial.checkpoint_dir() as folder: accelerator.save_state(folder)
            if trial.should_yield(): return

        A script that has called this, ``should_save`` or ``restored_dir`` is saved by this alone: a trial that is to
        leave trains on until its script has saved a step this way, and leaves there. Outside a search nothing is kept.

        Raises:
            RuntimeError: Nothing has been reported yet, as a checkpoint is of a reported step; or nothing was written.
            OSError: The disk refuses, and the script has been told to leave already.
        """
        if self._training.step == (self._training.step_before if self._training.is_looping else 0):
            raise RuntimeError(
                "trial.checkpoint_dir() before trial.report(...): a checkpoint is of a reported step, so report "
                "first, then save"
            )
        with self._backing.files() as folder:
            yield folder

    @property
    def restored_dir(self) -> Path | None:
        """The folder of files that ``checkpoint_dir`` saved at the step this launch continues from, verified; or None.

        Read it before the first ``report``, when the model and the data are made; it must not be written to.
        """
        self._set_generators()
        return self.restored_files()

    def restored_files(self) -> Path | None:
        """Return ``restored_dir`` and leave the generators alike: a trainer makes its samplers after this."""
        self._backing.writes_files = True
        return self._checkpoint.script_folder if self._checkpoint is not None else None

    # ------------------------------------------------------------------ inside

    def _refuse_misplaced(self, unnamed: tuple[Any, ...]) -> None:
        """Raise for a ``report`` with metrics without names, or else in another process."""
        if unnamed:
            raise TypeError(
                f"trial.report(...) takes metrics by name: write "
                f"trial.report({self._context.settings.metric or 'accuracy'}=...), and trial.report(**metrics) for a "
                f"dictionary; steps are counted by themselves, or named too: step=..."
            )
        raise RuntimeError(
            "trial.report(...) in a process that a rank has started (a DataLoader worker, a helper): report in the "
            "process that called gpusched.init() first"
        )

    def _next_step(self, step: int | None) -> int:
        training = self._training
        if step is None:
            return training.step + 1
        if int(step) <= training.step:
            is_first = training.step and not training.has_reported
            hint = _COUNTER if is_first else "it counts finished steps: epoch + 1, or leave it out"
            raise ValueError(f"trial.report(step={step}) after step {training.step}: {hint}")
        return int(step)

    def _done(self, limit: int | None) -> bool:
        return (limit is not None and self._training.iteration >= limit) or self.is_cut

    def _set_generators(self) -> None:
        """End the set-up: every rank's random numbers go their own way, or on from where they were."""
        if self._training.has_reported or (self._diverged and self._checkpoint is None):
            return
        self._diverged = True
        saver = self._backing.saver
        if self._checkpoint is not None and saver is not None:
            saver.restore_rng(self._checkpoint)
        else:
            rng.diverge(self.seed, self.rank, 0)
