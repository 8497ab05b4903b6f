"""Set-up of a script: what it makes with ``trial`` before it trains, once. Torch is imported where a call needs it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from gpusched.worker import rng
from gpusched.worker.backing import Backing
from gpusched.worker.context import Context, take_gpu
from gpusched.worker.group import Group
from gpusched.worker.hparams import HParams
from gpusched.worker.learning_rate import (
    Schedule,
    bare_optimizer,
    counts_atoms,
    power_for,
    steps_per_epoch,
)
from gpusched.worker.training import Training
from gpusched.worker.usage import Usage

if TYPE_CHECKING:
    import torch

    from gpusched.worker.loader import TrainingLoader
    from gpusched.worker.onlooker import Onlooker
    from gpusched.worker.prepare import PlacedLoader
    from gpusched.worker.stream import StreamLoader


class TrialSetup:
    """One rank of a trial as its script sets it up."""

    def __init__(self, context: Context, group: Group) -> None:
        self._context = context
        self._pid = -1 if context.is_helper else os.getpid()
        self._group = group
        self._training = Training(context)
        self._backing = Backing(context, group, self._training)
        self._usage = Usage(context, group, self._training, self._backing)
        self._device: torch.device | None = None
        self._onlooker: Onlooker | None = None
        if context.still_from and context.paths is not None:
            from gpusched.worker.onlooker import Onlooker

            seen = context.paths.seen(context.incarnation, context.rank)
            self._onlooker = Onlooker(seen, self._training, context)

    @property
    def hparams(self) -> HParams:
        """The configuration: ``hp.lr``, ``hp["lr"]``, nested ``hp.opt.momentum``; read-only."""
        rng.seed_newcomers(self._context.seed)
        return self._context.hparams

    @property
    def id(self) -> int:
        """Number of the trial in its search."""
        return self._context.trial

    @property
    def metric(self) -> str | None:
        """Name of the recipe's metric; None without a recipe."""
        return self._context.settings.metric

    @property
    def rank(self) -> int:
        """Number of this process among the trial's, from 0."""
        return self._context.rank

    @property
    def world_size(self) -> int:
        """Number of the trial's processes, one for each device."""
        return self._context.world_size

    @property
    def seed(self) -> int:
        """The seed of this trial; Python's, numpy's and torch's generators have been seeded with it."""
        return self._context.seed

    @property
    def device(self) -> torch.device:
        """Device on which this rank computes. A CUDA device is made the current one at the first call."""
        if self._device is None:
            import torch

            rng.seed_newcomers(self._context.seed)

            kind = self._context.device_kind
            if kind is None:
                kind = "cuda" if torch.cuda.is_available() else "cpu"
            on_gpu = kind == "cuda"
            self._device = take_gpu(self._context.local_rank) if on_gpu else torch.device(kind)
        return self._device

    # ------------------------------------------------------------------ setting up

    def prepare(self, *objects: Any) -> Any:
        """Fit what a script for one rank has made to any number of ranks, in one line before the loop.

        Returns what takes the place of each::

            model, opt, train, val, sched = trial.prepare(model, opt, train, val, sched)

        * A model: as ``wrap`` does. An optimizer: as it is, with its rates scaled (``scale_lr``).
        * A ``DataLoader`` that shuffles or samples, or of a stream: this rank's share of training data (``loader``),
          whole batches of a ``batch_sampler`` (fewer than one for each rank are left at the end of an epoch).
        * A ``DataLoader`` in order, or read under ``torch.no_grad()``: for evaluation, the whole of it on every rank. A
          script that wants shares writes ``trial.eval_loader`` and ``trial.mean``.
        * A scheduler of learning rates: counted as ``schedule`` does where the script steps it inside its loop over the
          batches; as it is where it is stepped once an epoch, or by a metric.

        Raises:
            TypeError: Something else, or a ``DataLoader`` whose batches gpusched cannot share.
        """
        from gpusched.worker.prepare import prepare

        return prepare(self, self._training, objects)

    def wrap(self, model: Any, *, shard: bool = False, **ddp_options: Any) -> Any:
        """Return ``model`` on this rank's device, in ``DistributedDataParallel`` where there are several ranks.

        The model's own attributes and methods are reachable through it: ``model.decode(x)``. One in DDP stays as it is.

        With ``shard`` its parameters are split over the ranks instead (``fully_shard``, FSDP2), child module by child
        module. Gradients are weighted where ``trial.loader`` gives ranks different numbers of samples. Make optimizers
        after this. ``ddp_options`` go to DDP, which looks for unused parameters where an earlier launch has had some.
        """
        from gpusched.worker.prepare import OpenDDP
        from gpusched.worker.state import shard as shard_model

        if self.world_size > 1 and type(model).__name__ == "DataParallel":
            model = model.module  # threads over all GPUs of the trial, which are its ranks'
        model = model.to(self.device)
        is_wrapped = self.world_size == 1 or hasattr(model, "require_backward_grad_sync")  # by DDP
        if is_wrapped or not any(p.requires_grad for p in model.parameters()):
            return model
        if shard:
            shard_model(model, self.device, self.world_size)
            self._training.weight.weigh_sharded(model)
            return model
        if self.device.type == "cuda":
            ddp_options.setdefault("device_ids", [self.device.index])
        if "static_graph" not in ddp_options:
            ddp_options.setdefault("find_unused_parameters", self._training.has_unused)
        return OpenDDP(model, self._training.weight, **ddp_options)

    def scale_lr(self, optimizer: Any) -> None:
        """Scale this optimizer's rates with the global batch, reached gradually after a resize.

        Effective rate = base rate x (atoms)^p while ``optimizer.step()`` runs, with p from the recipe's
        ``lr_scaling``; schedulers and checkpoints see the base rate. Nothing is scaled with ``batch: global``, after
        ``local_batch``, and where ``lr`` is None (Adafactor). Takes optimizers with torch's hooks, also inside another.
        """
        power = power_for(optimizer, self._context.settings.lr_power)
        self._training.add_scaler(bare_optimizer(optimizer), power)

    def loader(
        self,
        dataset: Any,
        batch_size: int,
        *,
        shuffle: bool = True,
        drop_last: bool = False,
        **options: Any,
    ) -> TrainingLoader | StreamLoader:
        """Return a loader of this rank's share of ``dataset``, on its device; a loop over it is (the rest of) an epoch.

        Each epoch visits every sample once, in an order fixed by seed and epoch, whatever the number of ranks and
        however often the trial is resized.

        Args:
            dataset: Map-style, or an ``IterableDataset`` that yields the same stream on every rank: gpusched deals the
                samples to the ranks. After a resize in mid-epoch it is read again up to where it was.
            batch_size: Samples per atom, or of the global batch where the recipe says ``batch: global``.
            shuffle: Visit the samples in a random order.
            drop_last: Leave the samples out that do not fill a global batch.
            options: Go to ``torch.utils.data.DataLoader``. A ``sampler`` of your own that yields indices (weighted, a
                subset) is asked for the list of each epoch under a seed, and the ranks share that list.

        Raises:
            TypeError: A ready-made DataLoader, a `batch_sampler`, or a sampler that shards by itself.
            ValueError: An empty data set, or a stream that differs between ranks.
        """
        from torch.utils.data import IterableDataset

        from gpusched.worker.loader import ShareTerms, TrainingLoader
        from gpusched.worker.stream import StreamLoader

        training = self._training
        terms = ShareTerms(
            training.layout, training.global_batches, self.seed, training.weight, self.device
        )
        options["drop_last"] = drop_last
        made: TrainingLoader | StreamLoader
        if isinstance(dataset, IterableDataset):
            made = StreamLoader(terms, dataset, batch_size, group=self._group, **options)
        else:
            made = TrainingLoader(terms, dataset, batch_size, shuffle=shuffle, **options)
        self._training.add_loader(made)
        return made

    def eval_loader(self, dataset: Any, batch_size: int = 256, **options: Any) -> PlacedLoader:
        """Return a loader for evaluation: every sample on exactly one rank, in order, nothing padded. See ``mean``.

        ``batch_size``: samples a rank; ``options`` (``sampler`` too) go to ``DataLoader``. A stream raises TypeError.
        """
        from gpusched.worker.stream import evaluation_loader

        made = evaluation_loader(dataset, batch_size, self._training.layout, self.device, **options)
        self._training.shared_lengths.add(len(dataset))
        return made

    @property
    def base_batches(self) -> int:
        """Batches of one atom in a global batch: the number of atoms, and 1 where the global batch is fixed."""
        return self._training.global_batches

    def steps_per_epoch(self, loader: Any) -> int:
        """Count the optimizer steps of one epoch on one atom: the length to give to a scheduler by step.

        Takes what ``trial.loader`` returned, or a ``DataLoader`` of your own. ``len(loader)`` is the same before
        ``trial.track``, and later the number on the atoms that the trial has.

        Raises:
            TypeError: The loader has no length.
        """
        return steps_per_epoch(loader, has_shares=self._training.keeps_global_batch)

    def schedule(self, scheduler: Any, *, steps_per_epoch: int | None = None) -> Any:
        """Count a scheduler by step in the steps of one atom, so that a resize leaves its course as it is.

        With ``batch: per_atom`` n atoms take one step where one atom takes n. Use what this returns in the place of the
        scheduler: call ``step()`` after each ``optimizer.step()``, and track it. With ``batch: global`` (or
        ``trial.local_batch``) every step is one step. Schedulers that are stepped once an epoch need none of this::

            steps = 30 * trial.steps_per_epoch(loader)
            schedule = trial.schedule(OneCycleLR(opt, max_lr=0.1, total_steps=steps))
            trial.track(model=model, opt=opt, schedule=schedule)

        Args:
            scheduler: Of ``torch.optim.lr_scheduler``, or alike (``step``, ``state_dict``, ``load_state_dict``).
            steps_per_epoch: For a loader of your own: ``trial.steps_per_epoch(loader)``. A ``trial.loader`` made before
                is known.
        """
        if counts_atoms(scheduler):
            return scheduler  # from accelerator.prepare
        training = self._training
        made = Schedule(scheduler, training.global_batches, steps_per_epoch, training.loaders)
        training.add_schedule(made)
        return made

    def local_batch(self, global_batch: int) -> int:
        """Return this rank's share of a fixed global batch, for a loader of the script's own.

        The global batch then does not grow with the atoms, so ``scale_lr`` leaves the rates as they are and
        ``schedule`` counts every step as one, as with ``batch: global``. Call it before both.

        Raises:
            ValueError: The global batch does not divide by the number of ranks.
            RuntimeError: ``scale_lr`` or ``schedule`` was called before.
        """
        share, rest = divmod(global_batch, self.world_size)
        if rest or share < 1:
            raise ValueError(
                f"trial.local_batch({global_batch}) does not divide by {self.world_size} ranks, and unequal shares "
                f"would weigh samples unequally: use a multiple of {self.world_size}, list in the recipe "
                f"the `sizes` that divide it, or use trial.loader, which weights gradients"
            )
        training = self._training
        if training.scalers or training.schedules:
            raise RuntimeError(
                "trial.local_batch(...) after trial.scale_lr(...) or trial.schedule(...): call it before them, they "
                "depend on the global batch"
            )
        training.global_batches, training.is_fixed = 1, True
        return share
