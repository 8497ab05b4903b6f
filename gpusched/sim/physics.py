"""The simulated machine's delays and scaling, and the seam to what is trained on it. Times in (virtual) seconds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from gpusched.core import speed
from gpusched.core.speed import Scaling
from gpusched.errors import InputError

#: HyperSched (SoCC'19), Table 3: throughput on 1, 2, 4 and 8 V100s relative to one.
TABLE_3: Mapping[str, Mapping[int, float]] = {
    "resnet18": {1: 1.0, 2: 1.85, 4: 3.43, 8: 5.40},
    "resnet50": {1: 1.0, 2: 1.87, 4: 3.42, 8: 5.60},
    "resnet101": {1: 1.0, 2: 1.89, 4: 3.63, 8: 6.67},
    "shufflenet": {1: 1.0, 2: 1.92, 4: 3.61, 8: 6.08},
}

NEVER_STEP = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Delays:
    """Times of everything beside training."""

    #: From a launch to the first training step: processes, imports, process group.
    launch_s: float = 0.0
    #: The same for a trial that has run before: its checkpoint is loaded, too.
    resize_s: float = 0.0
    #: For each atom beyond the first.
    launch_per_atom_s: float = 0.0
    #: Training stands still for a checkpoint.
    save_s: float = 0.0
    #: From the last word of a trial to the end of its processes.
    exit_s: float = 0.0
    #: From the end of its processes until the devices are confirmed free.
    release_s: float = 0.0

    def launch(self, incarnation: int, atoms: int) -> float:
        """Return the time from the command to the first training step."""
        start_s = self.launch_s if incarnation <= 1 else self.resize_s
        return start_s + self.launch_per_atom_s * (atoms - 1)


@dataclass(slots=True, eq=False)
class SimulatedCurve:
    """A configuration's learning curve. ``step_time_s`` is on one atom.

    ``length``: steps after which its script ends by itself (None: it never does), with what ``ending``.
    """

    metric: Callable[[int], float]
    step_time_s: Callable[[int], float]
    length: int | None = None
    ending: Literal["finished", "failed"] = "finished"


class Workload(Protocol):
    """A kind of training. ``defaults``: options that suit it, for policies that have them."""

    name: str
    metric: str
    mode: Literal["max", "min"]
    defaults: Mapping[str, Any]

    def space(self, seed: int) -> Mapping[str, Any]:
        """Return the search space, in the words of a recipe."""
        ...

    def curve(self, trial: int, hparams: Mapping[str, Any], seed: int) -> SimulatedCurve:
        """Return the curve of a configuration: the same for the same arguments, whatever the policy."""
        ...


def parse_scaling(text: str) -> tuple[str | dict[int, float], Scaling]:
    """Read how training scales: as a recipe says it, and as a function.

    ``linear``, ``sqrt``, ``none``, a model of HyperSched's Table 3 (``resnet50``), or a table (``2:1.9,4:3.6``).
    Raises InputError.
    """
    if text in speed.NAMED:
        return text, speed.NAMED[text]
    points = dict(TABLE_3[text]) if text in TABLE_3 else _table(text)
    return points, speed.table(points)


def _table(text: str) -> dict[int, float]:
    points = {}
    for part in text.split(","):
        atoms, colon, throughput = part.partition(":")
        try:
            number, value = int(atoms), float(throughput)
        except ValueError:
            known = ", ".join([*speed.NAMED, *TABLE_3])
            what = f"'{part}' is not atoms:throughput" if colon else "unknown"
            raise InputError(
                f"scaling {text}: {what}; one of {known}, or a table such as 2:1.9,4:3.6"
            ) from None
        if number < 1 or not (math.isfinite(value) and value > 0):
            raise InputError(f"scaling {text}: '{part}' must be above 0 on at least 1 atom")
        points[number] = value
    return points
