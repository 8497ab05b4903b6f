"""Score(k) of HyperSched, section 6, for trials of any tool: sleeps for a step, and notes each score with its time.

torch is imported as by any script that trains. ``PEERS_NOTES``: the folder of the notes, one file a process.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch  # noqa: F401

#: Steps of the longest trial, the first rung, and how many go on from a rung: one in ETA.
R_STEPS, FIRST_RUNG, ETA = 500, 5, 4
NAMES = ("b0_quantile", "b1", "b2")


def steps(
    hparams: Mapping[str, float], step_s: float = 0.1, first: int = 1
) -> Iterator[tuple[int, float]]:
    """Train: yield step and score, after the time that a step takes; the score is noted as it is yielded."""
    b0 = -0.1 * math.log1p(-hparams["b0_quantile"])
    b1, b2 = hparams["b1"], hparams["b2"]
    notes = Path(os.environ["PEERS_NOTES"]) / f"{os.getpid()}-{time.monotonic_ns()}"
    with notes.open("a") as file:
        for k in range(first, R_STEPS + 1):
            time.sleep(step_s)
            score = (2.0 - (1.0 / (0.01 * b0 * k + 0.1 * b1 + 0.5) + 0.01 * b2)) / 2.0
            print(time.clock_gettime(time.CLOCK_BOOTTIME), k, score, file=file, flush=True)
            yield k, score
