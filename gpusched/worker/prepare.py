"""Objects of a script for one rank: fitted to any number of ranks (``trial.prepare``), or refused.

Options of its loaders are taken over, and indices of its samplers drawn alike on every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from inspect import ismethod
from itertools import islice
from random import Random
from typing import Any, cast

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, get_worker_info
from torch.utils.data.sampler import BatchSampler, RandomSampler, SequentialSampler

from gpusched.worker.data import BatchWeight, derive_seed
from gpusched.worker.group import script_line
from gpusched.worker.rng import OwnGenerators

_KEPT = (
    *("batch_size", "drop_last", "num_workers", "collate_fn", "timeout", "worker_init_fn"),
    *("multiprocessing_context", "prefetch_factor", "persistent_workers", "pin_memory"),
)
_OURS = ("batch_sampler", "generator", "in_order")
_DRAWN_AT_ONCE = 1 << 16
"""Indices of a script's sampler that are drawn together: an epoch may have 1e10 of them."""


def place_batch(batch: Any, device: torch.device) -> Any:
    """Return ``batch`` with every tensor in it on ``device``, and every other object that can be moved."""

    def can_move(part: Any) -> bool:
        return callable(getattr(part, "to", None))

    def moved(part: Any) -> Any:
        if isinstance(part, torch.Tensor):
            return part.to(device, non_blocking=True)
        return part.to(device) if can_move(part) else part

    return tree_map(moved, batch, is_leaf=can_move)  # a PackedSequence knows what stays on the CPU


def batches_of(loader: DataLoader[Any]) -> Iterator[Any]:
    """Begin to read a loader where its generator is, also where ``torch.set_default_device`` says otherwise."""
    home = torch.device("cpu") if loader.generator is None else loader.generator.device
    if torch.get_default_device() == home:
        return iter(loader)
    with home:
        return iter(loader)


