"""Models that are sharded over the ranks (``fully_shard``, FSDP2), saved whole and sharded anew.

A checkpoint holds whole tensors under their plain names, so any number of ranks can continue with it; torch's
``torch.distributed.checkpoint.state_dict`` gathers and reshards them. Rank 0's memory (not its device's) must hold the
whole model with its optimizer for a moment. torch's own format of sharded files is not used: its index is a pickle.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from gpusched.worker.learning_rate import owned

_MARK = "__gpusched_whole__"


def is_sharded(value: Any) -> bool:
    """Tell whether a model, or the model of an optimizer, is sharded."""
    if "torch.distributed.tensor" not in sys.modules:
        return False
    from torch.distributed.tensor import DTensor

    parameters = value.parameters() if isinstance(value, nn.Module) else owned(value)
    return any(isinstance(parameter, DTensor) for parameter in parameters)


def is_fsdp1(model: nn.Module) -> bool:
    """Tell whether a model is, or holds, a ``FullyShardedDataParallel``, which a trial cannot save."""
    if "torch.distributed.fsdp" not in sys.modules:
        return False
    from torch.distributed.fsdp import FullyShardedDataParallel

    return any(isinstance(part, FullyShardedDataParallel) for part in model.modules())


def gathered(tensor: Any) -> Any:
    """Return the whole of a sharded tensor, any other as it is. All ranks call it."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def dealt(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return a whole tensor, on the device of ``like`` and sharded as that is. All ranks call it."""
    mesh = getattr(like, "device_mesh", None)
    if mesh is None:
        return tensor.to(like.device)
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor.to(like.device), mesh, like.placements)  # type: ignore[attr-defined]


def shard(model: nn.Module, device: torch.device, world_size: int) -> None:
    """Split the parameters of ``model`` over all ranks, each child of its own."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (world_size,))
    for child in model.children():
        if any(True for _ in child.parameters()):
            fully_shard(child, mesh=mesh)
    fully_shard(model, mesh=mesh)


def is_whole(saved: Any) -> bool:
    """Tell whether a saved state is one of ``save``'s."""
    return isinstance(saved, Mapping) and set(saved) == {_MARK}


def whole(saved: Any) -> Any:
    """Return the whole state in what ``save`` returned, any other as it is."""
    return saved[_MARK] if is_whole(saved) else saved


def save(value: Any, models: Iterable[Any]) -> dict[str, Any]:
    """Return the whole state of a sharded model or of its optimizer; empty but on rank 0. All ranks call it."""
    from torch.distributed.checkpoint import state_dict as dcp

    model = _plain(_owner(value, models) if isinstance(value, Optimizer) else value)
    options = dcp.StateDictOptions(full_state_dict=True, cpu_offload=True)
    if isinstance(value, Optimizer):
        return {_MARK: dcp.get_optimizer_state_dict(model, value, options=options)}
    return {_MARK: dcp.get_model_state_dict(model, options=options)}


def load(value: Any, saved: Any, models: Iterable[Any]) -> None:
    """Put a model or an optimizer back from a whole state, sharded as it is now or not at all."""
    from torch.distributed.checkpoint import state_dict as dcp

    options = dcp.StateDictOptions(full_state_dict=True)
    state = whole(saved)
    if isinstance(value, Optimizer):
        model = _plain(_owner(value, models))
        if not is_whole(saved):
            state = _by_name(state, value, model)
        dcp.set_optimizer_state_dict(model, value, state, options=options)
    else:
        dcp.set_model_state_dict(_plain(value), state, options=options)


def _plain(model: nn.Module) -> Any:
    """Return a model without ``torch.compile`` around it, which would be in the names of its parameters."""
    return getattr(model, "_orig_mod", model)


def _owner(optimizer: Optimizer, models: Iterable[Any]) -> nn.Module:
    """Return the tracked model whose parameters an optimizer moves.

    Raises:
        RuntimeError: None has all of them.
    """
    wanted = set(map(id, owned(optimizer)))
    for model in models:
        if isinstance(model, nn.Module) and wanted <= {id(p) for p in model.parameters()}:
            return model
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
