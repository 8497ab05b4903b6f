"""Averages of a model's weights that a script keeps by hand, in a dictionary or a list of tensors.

Looked for under the script's names (locals, globals, closures, attributes of objects of its own classes): containers
with tensors of the shapes of a tracked model's parameters. Such tensors are an average if they have moved, at two
reports, a part of the way to where the model is, each value among those of the steps between, and were the model itself
at no step and no report. Gradients and buffers do not move so; copies of the weights (the best so far, those of the
last epochs) are the model of some step; rounded, perturbed or adapted weights lie beside.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import CO_OPTIMIZED
from itertools import islice
from types import FrameType, FunctionType, MethodType, ModuleType
from typing import Any

from gpusched.worker.endings import PACKAGE

_LIBRARIES = (PACKAGE, f"{os.path.dirname(os.__file__)}/", "<")  # noqa: PTH120 - a prefix of texts
_PLAIN = (type(None), bool, int, float, str, bytes, type, ModuleType)
_LOCALS = {"locals", "vars", "eval", "exec"}
"""Names of calls that may give a function its ``locals()``; before Python 3.13 a look at them would change that."""
_VISITED_MAX, _ELEMENTS_MAX, _DEPTH = 5_000, 200, 4
_TENSORS, _VALUES = 16, 256
_LOOKS, _STILL_MAX, _MOVES_MAX, _STEPS_MAX, _HITS = 5, 4, 8, 10_000, 2
_SOURCES_MAX, _MARKS_MAX = 16, 1_000
_MOST_OF_THE_WAY, _ALIKE, _ROUNDING = 0.9, 0.5, 1e-4


@dataclass(slots=True)
class _Likeness:
    """A container like a tracked model: where it was at the last report, and how often it moved as averages do."""

    values: Any
    looks: int = 0
    moves: int = 0
    hits: int = 0


@dataclass(slots=True)
class Averages:
    """Search for averages among the names of a script, from report to report."""

    _likenesses: dict[str, _Likeness] = field(default_factory=dict)
    #: Names of containers that have been found to be something else.
    _settled: set[str] = field(default_factory=set)
    _looks: int = 0
    #: Tensors of every model, and of every container like one, that a checkpoint holds.
    _sources: list[list[Any]] = field(default_factory=list)
    #: Values of the sources before each optimizer step since the last report; kept while there are likenesses.
    _steps: list[Any] = field(default_factory=list)
    #: Values of the sources at reports.
    _marks: deque[Any] = field(default_factory=lambda: deque(maxlen=_MARKS_MAX))

    def is_due(self) -> bool:
        """Count a report; tell whether to look: at the first few, later seldom unless there is a likeness."""
        self._looks += 1
        rarely = self._looks & (self._looks - 1) == 0
        is_due = rarely or self._looks <= _LOOKS or bool(self._likenesses)
        if not is_due:
            self._marks += map(_sampled, self._sources)
        return is_due

    def about_to_step(self) -> None:
        """Remember the models as an optimizer finds them: as the last step, and what came after it, has left them."""
        if self._likenesses and len(self._steps) <= _STEPS_MAX:
            self._steps += map(_sampled, self._sources)

    def look(self, models: Sequence[Any], held: Mapping[int, Any]) -> str | None:
        """Return the name of an average found by now that is not among ``held``, which a checkpoint has by identity."""
        orders: dict[tuple[Any, ...], list[int]] = {}
        for model in models:
            for shapes, places in _orders(model):
                orders.setdefault(shapes, places)
        likes = [list(model.parameters()) for model in models]
        likes += [tensors for each in held.values() if (tensors := _tensors_in(each))]
        ordered = [(each, orders.get(_shapes(each), [])) for each in likes]
        sources = ([each[index] for index in places] for each, places in ordered if places)
        self._sources = list(islice(sources, _SOURCES_MAX))
        known = {each.data_ptr() for source in self._sources for each in source}
        found = dict(_tensors_of_script(held, known, orders.keys()))
        models_now = [_sampled(source) for source in self._sources]
        steps, self._steps = [*self._steps, *models_now], []
        is_complete = len(models_now) < len(steps) <= _STEPS_MAX + len(models_now)
        self._marks += models_now
        for name, tensors in found.items():
            if name in self._settled:
                continue
            now = _sampled([tensors[index] for index in orders[_shapes(tensors)]])
            before = self._likenesses.setdefault(name, _Likeness(now))
            before.looks += 1
            if before.values.equal(now):
                is_settled = before.looks > _STILL_MAX + before.moves
            else:
                before.moves += 1
                dtype = tensors[0].dtype
                is_copy = any(_is_same(each, now, dtype) for each in (*self._marks, *steps))
                before.hits += (
                    is_complete
                    and not is_copy
                    and any(_moves_to(before.values, now, model) for model in models_now)
                    and _is_between(now, [before.values, *steps], dtype)
                )
                is_settled = is_copy or before.hits == _HITS or before.moves == _MOVES_MAX
                if before.hits == _HITS:
                    return name
            before.values = now
            if is_settled:
                self._settled.add(name)
        left = found.keys() - self._settled
        self._likenesses = {name: one for name, one in self._likenesses.items() if name in left}
        return None


def _moves_to(before: Any, now: Any, model: Any) -> bool:
    """Tell whether values went a part of the way to those of the model, which they resemble."""
    if model.shape != now.shape:
        return False
    moved, left = now - before, model - before
    along = float(moved @ left)
    is_partial = 0 < along < _MOST_OF_THE_WAY * float(left @ left)
    is_straight = along > _ALIKE * float(moved.norm() * left.norm())
    return (
        is_partial
        and is_straight
        and float(now @ model) > _ALIKE * float(now.norm() * model.norm())
    )


def _is_between(now: Any, steps: Sequence[Any], dtype: Any) -> bool:
    """Tell whether each value lies among those of these steps, as in an average; noise and rounding put it outside."""
    import torch

    stacked = torch.stack([each for each in steps if each.shape == now.shape])
    least, most = stacked.amin(0), stacked.amax(0)
    rounding = 4 * torch.finfo(dtype).eps if dtype.is_floating_point else 0.0
    error = max(_ROUNDING, rounding) * torch.maximum(least.abs(), most.abs())
    return bool(((least - error <= now) & (now <= most + error)).all())


def _is_same(step: Any, values: Any, dtype: Any) -> bool:
    return bool(step.shape == values.shape and step.to(dtype).to(values.dtype).equal(values))


def _orders(model: Any) -> Iterator[tuple[tuple[Any, ...], list[int]]]:
    """Yield the shapes of a model's trained parameters, of all, and of its (floating) state, with trained places."""
    parameters = list(model.parameters())
    trained = [each for each in parameters if each.requires_grad and each.numel()]
    known = {id(each) for each in trained}
    state = _state(model)
    for tensors in (trained, parameters, state, [e for e in state if e.is_floating_point()]):
        places = [index for index, each in enumerate(tensors) if id(each) in known]
        if places:
            yield _shapes(tensors), places[:: -(-len(places) // _TENSORS)]


def _state(model: Any) -> list[Any]:
    """Return the tensors of a model in the order of its state, without a call of a ``state_dict`` of the script's."""
    passing = model._non_persistent_buffers_set
    own = list(model._parameters.values())
    own += [each for name, each in model._buffers.items() if name not in passing]
    found = [each for each in own if each is not None]
    return found + [each for part in model._modules.values() if part for each in _state(part)]


def _shapes(tensors: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(getattr(each, "shape", None) for each in tensors)


def _sampled(tensors: Sequence[Any]) -> Any:
    from gpusched.worker.state import sampled

    return sampled(tensors, _VALUES).nan_to_num()


def _tensors_in(value: Any) -> list[Any]:
    """Return the elements of a container of nothing but plain tensors, none computed with gradients; else nothing."""
    import torch

    if not isinstance(value, dict | list | tuple) or not value:
        return []
    elements = value.values() if isinstance(value, dict) else value
    is_plain = all(
        isinstance(each, torch.Tensor) and each.grad_fn is None and not hasattr(each, "to_local")
        for each in elements
    )
    return list(elements) if is_plain else []


def _tensors_of_script(
    held: Mapping[int, Any], known: set[int], shapes: Iterable[tuple[Any, ...]]
) -> Iterator[tuple[str, list[Any]]]:
    """Yield by name the containers of tensors of these shapes, but for the model's own and those that are held."""
    rest = deque((name, value, 0) for name, value in _names(sys._getframe()))
    visited: set[int] = set()
    while rest and len(visited) < _VISITED_MAX:
        name, value, depth = rest.popleft()
        if isinstance(value, _PLAIN) or id(value) in visited or id(value) in held:
            continue
        visited.add(id(value))
        if tensors := _tensors_in(value):
            if _shapes(tensors) in shapes and not any(each.data_ptr() in known for each in tensors):
                yield name, tensors
        elif depth < _DEPTH:
            rest += [
                (f"{name}{path}", part, depth + 1)
                for path, part in islice(_inside(value), _ELEMENTS_MAX)
            ]


def _names(frame: FrameType | None) -> Iterator[tuple[str, Any]]:
    """Yield what the names of the script stand for in this frame and those that called it."""
    modules: set[int] = set()
    while frame is not None:
        code = frame.f_code
        if _is_of_script(code.co_filename):
            if code.co_flags & CO_OPTIMIZED and not _LOCALS & set(code.co_names):
                names = frame.f_locals
                yield from list(names.items())
                if sys.version_info < (3, 13):
                    names.clear()  # a copy, which would keep what the script deletes until the frame ends
            if id(frame.f_globals) not in modules:
                modules.add(id(frame.f_globals))
                yield from list(frame.f_globals.items())
        frame = frame.f_back


def _inside(value: Any) -> Iterable[tuple[str, Any]]:
    """Return what a container, a function's closure, or an object of the script's own class holds, with its place."""
    if isinstance(value, dict):
        return [(f"[{key!r}]", part) for key, part in islice(value.items(), _ELEMENTS_MAX)]
    if isinstance(value, list | tuple):
        return [(f"[{number}]", part) for number, part in enumerate(value[:_ELEMENTS_MAX])]
    if isinstance(value, MethodType):
        return [(".__self__", value.__self__)]
    if isinstance(value, FunctionType):
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=False)
        return [(f".{name}", cell.cell_contents) for name, cell in cells if _is_filled(cell)]
    module = sys.modules.get(getattr(type(value), "__module__", ""))
    if not _is_of_script(getattr(module, "__file__", None) or "<"):
        return []
    inside = list(getattr(value, "__dict__", {}).items())
    is_model = hasattr(
        value, "named_parameters"
    )  # has its own tensors in attributes of these names
    return [(f".{name}", part) for name, part in inside if not (is_model and name[0] == "_")]


def _is_filled(cell: Any) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def _is_of_script(file: str) -> bool:
    return not file.startswith(_LIBRARIES) and "/site-packages/" not in file
