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

import math
import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_pt_utils import LengthGroupedSampler
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from gpusched.worker.start import Owner

CHECKPOINT = "trainer"


class Search(Owner, TrainerCallback):
    """The callback that makes a ``Trainer`` a trial: give it ``arguments(...)``, and ``checkpoint`` to ``train``."""

    def __init__(self) -> None:
        super().__init__()
        self._options: TrainingArguments | None = None
        #: The script has asked for the checkpoint to continue from.
        self._is_asked = False
        #: Steps of the optimizer at which this launch began, and at which it has ended; None before training.
        self._began_at: int | None = None
        #: Step of the newest evaluation that was reported, and of one since then that was not.
        self._reported_at = self._unreported_at = -1

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
        options.per_device_train_batch_size = trial.local_batch(options.per_device_train_batch_size)
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
        by_steps = args.eval_strategy == IntervalStrategy.STEPS  # and at the last one
        evaluations = math.ceil(state.max_steps / state.eval_steps) if by_steps else 0
        self.trial.plan(length := evaluations or state.num_train_epochs)
        if length == 1:
            self.trial.remark(
                "the search hears of a trial once, when it is trained to its end, and can stop none before: write "
                'eval_strategy="steps", and eval_steps=0.1, say, for ten reports'
            )

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any
    ) -> None:
        """Have samples that are grouped by length come in one order of seed and epoch, on any number of ranks."""
        batches = getattr(more["train_dataloader"], "batch_sampler", None)
        sampler = getattr(getattr(batches, "batch_sampler", batches), "sampler", None)
        if isinstance(sampler, LengthGroupedSampler):
            sampler.batch_size = args.train_batch_size * args.gradient_accumulation_steps
            sampler.batch_size *= self.trial.world_size
            sampler.generator = torch.Generator().manual_seed(args.seed + int(state.epoch or 0))

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, Any],
        **_: Any,
    ) -> None:
        """Report an evaluation, under its names and without the prefix ``eval_`` (``eval_loss`` and ``loss``).

        An evaluation before or after ``train``, or by ``eval_on_start``, is of no new step. Of several data sets that
        with the recipe's metric is reported. Only numbers are reported.
        """
        if self._began_at is None:
            self.trial.remark(
                "trainer.evaluate() before trainer.train(): on several ranks transformers then trains each rank apart, "
                "as it leaves out DistributedDataParallel: write eval_on_start=True, or evaluate after training"
            )
        step = state.global_step
        if self._began_at is None or step <= self._began_at or step == self._reported_at:
            return
        told = {key.removeprefix("eval_"): each for key, each in metrics.items()} | metrics
        numbers: dict[str, Any] = {k: v for k, v in told.items() if isinstance(v, int | float)}
        # Of several data sets another has it; of one rank 0 may have computed it alone, as in run_qa.
        lacks = "eval_runtime" not in metrics and self.trial.metric not in (None, *numbers)
        if lacks and self._unreported_at in (-1, step):
            self._unreported_at = step
            return
        self.trial.report(**numbers)
        self._reported_at, self._unreported_at = step, -1
        control.should_save = self.trial.should_save()
        # What is to be saved is saved before that is looked at.
        control.should_training_stop |= self.has_to_stop()

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
        self._began_at = state.global_step
        self.end_if_leaving()
