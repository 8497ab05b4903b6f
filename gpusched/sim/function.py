"""Workload ``FILE.py:FUNCTION``: a Python function of the reader's own.

    SPACE = {"lr": {"loguniform": [1e-4, 1.0]}}             # as in a recipe; left out: one number u in 0..1
    METRIC, MODE, STEP_TIME = "accuracy", "max", 1.0         # may be left out

    def train(hp, step, random):                             # or (hp, step)
        return 1 - 1 / (hp["lr"] * step + 1)                 # the metric; or (metric, step time on one atom)

``random`` is a ``random.Random`` of this configuration and seed, so that every policy meets the same curve. The
function is called once for each step, in order.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any, Literal

from gpusched import plugins
from gpusched.errors import InputError
from gpusched.sim.workload import Curve
from gpusched.space.space import SpaceError, parse_space


class Function:
    """Raises InputError where file, function or one of the constants beside it are not as above."""

    def __init__(self, file: Path, function: str) -> None:
        self.name = f"{file}:{function}"
        module = plugins.module(file.absolute())
        self._call = self._find(module, function)
        self.metric = str(getattr(module, "METRIC", "score"))
        self.mode: Literal["max", "min"] = getattr(module, "MODE", "max")
        if self.mode not in ("max", "min"):
            raise InputError(f"{file}: MODE must be 'max' or 'min', not {self.mode!r}")
        self._step_time_s = _seconds(getattr(module, "STEP_TIME", 1.0), f"{file}: STEP_TIME")
        self.defaults: Mapping[str, Any] = {}
        self._space = getattr(module, "SPACE", {"u": {"uniform": [0.0, 1.0]}})
        try:
            parse_space(self._space)
        except SpaceError as error:
            raise InputError("\n".join(f"{file}: SPACE: {p}" for p in error.problems)) from None

    def _find(self, module: ModuleType, function: str) -> Callable[..., Any]:
        call = getattr(module, function, None)
        if not callable(call):
            found = [n for n, value in vars(module).items() if inspect.isfunction(value)]
            raise InputError(
                f"{self.name}: this file has no function '{function}'; "
                f"there are {', '.join(found) or 'none'}"
            )
        count = len(inspect.signature(call).parameters)
        if count not in (2, 3):
            raise InputError(
                f"{self.name}: must take (hparams, step) or (hparams, step, random), not {count} arguments"
            )
        return call if count == 3 else lambda hparams, step, random: call(hparams, step)

    def space(self, seed: int) -> Mapping[str, Any]:
        space: Mapping[str, Any] = self._space
        return space

    def curve(self, trial: int, hparams: Mapping[str, Any], seed: int) -> Curve:
        random = Random(f"{seed}/function/{trial}")
        known: list[tuple[float, float]] = []

        def at(step: int) -> tuple[float, float]:
            while len(known) < step:
                known.append(self._value(hparams, len(known) + 1, random))
            return known[step - 1]

        return Curve(lambda step: at(step)[0], lambda step: at(step)[1])

    def _value(self, hparams: Mapping[str, Any], step: int, random: Random) -> tuple[float, float]:
        try:
            value = self._call(hparams, step, random)
        except Exception as error:
            raise InputError(
                f"{self.name} failed at step {step} of {dict(hparams)}: {type(error).__name__}: {error}"
            ) from error
        metric, time_s = value if isinstance(value, tuple) and len(value) == 2 else (value, None)
        if metric is None:
            metric = math.nan
        try:
            metric = float(metric)
        except (TypeError, ValueError):
            raise InputError(
                f"{self.name} must return a number, or (number, seconds); at step {step} it returned {value!r}"
            ) from None
        if time_s is None:
            return metric, self._step_time_s
        return metric, _seconds(time_s, f"{self.name}: the step time at step {step}")


def _seconds(value: object, what: str) -> float:
    good = isinstance(value, int | float) and not isinstance(value, bool)
    if not good or not 0 < float(value) < math.inf:  # type: ignore[arg-type]
        raise InputError(f"{what} must be more than 0 seconds, not {value!r}")
    return float(value)  # type: ignore[arg-type]