class OpenDDP(DistributedDataParallel):
    """``DistributedDataParallel`` through which the model's own attributes, methods and names are reachable.

    Layers may be frozen and unfrozen after it is made; their gradients are weighted by ``weight``.
    """

    def __init__(self, module: Any, weight: BatchWeight, **options: Any) -> None:
        super().__init__(module, **options)
        del self.dim  # DDP scatters nothing by it, and models call their width so
        self._ddp_weight, self._ddp_parameters = weight, list(module.parameters())
        self._ddp_trained: list[bool] = []
        self._ddp_is_called = False  # to train, by ``forward``
        self._follow()
        self._is_made = True

    def _follow(self) -> bool:
        """Tell whether training calls; begin anew, as after unpickling, where other parameters are trained by now."""
        trained = [each.requires_grad for each in self._ddp_parameters]
        if trained != self._ddp_trained and any(trained):
            if self._ddp_trained:
                self.__setstate__(self.__getstate__())
            self._ddp_trained = trained
            self._ddp_weight.weigh(self._ddp_parameters)
        return torch.is_grad_enabled() and self.require_backward_grad_sync

    def _pre_forward(self, *inputs: Any, **named: Any) -> Any:
        if not torch.compiler.is_compiling():
            self._ddp_is_called |= self._follow()
        return super()._pre_forward(*inputs, **named)

    @torch._disable_dynamo
    def _sync_buffers(self) -> None:
        """Take buffers from rank 0, between two calls before one ``backward()`` too (pytorch/pytorch#175024)."""
        with torch.autograd._unsafe_preserve_version_counter(tuple(self.modules_buffers)):
            super()._sync_buffers()

    def named_modules(self, *arguments: Any, **options: Any) -> Iterator[tuple[str, Any]]:
        """Name modules, and so parameters and buffers, as the model does: scripts choose and keep them by name."""
        return cast(Iterator[Any], self.module.named_modules(*arguments, **options))

    def state_dict(self, *arguments: Any, **options: Any) -> Any:
        return self.module.state_dict(*arguments, **options)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *more: Any) -> None:
        for key in [key for key in state_dict if key.startswith(prefix)]:
            state_dict[f"{prefix}module.{key.removeprefix(prefix)}"] = state_dict.pop(key)
        super()._load_from_state_dict(state_dict, prefix, *more)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "module":
                raise
            found = getattr(self.module, name)
            return self._summed(found) if ismethod(found) else found

    def _summed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Have DDP sum the gradients of what a method computes, ``model.loss(batch)``, as of what ``forward`` does."""

        @wraps(method)
        def call(*inputs: Any, **named: Any) -> Any:
            is_apart = self.find_unused_parameters or self.static_graph or get_worker_info()
            if not is_apart and self._follow():
                if not self._ddp_is_called:  # as forward does
                    self.reducer._rebuild_buckets()
                self.reducer.prepare_for_backward([])
            return method(*inputs, **named)

        return call

    def __setattr__(self, name: str, value: Any) -> None:
        """Set the model's own attributes on the model, whose ``forward`` reads them; what DDP has set stays DDP's."""
        own = self.__dict__
        is_ours = "_is_made" not in own or name in own or hasattr(type(self), name)
        if is_ours or not hasattr(self.module, name):
            super().__setattr__(name, value)
        else:
            setattr(self.module, name, value)


class PlacedLoader:
    """A ``DataLoader`` whose batches are on this rank's device; other attributes are those of the ``DataLoader``.

    With ``weight`` it is one that ``trial.prepare`` was given: for evaluation, the whole of it on every rank.
    """

    def __init__(
        self, given: DataLoader[Any], device: torch.device, weight: BatchWeight | None = None
    ) -> None:
        self.given = given
        self._device, self._weight = device, weight or BatchWeight()

    def __len__(self) -> int:
        return len(self.given)

    def __iter__(self) -> Iterator[Any]:
        try:
            for batch in batches_of(self.given):
                self._weight.whole = self
                yield place_batch(batch, self._device)
        finally:
            self._weight.whole = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.given, name)


def prepare(trial: Any, training: Any, objects: Sequence[Any]) -> Any:
    """Return what takes the place of these objects, or of the only one; see ``trial.prepare``."""
    prepared: list[Any] = []
    for each in objects:
        if isinstance(each, DataLoader):
            prepared.append(_prepared_loader(trial, training, each))
        elif isinstance(each, torch.nn.Module):
            prepared.append(trial.wrap(each))
        elif hasattr(each, "param_groups"):  # also an optimizer of the script's own around another
            trial.scale_lr(each)
            prepared.append(each)
        elif all(hasattr(each, name) for name in ("step", "optimizer", "load_state_dict")):
            schedule = trial.schedule(each)
            schedule.is_by_epoch = None  # its first step tells
            prepared.append(schedule)
        else:
            raise TypeError(
                f"trial.prepare takes models, optimizers, DataLoaders and schedulers, not a {type(each).__name__}"
            )
    return tuple(prepared) if len(prepared) != 1 else prepared[0]


def _prepared_loader(trial: Any, training: Any, given: DataLoader[Any]) -> Any:
    batches = given.batch_sampler
    if type(batches) is BatchSampler and type(batches.sampler) is SequentialSampler:
        return PlacedLoader(given, trial.device, training.weight)
    splits = training.layout.exact and trial.world_size > 1
    made = trial.loader(given.dataset, **arguments_of(given, splits=splits))
    made.given, made.given_at = given, ":".join(map(str, script_line()))
    return made


def arguments_of(loader: DataLoader[Any], *, splits: bool = False) -> dict[str, Any]:
    """Return the arguments with which ``trial.loader`` gives one rank the batches of this loader.

    Of a batch sampler each rank takes whole batches, unless ranks are to share each batch (``splits``).

    Raises:
        TypeError: Its batches cannot be shared.
    """
    arguments: dict[str, Any] = {name: getattr(loader, name) for name in _KEPT}
    if loader.batch_size is None:
        if loader.batch_sampler is None or splits:
            raise TypeError(
                "trial.prepare: this DataLoader has no batches, or `batch: global` would split those of its "
                "batch_sampler, so they cannot be shared by ranks: make it with batch_size, or keep it and give each "
                "rank its share (trial.rank, trial.world_size)"
            )
        return {**arguments, "batch_size": 1, "drop_last": True, "sampler": loader.batch_sampler}
    sampler, dataset = cast(Any, loader.sampler), cast(Any, loader.dataset)
    if isinstance(dataset, IterableDataset):
        return {**arguments, "shuffle": False}
    if type(sampler) is RandomSampler and len(sampler) == len(dataset) and not sampler.replacement:
        return arguments
    return {**arguments, "sampler": sampler}


def draw(sampler: Any, seed: int, epoch: int) -> Iterator[Any]:
    """Have a sampler, and the one inside it, begin an epoch; return its indices, or lists of them, drawn as asked for.

    The same on every rank and in every launch: Python's, numpy's and torch's global generators are seeded for the
    drawing and put back, and generators of the sampler's own are seeded.
    """
    generators = OwnGenerators(seed := derive_seed(seed, epoch))
    with generators:
        for one in (sampler, getattr(sampler, "sampler", None)):
            for own in [*getattr(one, "__dict__", {}).values()]:
                if isinstance(own, torch.Generator):
                    own.manual_seed(seed)
                elif isinstance(own, Random) or type(own).__name__ == "RandomState":
                    own.seed(seed % (1 << 32))
                elif hasattr(own, "bit_generator"):  # numpy's
                    own.bit_generator.state = type(own.bit_generator)(seed).state
            if callable(set_epoch := getattr(one, "set_epoch", None)):
                set_epoch(epoch)
    return _draw(sampler, generators)


def _draw(sampler: Any, generators: OwnGenerators) -> Iterator[Any]:
    with generators:
        source = iter(sampler)
    drawn: list[Any] = [0]
    while drawn:
        with generators:
            part = islice(source, _DRAWN_AT_ONCE)
            drawn = [each.tolist() if hasattr(each, "tolist") else each for each in part]
        yield from drawn


class Lists:
    """A batch sampler that hands out lists prepared elsewhere."""

    def __init__(self, lists: Callable[[], Iterator[list[int]]]) -> None:
        self._lists = lists

    def __iter__(self) -> Iterator[list[int]]:
        return self._lists()


def loader_options(dataset: Any, options: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """Return the options with which ``DataLoader`` is made: the script's own, and memory that is pinned for a GPU.

    Raises:
        TypeError: A ready-made loader, or what deals samples to the ranks by itself.
    """
    if isinstance(dataset, DataLoader):
        raise TypeError(
            "trial.loader takes a data set, not a DataLoader: write trial.loader(the_data_set, batch_size=...), or "
            "loader = trial.prepare(loader)"
        )
    found = ["batch_sampler"] if options.get("batch_sampler") is not None else []
    sampler = options.get("sampler")
    if any(hasattr(each, "num_replicas") for each in (sampler, getattr(sampler, "sampler", None))):
        found.append("sampler")
    if found:
        raise TypeError(
            f"trial.loader(..., {found[0]}=...): gpusched shards and seeds by itself: leave {found[0]} out and write "
            f"shuffle=True, or shuffle=False for evaluation"
        )
    kept = {key: each for key, each in options.items() if key not in _OURS}
    is_there = isinstance(dataset, TensorDataset) and dataset.tensors[0].device.type != "cpu"
    return {"pin_memory": device.type == "cuda" and not is_there, **kept}
