"""State of tracked objects as a checkpoint holds it, in a form that does not depend on the number of ranks.

* Names: ``DistributedDataParallel`` and ``torch.compile`` put ``module.`` and ``_orig_mod.`` into the names of a
  model's tensors, also deep inside (an averaged copy of a wrapped model). They are taken out on saving and put in on
  loading.
* Values: only what ``torch.load(weights_only=True)`` takes. Numpy scalars become Python's; numpy arrays, bytes and
  deques are written as something else with a mark; anything else is refused by name, before a byte is written.
* Shards: a model that is sharded over the ranks (``fully_shard``, FSDP2) is saved whole, under its plain names, and
  sharded anew on loading; torch's ``torch.distributed.checkpoint.state_dict`` gathers and reshards. Rank 0's memory
  (not its device's) must hold the whole model with its optimizer for a moment. torch's own format of sharded files is
  not used: its index is a pickle.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress
from random import Random
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from gpusched.worker.hparams import HParams
from gpusched.worker.learning_rate import owned, without_functions
from gpusched.worker.prepare import OpenDDP

torch.serialization.add_safe_globals([HParams])  # in Lightning's checkpoint of a Net(trial.hparams)
_ARRAY_MARK = "__gpusched_numpy__"
_BYTES_MARK = "__gpusched_bytes__"
_DEQUE_MARK = "__gpusched_deque__"
_BESIDE = (torch.Tensor, Random, dict, list, set, deque)  # their state is not in attributes
_PLAIN = (bool, int, float, str, type(None), torch.dtype, torch.device, torch.Size)


class Pickled:
    """An object without ``state_dict`` that ``trial.track`` saves as a pickle. See ``gpusched.pickled``."""

    def __init__(self, value: Any) -> None:
        self.value = value
        #: All that is tracked, by name: where the object refers to some of it, that is no part of the object. Of
        #: pickled ones those that were tracked by then.
        self.tracked: Mapping[str, Any] = {}
        self.known: Set[str] = frozenset()
        if isinstance(value, _BESIDE) or not hasattr(value, "__dict__"):
            raise TypeError(
                f"gpusched.pickled saves the attributes of an object, and a {type(value).__name__} has its state "
                f"elsewhere: make a parameter an nn.Parameter and track nn.ParameterList([parameter]); keep plain "
                f"values in trial.state, all else in an attribute of an object, say types.SimpleNamespace(a=a)"
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the pickled attributes of the object."""
        names = {id(each): name for name, each in self._named().items()}
        pickler: Any = pickle.Pickler(file := io.BytesIO(), protocol=5)
        pickler.persistent_id = lambda value: names.get(id(value))
        try:
            pickler.dump(vars(self.value))
        except (TypeError, ValueError, AttributeError, pickle.PicklingError) as error:
            why = f"gpusched.pickled({type(self.value).__name__}): {error}: write state_dict() and load_state_dict()"
            raise TypeError(why) from error
        return {"pickle": file.getvalue()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put saved attributes back into the object, in place."""
        unpickler: Any = pickle.Unpickler(io.BytesIO(state["pickle"]))
        unpickler.persistent_load = self._named().get
        found = unpickler.load()
        vars(self.value).clear()
        vars(self.value).update(found)

    def _named(self) -> dict[str, Any]:
        """Return the tracked objects by name, with models inside wrappers and their parameters."""
        named: dict[str, Any] = {}
        for name, each in self.tracked.items():
            inside = each.module if isinstance(each, DistributedDataParallel) else each
            if isinstance(inside, nn.Module):
                named |= {f"{name}.{key}": own for key, own in inside.named_parameters()}
            if name in self.known and isinstance(each, Pickled):
                inside = each.value
            named |= {f"{name}.module": inside, name: each}
        return named | {"self": self.value}


def refuse_stateless(name: str, value: object) -> None:
    """Raise TypeError if a checkpoint could not hold ``value``."""
    if isinstance(value, type) or not hasattr(value, "load_state_dict"):
        raise TypeError(
            f"trial.track({name}=...): a {type(value).__name__} has no state_dict() and "
            f"load_state_dict(); track a model, an optimizer, a scheduler, or an object of your own "
            f"that has both; for others write trial.track({name}=gpusched.pickled(...)), for plain values trial.state"
        )
    if isinstance(value, nn.Module) and "torch.distributed.fsdp" in sys.modules:
        from torch.distributed.fsdp import FullyShardedDataParallel

        if any(isinstance(part, FullyShardedDataParallel) for part in value.modules()):
            raise TypeError(
                f"trial.track({name}=...): a FullyShardedDataParallel (FSDP1) model, whose shards a launch on other "
                f"ranks could not read: write model = trial.wrap(model, shard=True), or shard it with "
                f"torch.distributed.fsdp.fully_shard (FSDP2)"
            )


def save_object(name: str, value: Any, others: Iterable[Any] = ()) -> Any:
    """Return the state of a tracked object; ``others`` are all that are tracked. All ranks call it.

    Raises:
        TypeError: It holds something a checkpoint cannot hold; the message says where.
    """
    if is_sharded(value):
        return portable(_saved_whole(value, others), name)
    state = value.state_dict()
    if isinstance(value, nn.Module):
        parts = {_canonical(value, of): v for of, v in getattr(state, "_metadata", {}).items()}
        state = {_canonical(value, key): entry for key, entry in state.items()}
        # torch keeps the versions of modules beside the state; without, torchvision's MNASNet takes none back.
        vars(saved := OrderedDict(portable(state, name)))["_metadata"] = portable(parts, name)
        return saved
    if hasattr(value, "last_epoch"):
        state = without_functions(state)
    return portable(state, name)


def load_object(name: str, value: Any, saved: Any, step: int, others: Iterable[Any] = ()) -> None:
    """Put a tracked object back. All ranks call it.

    Raises:
        RuntimeError: The object is not of the shape it had when it was saved.
    """
    state = unportable(saved)
    try:
        if is_sharded(value) or _is_named(value, state):
            _load_whole(value, state, others)
        elif isinstance(value, nn.Module):
            now = value.state_dict()
            actual = {_canonical(value, key): key for key in now}
            renamed = OrderedDict((actual.get(key, key), entry) for key, entry in state.items())
            vars(renamed)["_metadata"] = getattr(now, "_metadata", {})
            value.load_state_dict(renamed)
        elif isinstance(value, Optimizer | Pickled):
            value.load_state_dict(state)
        else:
            value.load_state_dict(moved(state, value.state_dict()))
    except (RuntimeError, ValueError, KeyError) as error:
        why = " ".join(str(error).split())
        raise RuntimeError(
            f"trial.track({name}=...): the checkpoint of step {step} does not fit: {why}. Every "
            f"launch of a trial must build the same objects: let their shape depend on "
            f"trial.hparams and trial.step alone, not on the number of ranks or on chance"
        ) from error


def sampled(tensors: Sequence[torch.Tensor], most: int, least: int = 1) -> torch.Tensor:
    """Return ``most`` values of these tensors in all, ``least`` of each, in float64; the same places every time."""
    each = max(least, most // max(1, len(tensors)))
    flat = (tensor.detach().reshape(-1) for tensor in tensors)
    parts = [part[:: max(1, part.numel() // each)][:each].to("cpu", torch.float64) for part in flat]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.float64, device="cpu")


def portable(value: Any, path: str) -> Any:
    """Return ``value`` as ``torch.load(weights_only=True)`` will take it back."""
    if isinstance(value, torch.Tensor) and not hasattr(value, "full_tensor"):  # a part: refused
        return value.detach()
    if type(value) in _PLAIN:
        return value
    if isinstance(value, Mapping):
        items = {_key(key, path): portable(each, f"{path}[{key!r}]") for key, each in value.items()}
        return Counter(items) if type(value) is Counter else items
    if isinstance(value, (list, tuple, set, frozenset)):
        parts = [
            part if type(part) in _PLAIN else portable(part, f"{path}[{number}]")
            for number, part in enumerate(value)
        ]
        if isinstance(value, (set, frozenset)):
            return set(parts)
        return tuple(parts) if isinstance(value, tuple) else parts
    origin = getattr(type(value), "__module__", "?")  # classes that SWIG has made have none
    if origin == "numpy":
        if getattr(value, "shape", None) == () and callable(getattr(value, "item", None)):
            return portable(value.item(), path)
        with suppress(TypeError, ValueError):  # of text or of objects: refused below
            return {_ARRAY_MARK: torch.from_numpy(value.copy())}
    if isinstance(value, (bytes, bytearray)):
        held = torch.frombuffer(bytearray(value), dtype=torch.uint8) if value else torch.empty(0)
        return {_BYTES_MARK: held.to(torch.uint8)}
    if isinstance(value, deque):
        return {_DEQUE_MARK: portable([[*value], value.maxlen], path)}
    if isinstance(value, str):  # an enum or another subclass, and so below
        return str.__str__(value)
    if isinstance(value, int | float):
        return int(value) if isinstance(value, int) else float(value)
    raise TypeError(
        f"a checkpoint cannot hold {path}, a {origin}.{type(value).__qualname__}: "
        f"state_dict() may hold tensors, numbers, strings, None, lists, tuples, sets and dictionaries"
    )


def unportable(value: Any) -> Any:
    """Undo ``portable`` where it changed a type."""
    if isinstance(value, Mapping):
        if len(value) == 1:
            ((mark, content),) = value.items()
            if mark == _ARRAY_MARK:
                return content.numpy()
            if mark == _BYTES_MARK:
                return content.numpy().tobytes()
            if mark == _DEQUE_MARK:
                return deque(*unportable(content))
        plain = {key: unportable(entry) for key, entry in value.items()}
        if type(value) is OrderedDict:  # of a model, with the versions of its modules
            vars(plain := OrderedDict(plain)).update(vars(value))
        return Counter(plain) if type(value) is Counter else plain
    if type(value) in (list, tuple):
        return type(value)(unportable(part) for part in value)
    return value


def moved(state: Any, now: Any) -> Any:
    """``state``, loaded on the CPU, with its tensors on the device where the object has them now.

    Models and optimizers see to that themselves; an object of the script's own (averaged weights, say) may not.
    """
    if isinstance(state, torch.Tensor):
        return state.to(now.device) if isinstance(now, torch.Tensor) else state
    if type(state) is dict and isinstance(now, Mapping):
        return {key: moved(entry, now.get(key)) for key, entry in state.items()}
    if type(state) in (list, tuple) and isinstance(now, (list, tuple)) and len(now) == len(state):
        return type(state)(map(moved, state, now))
    return state


def _key(key: Any, path: str) -> Any:
    plain = portable(key, f"{path}, key {key!r}")
    if isinstance(plain, (dict, list, set)):
        raise TypeError(f"a checkpoint cannot hold {path}: its key {key!r} is not a plain value")
    return plain


def _canonical(model: Any, key: str) -> str:
    """Return the name of a tensor in ``model`` without what wrappers put into it."""
    compiled = torch._dynamo.eval_frame.OptimizedModule if "_dynamo" in vars(torch) else ()
    ddp = (DistributedDataParallel, nn.DataParallel)
    wrappers: dict[str, Any] = {"module": ddp, "_orig_mod": compiled}
    plain = []
    for part in key.split("."):
        while isinstance(model, OpenDDP):  # OpenDDP's tensors have the model's names
            model = model.module
        if not isinstance(model, wrappers.get(part, ())):
            plain.append(part)
        model = getattr(model, "_modules", {}).get(part)
    return ".".join(plain)


# ---------------------------------------------------------------- sharded models


def is_sharded(value: Any) -> bool:
    """Tell whether a model, or the model of an optimizer, is sharded."""
    if "torch.distributed.tensor" not in sys.modules:
        return False
    from torch.distributed.tensor import DTensor

    parameters = value.parameters() if isinstance(value, nn.Module) else owned(value)
    return any(isinstance(parameter, DTensor) for parameter in parameters)


def shard(model: nn.Module, device: torch.device, world_size: int) -> None:
    """Split the parameters of ``model`` over all ranks, each child of its own."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (world_size,))
    for child in model.children():
        if any(True for _ in child.parameters()):
            fully_shard(child, mesh=mesh)
    fully_shard(model, mesh=mesh)


def _is_named(value: Any, state: Any) -> bool:
    """Tell whether a state is an optimizer's by names of parameters, as ``_saved_whole`` returns it, not by numbers."""
    groups = state.get("param_groups", ()) if isinstance(value, Optimizer) else ()
    return any(isinstance(each, str) for group in groups for each in group["params"])


def _saved_whole(value: Any, models: Iterable[Any]) -> Any:
    """Return the whole state of a sharded model or of its optimizer; empty but on rank 0. All ranks call it."""
    from torch.distributed.checkpoint import state_dict as dcp

    options = dcp.StateDictOptions(full_state_dict=True, cpu_offload=True)
    if isinstance(value, Optimizer):
        return dcp.get_optimizer_state_dict(_owner(value, models), value, options=options)
    return dcp.get_model_state_dict(_bare(value), options=options)


def _load_whole(value: Any, state: Any, models: Iterable[Any]) -> None:
    """Put a model or an optimizer back from a whole state, sharded as it is now or not at all."""
    from torch.distributed.checkpoint import state_dict as dcp

    options = dcp.StateDictOptions(full_state_dict=True)
    if isinstance(value, Optimizer):
        model = _owner(value, models)
        if not _is_named(value, state):
            state = _by_name(state, value, model)
        dcp.set_optimizer_state_dict(model, value, state, options=options)
    else:
        dcp.set_model_state_dict(_bare(value), state, options=options)


def _bare(model: nn.Module) -> Any:
    """Return a model without ``torch.compile`` and DDP around it, which would be in the names of its parameters."""
    model = getattr(model, "_orig_mod", model)
    return model.module if isinstance(model, DistributedDataParallel) else model


def _owner(optimizer: Optimizer, models: Iterable[Any]) -> Any:
    """Return the tracked model whose parameters an optimizer moves.

    Raises:
        RuntimeError: None has all of them.
    """
    wanted = set(map(id, owned(optimizer)))
    for model in models:
        if isinstance(model, nn.Module) and wanted <= {id(p) for p in model.parameters()}:
            return _bare(model)
    raise RuntimeError(
        "trial.track: the optimizer of a sharded model needs the model beside it: "
        "trial.track(model=model, opt=opt), in one call"
    )


def _by_name(state: Mapping[str, Any], optimizer: Optimizer, model: nn.Module) -> dict[str, Any]:
    """Return the state of an optimizer that was not sharded, by numbers of parameters, as one by their names."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = []
    numbered: dict[Any, str] = {}
    for saved, group in zip(state["param_groups"], optimizer.param_groups, strict=True):
        here = [names[id(parameter)] for parameter in group["params"]]
        numbered.update(zip(saved["params"], here, strict=True))
        groups.append({**saved, "params": here})
    by_name = {numbered[number]: entry for number, entry in state["state"].items()}
    return {"state": by_name, "param_groups": groups}
