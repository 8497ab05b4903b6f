"""Recordings for the studies that replay traces: a workload trained to its end once, under ``fifo``, and kept.

That is HyperDrive's method (Middleware'17, 7.1): a trace of every configuration, replayed in other orders.
"""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from pathlib import Path

from kept import simulate_into

from gpusched.sim.setup import Setup

FOREVER_S = 30 * 86_400.0


@functools.cache
def record(function: str, configurations: int, steps: int) -> str:
    """The name of the trace workload of ``papers/FUNCTION``, recorded when first asked for; removed at exit."""
    runs = Path(tempfile.mkdtemp(prefix="gpusched-trace-"))
    atexit.register(shutil.rmtree, runs, ignore_errors=True)
    setup = Setup(
        policy="fifo",
        sampler="grid",
        options={"R": steps},
        workload=f"{Path(__file__).with_name(function.partition(':')[0])}:{function.partition(':')[2]}",
        atoms=configurations,
        deadline_s=FOREVER_S,
        max_trials=configurations,
    )
    _, folder = simulate_into(runs, setup)
    return f"trace:{folder}"
