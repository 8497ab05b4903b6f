"""Shapes of learning curves, for ``foresight``: each rises from 0 to 1 at a scale of steps.

Saturating (exponential, its square root, a power, a hyperbola), taking off late (a sigmoid), or rising and falling
again; each at every power of two as its scale.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

#: Scales of the shapes, in steps.
SCALES: Array = 2.0 ** np.arange(0, 13)
#: How likely each shape is before any curve was seen; the scales of a family are equally likely.
USUAL: Array = np.concatenate(
    [
        np.full(count, share / count)
        for share, count in ((0.3, 13), (0.15, 13), (0.15, 13), (0.15, 13), (0.15, 13), (0.1, 9))
    ]
)
#: Points of an octave at which shapes are tabulated.
FINE = 16


def shapes(steps: Array) -> Array:
    """Return each shape (a row) at each step (a column)."""
    x = steps[None, :] / SCALES[:, None]
    families = (
        1 - np.exp(-x),
        1 - np.exp(-np.sqrt(x)),
        1 - (1 + x) ** -0.5,
        x / (1 + x),
        1 / (1 + x**-3.0),
        np.exp(-0.12 * np.log(x[2:-2]) ** 2),
    )
    return np.concatenate(families)


TABLE: Array = shapes(2.0 ** (np.arange(0, 24 * FINE) / FINE)).T.copy()


def shapes_at(steps: Array) -> Array:
    """Return each shape (a column) at each step (a row), to a sixteenth of an octave."""
    place = np.rint(np.log2(np.maximum(1.0, steps)) * FINE).astype(int)
    found: Array = TABLE[np.minimum(place, len(TABLE) - 1)]
    return found


@cache
def shapes_between(low: int, high: int) -> Array:
    """Return the mean of each shape over the steps after ``low``, up to ``high``."""
    count = min(high - low, 64)
    found: Array = shapes(high - (high - low) * np.arange(count) / count).mean(axis=1)
    return found


def shape_at(shape: int, step: int) -> float:
    """Return one shape at a step, between the points at which it is tabulated."""
    place = min(math.log2(max(1, step)) * FINE, len(TABLE) - 1.001)
    below = int(place)
    low, high = float(TABLE[below, shape]), float(TABLE[below + 1, shape])
    return low + (place - below) * (high - low)
