"""The task that ``bench_peers.py`` hands to every tool (``PEERS_TASK``), and the notes of each score with its time.

``PEERS_NOTES``: the folder of the notes, one file a launch. ``train`` is how a trial of any tool trains.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

TASK = json.loads(os.environ["PEERS_TASK"])
SPACE: Mapping[str, Mapping[str, Any]] = TASK["space"]
#: Steps of the first rung and of the longest trial; one in ETA goes on from a rung; trials at a time.
FIRST_RUNG, R_STEPS, ETA, SLOTS = TASK["r"], TASK["R"], TASK["eta"], TASK["slots"]


def space(**domains: Callable[..., Any]) -> dict[str, Any]:
    """Return the space in the words of a tool: its function for each kind of domain that a recipe has."""
    return {
        name: domains[kind](*values)
        for name, domain in SPACE.items()
        for kind, values in domain.items()
    }


def train(
    hparams: Mapping[str, Any], report: Callable[[int, float], object], trial: Any = None
) -> None:
    """Train by the task's module, and report every step with its score, which is noted first (by rank 0).

    Args:
        hparams: One configuration.
        report: The tool's; an exception that it raises ends the trial.
        trial: The one of gpusched, which may be resized and goes on from its checkpoint; no other tool has one.
    """
    is_first = os.environ.get("RANK", "0") == "0"
    name = f"{os.getpid()}-{time.monotonic_ns()}" if is_first else os.devnull
    with (Path(os.environ["PEERS_NOTES"]) / name).open("a") as file:

        def noted(step: int, score: float) -> None:
            print(time.clock_gettime(time.CLOCK_BOOTTIME), step, score, file=file, flush=True)
            report(step, score)

        import recipe  # torch with it

        recipe.train(hparams, noted, trial)
