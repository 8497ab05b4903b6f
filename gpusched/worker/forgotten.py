"""State that training changes and no checkpoint holds: an optimizer, a scheduler, an average of the weights.

Each would begin afresh at the next launch while the rest goes on: a discriminator without its optimizer, a patience
that is never exhausted, an average that forgets the first half. Objects of torch are noticed as they change; copies of
a model, which have no method of their own to notice, by values that differ from report to report. What a tracked object
of the script's own holds in an attribute is that object's business.
"""

from __future__ import annotations

import functools
import gc
import inspect
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from types import FunctionType, ModuleType
from typing import Any

from gpusched.worker.averages import Averages
from gpusched.worker.learning_rate import bare_optimizer

_CHANGES = (
    ("torch.optim.lr_scheduler", "ReduceLROnPlateau", "step"),
    ("torch.optim.swa_utils", "AveragedModel", "update_parameters"),
    ("torch.amp.grad_scaler", "GradScaler", "update"),
    ("torch.distributed.fsdp.sharded_grad_scaler", "ShardedGradScaler", "update"),
)
"""Classes with a state of their own, and the method that changes the state."""

_OPAQUE = ("torch.", "gpusched.worker.trial")
"""Origins of objects that are not looked into."""

_NESTED_MAX = 10_000
_COMPARED = 32
_STILL_MAX = 3
"""Reports over which a copy is looked at that does not change: a frozen teacher costs nothing for long."""


class AtWork:
    """Objects that train in this script, whether it has tracked them or not."""

    def __init__(self) -> None:
        self._noticed: weakref.WeakSet[Any] = weakref.WeakSet()
        self._is_watching = False
        #: Of what was found to be whole last: objects, and whether a scheduler has taken hold of each.
        self._whole: object = None
        #: Models that no optimizer moves: their values at the last report, and the reports over which these stayed.
        self._copies: weakref.WeakKeyDictionary[Any, tuple[list[float], int]] | None = None
        #: Models that are tracked, in an object of the script's own or by themselves.
        self._models: weakref.WeakSet[Any] = weakref.WeakSet()
        self._averages = Averages()
        self._changing_copy: str | None = None

    def watch(self) -> None:
        """Notice every optimizer that steps from here on, and every object of ``_CHANGES`` that changes."""
        if self._is_watching:
            return
        self._is_watching = True
        from torch.optim import optimizer

        optimizer.register_optimizer_step_pre_hook(lambda *_: self._averages.about_to_step())
        optimizer.register_optimizer_step_post_hook(lambda each, *_: self._noticed.add(each))
        for module, kind, method in _CHANGES:
            if module in sys.modules:
                _notice_calls(getattr(sys.modules[module], kind), method, self._noticed.add)

    def forgotten(self, tracked: Mapping[str, Any]) -> str | None:
        """Return the message for an object at work that is not tracked, or whose model or scheduler is not."""
        state = [(id(each), _has_scheduler(each)) for each in self._noticed]
        if not tracked or state == self._whole:
            return self._changing_copy
        held = _held(tracked.values())
        known = {id(parameter) for value in held.values() for parameter in _parameters(value)}
        scheduled = {id(_scheduled(value)) for value in held.values()}
        for each in list(self._noticed):
            name = type(each).__name__
            if id(each) not in held:
                if not hasattr(each, "param_groups"):
                    if each.state_dict():
                        return _lost(f"this script uses a {name} that trial.track does not have")
                    continue
                what = f"this script steps an optimizer ({name}) that trial.track does not have"
            elif any(id(parameter) not in known for parameter in owned(each)):
                what = f"the tracked optimizer ({name}) moves parameters of a model that trial.track does not have"
            elif _has_scheduler(each) and id(each) not in scheduled:
                what = f"the tracked optimizer ({name}) has a scheduler of its rate that trial.track does not have"
            else:
                continue
            return _lost(what)
        self._whole = state
        return self._changing_copy

    def look_for_averages(self, tracked: Mapping[str, Any]) -> None:
        """Notice an average of a tracked model's weights that the script keeps by hand."""
        if self._changing_copy is not None or not self._averages.is_due():
            return
        held = _held(tracked.values())
        models = _outer([each for each in held.values() if _has_values(_parameters(each))])
        name = None
        with suppress(Exception):  # an object of the script's may refuse to be looked at
            name = self._averages.look(models, held)
        if name is not None:
            self._changing_copy = (
                f"{name} is an average of a tracked model's weights that no checkpoint holds: it would begin afresh at "
                f"every launch, while the rest goes on. Keep it in trial.state (ema = trial.state.setdefault('ema', "
                f"ema) before the loop), or track a torch.optim.swa_utils.AveragedModel in its place"
            )

    def look_at_copies(self, tracked: Mapping[str, Any]) -> None:
        """Notice a copy of a model that changes from report to report and is not tracked.

        A copy that is as a tracked model is now was made from it, for an evaluation: nothing is lost with it.
        """
        if self._copies is None:
            held = _held(tracked.values()).values()
            models = [each for each in held if _parameters(each)]
            self._copies, self._models = weakref.WeakKeyDictionary(), weakref.WeakSet(models)
            if not all(_has_values(_parameters(each)) for each in models):
                return  # a copy could not be compared with them
            known = {id(each) for value in held for each in _parameters(value)}
            known |= {id(each) for value in self._noticed for each in owned(value)}
            found = [each for each in live("torch.nn", "Module") if _is_apart(each, known)]
            self._copies.update({each: (_values(each), 0) for each in _outer(found)})
            return
        for copy, (before, still) in list(self._copies.items()):
            now = _values(copy)
            if now == before:
                self._copies[copy] = now, still + 1
                if still + 1 == _STILL_MAX:
                    del self._copies[copy]
            elif all(now != _values(model, like=copy) for model in self._models):
                self._changing_copy = _lost(
                    f"a {type(copy).__name__} that no optimizer moves changes from report to report (an average of "
                    f"weights, a target network), and trial.track does not have it"
                )
                self._copies.clear()
                return
            else:
                self._copies[copy] = now, 0


