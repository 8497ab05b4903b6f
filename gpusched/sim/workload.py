"""Workloads: what the trials of a simulated experiment would do if they were trained.

A workload names the search space (as in a recipe, so that a simulated run can be replayed from its folder alone) and
turns a configuration into a learning curve. By name on the command line: ``synthetic``, ``synthetic:SECONDS`` (of a
step) is HyperSched's (SoCC'19, section 6); ``FILE.py:FUNCTION`` a Python function of the reader's own (``Function``).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any, Literal

from gpusched import plugins
from gpusched.errors import InputError
from gpusched.sim.physics import SimulatedCurve, Workload
from gpusched.space.space import SpaceError, parse_space
from gpusched.text import did_you_mean


class Synthetic:
    """HyperSched, section 6: ``Score(k) = (2 - (1 / (0.01 b0 k + 0.1 b1 + 0.5) + 0.01 b2)) / 2``.

    b1 and b2 are uniform in 0..1, b0 is exponential with a scale of 0.1. A recipe's space knows no exponential
    distribution, so b0 is drawn by its quantile. A step takes 0.1 time units on one atom.
    """

    metric = "score"
    mode: Literal["max", "min"] = "max"
    space: Mapping[str, Any] = {key: {"uniform": [0.0, 1.0]} for key in ("b0_quantile", "b1", "b2")}
    defaults: Mapping[str, Any] = {"r": 5, "R": 500, "eta": 4.0, "metric_min": 0, "metric_max": 1}

    def __init__(self, step_time_s: float = 0.1) -> None:
        self.step_time_s = step_time_s

    def curve(self, trial: int, hparams: Mapping[str, Any], seed: int) -> SimulatedCurve:
        b0 = -0.1 * math.log1p(-hparams["b0_quantile"])
        b1, b2 = float(hparams["b1"]), float(hparams["b2"])
        step_time_s = self.step_time_s

        def score(step: int) -> float:
            return (2.0 - (1.0 / (0.01 * b0 * step + 0.1 * b1 + 0.5) + 0.01 * b2)) / 2.0

        return SimulatedCurve(score, lambda step: step_time_s)


@functools.cache
def load_workload(name: str) -> Workload:
    """Loaded once in a process. Raises InputError."""
    kind, _, rest = name.partition(":")
    if kind == "synthetic":
        step_s: object = rest
        with contextlib.suppress(ValueError):
            step_s = float(rest or 0.1)
        return Synthetic(_seconds(step_s, f"{name}: the time of a step"))
    file, _, function = name.rpartition(":")
    if file.endswith(".py") and function:
        return Function(Path(file), function)
    hint = did_you_mean(name, ["synthetic"])
    raise InputError(
        f"no workload is called '{name}'{hint or ';'} there are synthetic and FILE.py:FUNCTION"
    )


class Function:
    """Workload ``FILE.py:FUNCTION``: a Python function of the reader's own (``docs/simulator.md``).

    Its ``random`` is a ``random.Random`` of a configuration and seed, so that every policy meets the same curve. The
    function is called once for each step, in order. Raises InputError where file, function or constants are not so.
    """

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
        self.space: Mapping[str, Any] = getattr(module, "SPACE", {"u": {"uniform": [0.0, 1.0]}})
        try:
            parse_space(self.space)
        except SpaceError as error:
            raise InputError(
                "\n".join(f"{file}: SPACE: {line}" for line in str(error).splitlines())
            ) from None

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

    def curve(self, trial: int, hparams: Mapping[str, Any], seed: int) -> SimulatedCurve:
        random = Random(f"{seed}/function/{trial}")
        known: list[tuple[float, float]] = []

        def at(step: int) -> tuple[float, float]:
            while len(known) < step:
                known.append(self._value(hparams, len(known) + 1, random))
            return known[step - 1]

        return SimulatedCurve(lambda step: at(step)[0], lambda step: at(step)[1])

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
