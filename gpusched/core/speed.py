"""Speed as the search measures it: the time of a step on one atom, s(a), and To.

* ``s(a)``, normalised to s(1) = 1, is given (linear, sqrt, none, a table) or learnt (``auto``): Amdahl's law
  ``T(a)/T(1) = f + (1 - f)/a`` with the serial fraction f as the one unknown. Its prior is fitted to Table 3 of
  HyperSched (ResNet18 5.40x to ResNet101 6.67x on 8 GPUs: f = 0.03 to 0.07); every resize adds the f that its own
  measured step times imply, and the median of all of them counts.
* ``To`` (HyperSched section 4.3) is the median of the measured start and resize overheads, the wait for the release of
  the devices included: from the decision to the first report, less the time of the step itself.
* ``Ta`` (Algorithm 3) is the median measured time of a step, converted to one atom by s(a).
"""

from __future__ import annotations

import bisect
import math
from collections import deque
from collections.abc import Callable, Mapping

from gpusched.core.trial import TrialRecord

Scaling = Callable[[int], float]

#: f of Table 3's four models at 8 GPUs, as pseudo-measurements.
PRIOR_SERIAL_FRACTIONS = (0.069, 0.061, 0.028, 0.045)


def linear(atoms: int) -> float:
    return float(atoms)


def sqrt(atoms: int) -> float:
    return math.sqrt(atoms)


def none(atoms: int) -> float:
    return 1.0


def table(points: Mapping[int, float]) -> Scaling:
    """Return s(a) through the points, straight between them, level beyond the last; s(1) = 1 unless given."""
    known = sorted({1: 1.0, **points}.items())

    def scaling(atoms: int) -> float:
        place = bisect.bisect_left(known, (atoms, -math.inf))
        if place == len(known):
            return known[-1][1]
        right_atoms, right = known[place]
        if right_atoms == atoms or place == 0:
            return right
        left_atoms, left = known[place - 1]
        return left + (right - left) * (atoms - left_atoms) / (right_atoms - left_atoms)

    return scaling


NAMED: Mapping[str, Scaling] = {"linear": linear, "sqrt": sqrt, "none": none}


def _serial_fraction(atoms_a: int, atoms_b: int, ratio: float) -> float | None:
    """Return f of Amdahl's law where a step on b atoms takes ``ratio`` of one on a atoms; None if none follows.

    ratio = (f + (1-f)/b) / (f + (1-f)/a), solved for f and kept between 0 and 1.
    """
    inverse_a, inverse_b = 1.0 / atoms_a, 1.0 / atoms_b
    below = ratio * (1.0 - inverse_a) - (1.0 - inverse_b)
    if below == 0:
        return None
    fraction = (inverse_b - ratio * inverse_a) / below
    return min(1.0, max(0.0, fraction)) if math.isfinite(fraction) else None


class RunningMedian:
    """Median of the last ``window`` numbers; adding one costs O(window) at memory speed."""

    __slots__ = ("_recent", "_sorted", "_window")

    def __init__(self, window: int = 101) -> None:
        self._window = window
        self._recent: deque[float] = deque()
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self._recent)

    def add(self, value: float) -> None:
        if len(self._recent) == self._window:
            oldest = self._recent.popleft()
            del self._sorted[bisect.bisect_left(self._sorted, oldest)]
        self._recent.append(value)
        bisect.insort(self._sorted, value)

    @property
    def value(self) -> float | None:
        """The median (the lower one of two); None before the first number."""
        return self._sorted[(len(self._sorted) - 1) // 2] if self._sorted else None


class Speed:
    """Measured step times and overheads of one experiment, and s(a)."""

    def __init__(self, scaling: str | Mapping[int, float] = "auto") -> None:
        self.learns = scaling == "auto"
        self._given: Scaling | None = None
        if isinstance(scaling, str):
            self._given = None if self.learns else NAMED[scaling]
        else:
            self._given = table(scaling)
        self._fractions = RunningMedian()
        for fraction in PRIOR_SERIAL_FRACTIONS:
            self._fractions.add(fraction)
        self._step_on_one_atom = RunningMedian()
        self._overhead = RunningMedian()

    # ------------------------------------------------------------ answers

    def s(self, atoms: int) -> float:
        """Return the throughput on ``atoms`` atoms relative to one."""
        if self._given is not None:
            return self._given(atoms)
        fraction = self._fractions.value or 0.0
        return 1.0 / (fraction + (1.0 - fraction) / atoms)

    @property
    def step_on_one_atom_s(self) -> float | None:
        """Ta; None before the first step was measured."""
        return self._step_on_one_atom.value

    @property
    def overhead_s(self) -> float | None:
        """To; None before the first launch was measured."""
        return self._overhead.value

    @property
    def overhead(self) -> float:
        """To, taken as 0 while unknown."""
        return self._overhead.value or 0.0

    # ------------------------------------------------------------ measurements

    def learn(self, trial: TrialRecord, step_time_s: float | None, stride: int, now: float) -> None:
        """Learn the step time and, from an incarnation's first report, the overhead of its launch.

        ``stride``: steps since the trial's last report.
        """
        if step_time_s is None:
            if trial.steps_of_incarnation == 0 or trial.last_report_at is None:
                return
            step_time_s = now - trial.last_report_at
        if trial.doom is not None or not step_time_s > 0:
            return  # its devices may be lost; several reports read at once have no time between them
        if trial.steps_of_incarnation == 0 and trial.decided_at is not None:
            self.saw_overhead(now - trial.decided_at - step_time_s)
        elif trial.steps_of_incarnation == 1 and trial.step_time_before_s is not None:
            before, trial.step_time_before_s = trial.step_time_before_s, None
            self.saw_resize(before[0], before[1], trial.atoms, step_time_s)
        self.saw_step(len(trial.devices), step_time_s / stride)
        trial.step_time_s = step_time_s

    def saw_step(self, atoms: int, step_time_s: float) -> None:
        scaling = self._given or self.s
        self._step_on_one_atom.add(step_time_s * scaling(atoms))

    def saw_overhead(self, overhead_s: float) -> None:
        self._overhead.add(max(0.0, overhead_s))

    def saw_resize(
        self, atoms_before: int, before_s: float, atoms_after: int, after_s: float
    ) -> None:
        """Learn f from a trial whose step took ``before_s`` on a atoms and ``after_s`` on b."""
        if not self.learns or atoms_before == atoms_after or before_s <= 0:
            return
        fraction = _serial_fraction(atoms_before, atoms_after, after_s / before_s)
        if fraction is not None:
            self._fractions.add(fraction)
