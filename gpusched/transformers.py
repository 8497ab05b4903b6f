"""Hugging Face's ``Trainer`` as a trial: a callback reports, saves into the trial's checkpoint and ends training.

::

    search = gpusched.transformers.Search()  # near the top; search.trial.hparams
    options = TrainingArguments(..., eval_strategy="epoch")
    trainer = Trainer(model, search.arguments(options), callbacks=[search], ...)
    trainer.train(resume_from_checkpoint=search.checkpoint)

One report is one evaluation. ``per_device_train_batch_size`` is the global batch and stays so: its ranks share it, so
the number of steps, the schedule and the order of the samples depend neither on the number of ranks nor on a pause.
Each rank's loss is the mean over its tokens, and ranks count alike (``average_tokens_across_devices`` is False):
transformers multiplies losses by the number of ranks otherwise, also those of models that take no count of tokens.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from gpusched.worker.start import Owner

if TYPE_CHECKING:
    from gpusched.worker.trial import Trial

CHECKPOINT = "trainer"


class Search(Owner, TrainerCallback):
    """The callback that makes a ``Trainer`` a trial; see the top of this file.

    Args:
        trial: From ``gpusched.init()``, which is called here where the script has not.
    """

    def __init__(self, trial: Trial | None = None) -> None:
        super().__init__(trial)
        self._options: TrainingArguments | None = None
        #: The script has asked for the checkpoint to continue from.
        self._is_asked = False
        #: Steps of the optimizer at which this launch began; None while nothing is trained.
        self._began_at: int | None = None
        self._has_trained = False
        #: Step of the newest evaluation, and its numbers that are not reported yet: one data set comes after another.
        self._evaluated_at = -1
        self._unreported: dict[str, Any] = {}
        self._has_reported = False

    @property
    def checkpoint(self) -> str | None:
        """The folder to continue from, for ``Trainer.train(resume_from_checkpoint=..)``; None for a new trial."""
        self._is_asked = True
        folder = self._restored(CHECKPOINT, keeps_generators=True)
        return None if folder is None else str(folder)

    def arguments(self, options: TrainingArguments) -> TrainingArguments:
        """Fit the options to the trial: its folder, each rank's share of the batch, no saves of the trainer's own.

        Raises:
            RuntimeError: The options ask for what a trial cannot keep; the message names the argument.
            ValueError: The batch does not divide by the number of ranks.
        """
        trial = self.trial
        if options.load_best_model_at_end:
            options.load_best_model_at_end = False
            trial.remark(
                "TrainingArguments(load_best_model_at_end=True) is left out: the search keeps the best model, "
                "gpusched.load(), and what follows trainer.train() has the last one"
            )
        if options.eval_strategy == IntervalStrategy.NO:
            raise RuntimeError(
                'TrainingArguments(eval_strategy="no"): the search goes by evaluations; write eval_strategy="epoch"'
            )
        options.output_dir = str(trial.folder / "trainer")
        options.save_strategy = SaveStrategy.NO
        options.average_tokens_across_devices = options.save_only_model = False
        options.restore_callback_states_from_checkpoint = True
        batch = options.per_device_train_batch_size
        options.per_device_train_batch_size = trial.local_batch(batch)
        self._options = options
        return options

    def on_init_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Check that the trainer has the options that ``arguments`` returned.

        Raises:
            RuntimeError: It has others.
        """
        if args is not self._options:
            raise RuntimeError(
                "the Trainer would share its batches and its folder wrongly: write "
                "Trainer(model, search.arguments(TrainingArguments(...)), callbacks=[search])"
            )

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: Any,
        **_: Any,
    ) -> None:
        """Check that training continues from the trial's checkpoint.

        Raises:
            RuntimeError: ``train`` was called without it.
        """
        if not self._is_asked or (self.trial.step > 0 and state.global_step == 0):
            raise RuntimeError(
                "Trainer.train would begin anew after a pause or a resize: write "
                "trainer.train(resume_from_checkpoint=search.checkpoint)"
            )
        self._began_at = state.global_step
        self.trial.compare(model)
        by_steps = args.eval_strategy == IntervalStrategy.STEPS
        self.trial.plan(state.max_steps // state.eval_steps if by_steps else state.num_train_epochs)

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float],
        **_: Any,
    ) -> None:
        """Report an evaluation, under its names and without the prefix ``eval_`` (``eval_loss`` and ``loss``).

        An evaluation before or after ``train``, or by ``eval_on_start``, is of no new step. Of several data sets the
        report waits for the one with the recipe's metric. Only numbers are reported.
        """
        if self._began_at is None and not self._has_trained:
            self.trial.remark(
                "trainer.evaluate() before trainer.train(): on several ranks transformers then trains each rank apart, "
                "as it leaves out DistributedDataParallel: write eval_on_start=True, or evaluate after training"
            )
        if self._began_at in (None, state.global_step):
            return
        if self._evaluated_at != state.global_step:
            self._refuse_unreported()
        elif not self._unreported:
            return
        self._evaluated_at = state.global_step
        short: dict[str, Any] = {key.removeprefix("eval_"): each for key, each in metrics.items()}
        told = {**short, **metrics}.items()
        self._unreported |= {key: each for key, each in told if isinstance(each, int | float)}
        wanted = self.trial.metric
        if wanted is not None and wanted not in self._unreported:
            return
        self.trial.report(**self._unreported)
        self._unreported, self._has_reported = {}, True
        control.should_save = self.trial.should_save()
        self._is_leaving = self.trial.should_yield()
        # What is to be saved is saved before that is looked at.
        control.should_training_stop |= self._is_leaving

    def _refuse_unreported(self) -> None:
        """Report numbers that lack the metric, which raises ValueError, unless an evaluation has had it."""
        told, self._unreported = self._unreported, {}
        if told and not self._has_reported:
            self.trial.report(**told)

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Move the trainer's checkpoint into the trial's."""
        written = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        with self.trial.checkpoint_dir() as folder:  # every rank has written its files
            if self.trial.rank == 0:
                shutil.move(written, folder / CHECKPOINT)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """End the script where the trial leaves: what follows ``train`` is for training that is over."""
        self._refuse_unreported()
        self._began_at, self._has_trained = None, True
        self.end_if_leaving()
