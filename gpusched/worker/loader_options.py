"""Objects of a script for one rank: fitted to any number of ranks (``trial.prepare``), or refused.

Options of its loaders are taken over, and indices of its samplers drawn alike on every rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler

from gpusched.worker.data import derive_seed
from gpusched.worker.group import script_line
from gpusched.worker.rng import OwnGenerators

if TYPE_CHECKING:
    from gpusched.worker.setup import TrialSetup
    from gpusched.worker.training import Training

_OURS = {
    "batch_sampler": "gpusched shards and shuffles by itself",
    "generator": "the order comes from the trial's seed",
}
_KEPT = (
    *("batch_size", "drop_last", "num_workers", "collate_fn", "timeout", "worker_init_fn"),
    *("multiprocessing_context", "prefetch_factor", "persistent_workers", "in_order"),
)


def prepare(trial: TrialSetup, training: Training, objects: Sequence[Any], weight: Any) -> Any:
    """Return what takes the place of these objects, or of the only one; see ``trial.prepare``."""
    prepared: list[Any] = []
    for each in objects:
        if isinstance(each, DataLoader):
            prepared.append(_prepared_loader(trial, training, each, weight))
        elif isinstance(each, torch.nn.Module):
            prepared.append(trial.wrap(each))
        elif isinstance(each, torch.optim.Optimizer):
            trial.scale_lr(each)
            prepared.append(each)
        elif hasattr(each, "cooldown_counter"):  # ReduceLROnPlateau goes by a metric
            prepared.append(each)
        elif all(hasattr(each, name) for name in ("step", "optimizer", "load_state_dict")):
            prepared.append(trial.schedule(each, may_be_by_epoch=True))
        else:
            raise TypeError(
                f"trial.prepare takes models, optimizers, DataLoaders and schedulers, not a {type(each).__name__}"
            )
    return tuple(prepared) if len(prepared) != 1 else prepared[0]


def _prepared_loader(
    trial: TrialSetup, training: Training, given: DataLoader[Any], weight: Any
) -> Any:
    from gpusched.worker.loader import WholeLoader

    if is_in_order(given):
        return WholeLoader(given, weight, trial.device)
    made = trial.loader(given.dataset, **arguments_of(given))
    made.given = given
    training.prepared.append((made, ":".join(map(str, script_line()))))
    return made


def is_in_order(loader: DataLoader[Any]) -> bool:
    """Tell whether a loader goes through its data set in order: it is one for evaluation."""
    if isinstance(loader.dataset, IterableDataset):
        return False
    sampler: Any = loader.sampler
    if loader.batch_size is None:  # a batch sampler, perhaps around another sampler
        sampler = getattr(loader.batch_sampler, "sampler", None)
    return type(sampler) is SequentialSampler


def arguments_of(loader: DataLoader[Any]) -> dict[str, Any]:
    """Return the arguments with which ``trial.loader`` gives one rank the batches of this loader.

    Raises:
        TypeError: Its batches are a batch sampler's.
    """
    if loader.batch_size is None:
        raise TypeError(
            "trial.prepare: this DataLoader has a batch_sampler (or no batches), which cannot be shared by ranks: make "
            "it with batch_size, or keep it and give each rank its share (trial.rank, trial.world_size)"
        )
    arguments: dict[str, Any] = {name: getattr(loader, name) for name in _KEPT}
    if loader.pin_memory:
        arguments["pin_memory"] = True
    sampler: Any = loader.sampler
    if isinstance(loader.dataset, IterableDataset):
        return {**arguments, "shuffle": False}
    kind, dataset = type(sampler), cast(Any, loader.dataset)
    if kind is RandomSampler and len(sampler) == len(dataset) and not sampler.replacement:
        return arguments
    return {**arguments, "sampler": sampler}


def own_sampler(options: dict[str, Any]) -> Any:
    """Take the script's sampler out of ``options``.

    Raises:
        TypeError: A sampler that yields other things than indices, or deals them to the ranks by itself.
    """
    sampler = options.pop("sampler", None)
    if sampler is not None and hasattr(sampler, "num_replicas"):
        raise TypeError(
            f"trial.loader(..., sampler={type(sampler).__name__}(...)): gpusched shards and shuffles by itself; leave "
            f"the sampler out"
        )
    if sampler is not None and not (hasattr(sampler, "__len__") and hasattr(sampler, "__iter__")):
        raise TypeError(
            f"trial.loader(..., sampler={type(sampler).__name__}(...)): a sampler must have a length and yield indices"
        )
    return sampler


def draw(sampler: Any, seed: int, epoch: int) -> list[int]:
    """Ask a sampler for the indices of an epoch: the same on every rank and in every launch.

    Python's, numpy's and torch's global generators are seeded for the drawing and put back.
    """
    with OwnGenerators(derive_seed(seed, epoch)):
        generator = getattr(sampler, "generator", None)
        if isinstance(generator, torch.Generator):
            generator.manual_seed(derive_seed(seed, epoch))
        if callable(set_epoch := getattr(sampler, "set_epoch", None)):
            set_epoch(epoch)
        return [int(index) for index in sampler]


def refuse_foreign_options(dataset: Any, options: dict[str, Any]) -> None:
    """Raise TypeError for a ready-made loader or a sampler of the script's own."""
    if isinstance(dataset, DataLoader):
        raise TypeError(
            "trial.loader takes a data set, not a DataLoader: write trial.loader(the_data_set, batch_size=...), or "
            "loader = trial.prepare(loader)"
        )
    if options.get("in_order") is False:
        raise TypeError(
            "trial.loader(..., in_order=False): a batch counts as consumed in the order of the epoch, and one that "
            "comes late would be lost at a resize; leave in_order out"
        )
    for name, why in _OURS.items():
        if options.pop(name, None) is not None:
            raise TypeError(f"trial.loader(..., {name}=...): {why}; leave {name} out")
