"""Workloads by the name they have on the command line.

``synthetic``, ``synthetic:SECONDS`` (of a step), ``trace:DIR``, ``FILE.py:FUNCTION``.
"""

from __future__ import annotations

import functools
from pathlib import Path

from gpusched.errors import InputError
from gpusched.sim.workload import Synthetic, Workload
from gpusched.text import did_you_mean


@functools.cache
def load_workload(name: str) -> Workload:
    """Loaded once in a process. Raises InputError, or DamagedState for a trace that cannot be read."""
    kind, _, rest = name.partition(":")
    if kind == "synthetic":
        return _synthetic(rest)
    if kind == "trace" and rest:
        from gpusched.sim.trace import Trace

        return Trace(Path(rest))
    file, _, function = name.rpartition(":")
    if file.endswith(".py") and function:
        from gpusched.sim.function import Function

        return Function(Path(file), function)
    if kind == "trace":
        raise InputError(
            f"{name}: a trace needs the folder of a recorded experiment, as in trace:runs/NAME"
        )
    hint = did_you_mean(name, ["synthetic", "trace"])
    raise InputError(
        f"no workload is called '{name}'{hint or ';'} there are synthetic, trace:DIR (a recorded experiment's folder) "
        "and FILE.py:FUNCTION"
    )


def _synthetic(step_time: str) -> Synthetic:
    if not step_time:
        return Synthetic()
    try:
        step_time_s = float(step_time)
    except ValueError:
        step_time_s = 0.0
    if not 0 < step_time_s < float("inf"):
        raise InputError(f"synthetic:{step_time}: the time of a step must be a number above 0")
    return Synthetic(step_time_s)