def live(module: str, kind: str) -> list[Any]:
    """Return all objects of a class of torch that this script has made; none before it has imported torch."""
    of = getattr(sys.modules.get(module), kind, None)
    return [] if of is None else [one for one in gc.get_objects() if issubclass(type(one), of)]


def owned(optimizer: Any) -> list[Any]:
    """Return the parameters that an optimizer moves; none for other objects."""
    return [each for group in getattr(optimizer, "param_groups", ()) for each in group["params"]]


def _lost(what: str) -> str:
    return (
        f"{what}: it would begin afresh at every launch, while the rest goes on. Track all that training changes: "
        f"trial.track(model=model, opt=opt, sched=sched), by one name each"
    )


def _notice_calls(kind: type, method: str, notice: Callable[[Any], None]) -> None:
    plain = getattr(kind, method)

    @functools.wraps(plain)
    def noticed(self: Any, *arguments: Any, **keywords: Any) -> Any:
        notice(self)
        return plain(self, *arguments, **keywords)

    setattr(kind, method, noticed)


def _held(tracked: Iterable[Any]) -> dict[int, Any]:
    """Return by identity tracked objects, and those that their state may be made of."""
    found: dict[int, Any] = {}
    rest = deque(tracked)  # the outer ones first: a long list in one object hides no other
    while rest and len(found) < _NESTED_MAX:
        value = rest.popleft()
        if id(value) not in found:
            found[id(value)] = value
            rest += islice(_parts(value), _NESTED_MAX)
    return found


def _parts(value: Any) -> Iterable[Any]:
    """Return the elements of a container, the children of a model, and the attributes of an object of the script's."""
    import torch

    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, list | tuple | set):
        return value
    if isinstance(value, torch.nn.Module) and type(value).state_dict is torch.nn.Module.state_dict:
        return value.children()  # this object saves no attribute beside them
    if isinstance(value, torch.optim.Optimizer):
        saves_others = type(value).state_dict is not torch.optim.Optimizer.state_dict
        inside = vars(value).values() if saves_others else ()
        others = (each for each in inside if isinstance(each, torch.optim.Optimizer))
        return (bare_optimizer(value), *others)
    of_torch = torch.optim.lr_scheduler.LRScheduler  # refers to an optimizer, and does not save it
    origin = getattr(type(value), "__module__", "")  # classes that SWIG has made have none
    if isinstance(value, of_torch | type | ModuleType) or origin.startswith(_OPAQUE):
        return ()
    return [*getattr(value, "__dict__", {}).values(), *_named_by_state(type(value))]


def _named_by_state(kind: type) -> list[Any]:
    """Return the global variables, and those of an enclosing function, that ``state_dict`` of a class may save."""
    function = getattr(kind, "state_dict", None)
    if not isinstance(function, FunctionType):
        return []
    names = inspect.getclosurevars(function)
    return [*names.globals.values(), *names.nonlocals.values()]


def _parameters(value: Any) -> list[Any]:
    """Return the parameters of a model; none for other objects."""
    torch = sys.modules.get("torch")
    is_model = torch is not None and isinstance(value, torch.nn.Module)
    return list(value.parameters()) if is_model else []


def _outer(models: Sequence[Any]) -> list[Any]:
    """Return the models that are not part of another one among them."""
    inner = {id(part) for each in models for part in each.modules() if part is not each}
    return [each for each in models if id(each) not in inner]


def _has_scheduler(optimizer: Any) -> bool:
    return bool(getattr(getattr(optimizer, "step", None), "_wrapped_by_lr_sched", False))


def _scheduled(value: Any) -> Any:
    """Return the optimizer of a scheduler; None for other objects."""
    from torch.optim.lr_scheduler import LRScheduler

    attributes = getattr(value, "__dict__", {})
    is_scheduler = isinstance(value, LRScheduler) or "last_epoch" in attributes
    return bare_optimizer(attributes.get("optimizer")) if is_scheduler else None


def _is_apart(model: Any, known: set[int]) -> bool:
    """Tell whether a model has parameters, and none that a tracked one has or an optimizer moves."""
    parameters = _parameters(model)
    return _has_values(parameters) and not any(id(each) in known for each in parameters)


def _has_values(parameters: Sequence[Any]) -> bool:
    """Tell whether there are parameters with values to read: none of them lazy, on meta, sparse or sharded."""
    import torch

    return bool(parameters) and not any(
        torch.nn.parameter.is_lazy(each)
        or each.is_meta
        or each.layout != torch.strided
        or hasattr(each, "to_local")
        for each in parameters
    )


def _values(model: Any, like: Any = None) -> list[float]:
    """Return a few numbers that tell models of one shape apart; in the precision of the model ``like``, if given."""
    from gpusched.worker.state import sampled

    parameters = _parameters(model)
    found = sampled([*parameters[:2], *parameters[-2:]], _COMPARED)
    if like is not None:
        found = found.to(_parameters(like)[0].dtype)
    return [float(value) for value in found.nan_to_num()]
