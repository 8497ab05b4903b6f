"""Lightning's ``Trainer`` as a trial: a callback reports, saves into the trial's checkpoint and ends the fit in time.

::

    search = gpusched.lightning.Search()  # near the top; search.trial.hparams
    trainer = search.trainer(max_epochs=30, callbacks=[EarlyStopping("val_loss")])
    trainer.fit(model, train_loader, val_loader)

One report is one epoch, after its validation. The strategy is DDP on one rank too: Lightning then shuffles by seed and
epoch, so that the order of the samples depends neither on the number of ranks nor on a pause. Schedules by step are
counted in steps of one atom, which ``trainer.estimated_stepping_batches`` tells; each step is one where ``max_steps``
alone, or an integer ``limit_train_batches``, says how many there are.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable
from functools import wraps
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

from gpusched.worker.start import Owner

CHECKPOINT = "lightning.ckpt"
#: For what the trial has written (Lightning 2.6): hyperparameters of a module may be of any type.
_TAKEN = inspect.signature(Trainer.fit).parameters
_TRUSTED = {"weights_only": False} if "weights_only" in _TAKEN else {}


class SearchTrainer(Trainer):
    """Lightning's trainer, made by ``Search.trainer``."""

    search: Search

    @wraps(Trainer.__init__)  # type: ignore[misc]  # LightningCLI reads what it takes
    def __init__(
        self, *, callbacks: Callback | Iterable[Callback] | None = None, **options: Any
    ) -> None:
        super().__init__(**self.search.fitted(callbacks, options))

    @property
    def estimated_stepping_batches(self) -> int | float:
        """Steps of the whole training on one atom: the length of a schedule, the same in every launch."""
        here: int | float = super().estimated_stepping_batches
        atoms = self.search.trial.base_batches
        if atoms == 1 or self.search.counts_batches(self):
            return here
        per_epoch = self.search.steps_of_an_epoch(self)
        if math.isinf(here) or per_epoch is None or not self.max_epochs:
            return here * atoms
        whole: int = per_epoch * self.max_epochs
        return whole if self.max_steps == -1 else min(whole, self.max_steps)

    @wraps(Trainer.fit)
    def fit(self, *arguments: Any, **options: Any) -> None:
        """Fit as Lightning does, from the trial's checkpoint if it has one; a trial that leaves ends the script."""
        if (checkpoint := self.search.ckpt_path) is not None:
            options |= {"ckpt_path": checkpoint, **_TRUSTED}
        super().fit(*arguments, **options)
        self.search.end_if_leaving()

    def validate(self, *arguments: Any, **options: Any) -> Any:
        """Validate as Lightning does; without ``ckpt_path``, or with "best" or "last", the model as trained last."""
        return self._after(super().validate, arguments, options)

    def test(self, *arguments: Any, **options: Any) -> Any:
        """Test as Lightning does; see ``validate``."""
        return self._after(super().test, arguments, options)

    def predict(self, *arguments: Any, **options: Any) -> Any:
        """Predict as Lightning does; see ``validate``."""
        return self._after(super().predict, arguments, options)

    def _after(self, call: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        is_own = options.get("ckpt_path") in (None, "best", "last")
        if is_own and self.checkpoint_callback is None:
            # What Lightning's own checkpoint, which is off here, would hold: the model as training has left it.
            options.pop("ckpt_path", None)
            if not (arguments or options.get("model")):
                options["model"] = self.lightning_module
        return call(*arguments, **{**(_TRUSTED if is_own else {}), **options})


class Search(Owner, Callback):
    """The callback that makes a ``Trainer`` a trial: ``trainer`` takes the place of Lightning's."""

    def __init__(self) -> None:
        super().__init__()
        self._is_wanted = self._has_validated = False

    def steps_of_an_epoch(self, trainer: Trainer) -> int | None:
        """Return the steps of an epoch on one atom; None where the training loader does not tell."""
        try:
            batches = self.trial.steps_per_epoch(trainer.train_dataloader)
        except TypeError:
            return None
        if isinstance(limit := trainer.limit_train_batches, float):  # a part of the data
            batches = int(batches * limit)
        steps: int = math.ceil(batches / trainer.accumulate_grad_batches)
        return steps

    def counts_batches(self, trainer: Trainer) -> bool:
        """Tell whether a number of batches, not the data, ends an epoch on one atom, or the training.

        There are as many steps on more atoms then, and each is a step of a schedule.
        """
        limit = trainer.limit_train_batches
        on_one_atom = trainer.num_training_batches * self.trial.base_batches
        is_limited = isinstance(limit, int) and limit <= on_one_atom
        return bool(is_limited or (trainer.max_epochs == -1 and trainer.max_steps != -1))

    @property
    def trainer(self) -> type[SearchTrainer]:
        """Lightning's ``Trainer`` with this callback, on the trial's ranks and in its folder, by DDP.

        It takes the options of ``Trainer``. ``accelerator``, ``devices``, ``num_nodes`` and ``default_root_dir`` are
        the trial's, whatever a script gives; a ``ModelCheckpoint`` writes into the trial's folder.
        """
        return type("SearchTrainer", (SearchTrainer,), {"search": self})

    def fitted(self, callbacks: Any, options: dict[str, Any]) -> dict[str, Any]:
        """Return the options of a ``Trainer`` as the trial needs them."""
        more = [callbacks] if isinstance(callbacks, Callback) else list(callbacks or ())
        for each in more:  # a logger's folder, Lightning's own choice, is new with each launch
            if getattr(each, "dirpath", "") is None:
                each.dirpath = str(self.trial.folder / "checkpoints")
        ours = {
            "callbacks": [self, *more],
            "accelerator": "gpu" if self.trial.device.type == "cuda" else "cpu",
            "devices": self.trial.world_size,
            "num_nodes": 1,
            "num_sanity_val_steps": 0,
            "enable_checkpointing": any(isinstance(each, Checkpoint) for each in more),
            "default_root_dir": self.trial.folder,
        }
        if options.get("strategy", "auto") == "auto":
            options["strategy"] = "ddp"
        return {**options, **ours}

    @property
    def ckpt_path(self) -> Path | None:
        """The checkpoint that ``fit`` continues from; None for a new trial."""
        return self._restored(CHECKPOINT)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check that the trainer is one of ``Search.trainer``; scale rates and schedules.

        Raises:
            RuntimeError: The script made the trainer.
        """
        trial = self.trial
        if not isinstance(trainer, SearchTrainer):
            raise RuntimeError(
                "a Trainer of the script's own has neither the trial's ranks nor its checkpoint: write "
                "search.trainer(...) in the place of Trainer(...)"
            )
        if trial.step > 0 and (trial.is_over or self.ckpt_path is None):
            trial.remark(
                "trainer.fit is called again, and a trial is one fit, with which each launch begins: give all epochs "
                "to one (the callback BaseFinetuning unfreezes layers on the way)"
            )
        if trainer.max_epochs == 1 or trainer.val_check_interval not in (None, 1.0):
            trial.remark(
                "the search hears of an epoch once, at its end, not of validations within it. For more reports make "
                "epochs shorter: limit_train_batches=0.25, say, and max_epochs larger by as much"
            )
        trial.compare(pl_module)
        trial.plan(trainer.max_epochs or 0)
        for optimizer in trainer.optimizers:
            trial.scale_lr(optimizer)
        configs = () if self.counts_batches(trainer) else trainer.lr_scheduler_configs
        for config in configs:
            if config.interval == "step" and not config.reduce_on_plateau:
                steps = self.steps_of_an_epoch(trainer)
                config.scheduler = trial.schedule(config.scheduler, steps_per_epoch=steps)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note that an epoch has metrics: there may be several epochs to a validation."""
        self._has_validated = True

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Report the epoch that has ended, with every metric that was logged; not one that was not validated."""
        if trainer.enable_validation and not self._has_validated:
            return
        self._has_validated = False
        metrics = {name: value.item() for name, value in trainer.callback_metrics.items()}
        # "step" may be logged too, as an axis for plots.
        metrics["step"] = trainer.current_epoch + 1
        self.trial.report(**metrics)
        self._is_wanted = self.trial.should_save()
        if self.has_to_stop():
            trainer.fit_loop.min_epochs = 0
            trainer.fit_loop.epoch_loop.min_steps = None
            trainer.should_stop = True

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save the last epoch where that is wanted."""
        self.on_train_epoch_start(trainer, pl_module)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save the epoch before where that is wanted: only now have its schedulers been stepped."""
        if self._is_wanted:
            with self.trial.checkpoint_dir() as folder:
                trainer.save_checkpoint(folder / CHECKPOINT)
        self._is_wanted = False
