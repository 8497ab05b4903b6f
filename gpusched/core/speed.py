"""Speed as the search measures it: the time of a step on one atom, s(a), and To.

* ``s(a)``, normalised to s(1) = 1, is given (linear, sqrt, none, a table) or learnt (``auto``): Amdahl's law
  ``T(a)/T(1) = f + (1 - f)/a`` with the serial fraction f as the one unknown; f > 1 where more atoms are slower. Its
  prior is what Table 3 of HyperSched gives (ResNet18 5.40x to ResNet101 6.67x on 8 GPUs: f = 0.03 to 0.07); every
  resize adds the f that its own measured step times imply, and the median of all counts.
* ``To`` (HyperSched section 4.3) is the median of the measured start and resize overheads, the wait for the release of
  the devices included: from the decision to the first report, less the time of a usual step: one after it.
* ``Ta`` (Algorithm 3) is the median measured time of a step, converted to one atom by s(a). The first step of a launch,
  which takes up to twice as long, counts only until there is another.
"""

from __future__ import annotations

import bisect
import math
import statistics
from collections import deque
from collections.abc import Callable, Mapping

from gpusched.core.trial import TrialRecord

Scaling = Callable[[int], float]

#: The middle of f of Table 3's four models at 8 GPUs (0.028 to 0.069).
PRIOR_SERIAL_FRACTION = 0.05
#: Most that is believed of f: where a step on two atoms takes twice and a half as long as on one.
_MOST_SERIAL = 4.0
#: A growth is taken back where two steps in a row take so many times as long as before.
SLOWER = 1.1


def table(points: Mapping[int, float]) -> Scaling:
    """Return s(a) through the points and s(1) = 1, straight between them, level beyond the last."""
    known = sorted({**points, 1: 1.0}.items())

    def scaling(atoms: int) -> float:
        place = bisect.bisect_left(known, (atoms, -math.inf))
        if place == len(known):
            return known[-1][1]
        right_atoms, right = known[place]
        if right_atoms == atoms:
            return right
        left_atoms, left = known[place - 1]
        return left + (right - left) * (atoms - left_atoms) / (right_atoms - left_atoms)

    return scaling


NAMED: Mapping[str, Scaling] = {"linear": float, "sqrt": math.sqrt, "none": lambda atoms: 1.0}


def _serial_fraction(atoms_a: int, atoms_b: int, ratio: float) -> float | None:
    """Return f of Amdahl's law where a step on b atoms takes ``ratio`` of one on a atoms; None if none follows.

    ratio = (f + (1-f)/b) / (f + (1-f)/a), solved for f.
    """
    inverse_a, inverse_b = 1.0 / atoms_a, 1.0 / atoms_b
    below = ratio * (1.0 - inverse_a) - (1.0 - inverse_b)
    fraction = (inverse_b - ratio * inverse_a) / below if below else math.inf
    return min(_MOST_SERIAL, max(0.0, fraction)) if math.isfinite(fraction) else None


class RunningMedian:
    """Median of the last 101 numbers (the lower one of two): ``value``; None before the first."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=101)
        self.value: float | None = None

    def add(self, value: float) -> None:
        self._recent.append(value)
        self.value = statistics.median_low(self._recent)


class Speed:
    """Measured step times and overheads of one search, and s(a)."""

    def __init__(self, scaling: str | Mapping[int, float] = "auto") -> None:
        #: None: learnt.
        self._given = NAMED.get(scaling) if isinstance(scaling, str) else table(scaling)
        self._fractions = RunningMedian()
        self._fractions.add(PRIOR_SERIAL_FRACTION)
        self._steps, self._overheads = RunningMedian(), RunningMedian()
        #: Ta and To; None before the first step, and the first launch, were measured.
        self.step_on_one_atom_s: float | None = None
        self.overhead_s: float | None = None
        #: By trial: atoms, step time and the usual one before a resize, to compare with two reports after it.
        self._before: dict[int, tuple[int, float, float]] = {}
        #: By trial: seconds from the decision to the first report of its first launch, and the steps in them.
        self._unpriced: dict[int, tuple[float, int]] = {}

    # ------------------------------------------------------------ answers

    def s(self, atoms: int) -> float:
        """Return the throughput on ``atoms`` atoms relative to one."""
        if self._given is not None:
            return self._given(atoms)
        fraction = self._fractions.value or 0.0
        return 1.0 / (fraction + (1.0 - fraction) / atoms)

    # ------------------------------------------------------------ measurements

    def learn(self, trial: TrialRecord, step_time_s: float, stride: int, now: float) -> int:
        """Learn the step time and, from an incarnation's first report, the overhead of its launch.

        ``step_time_s``: of each of the report's ``stride`` steps. Return the number of atoms to go back to where the
        trial has grown and is slower than before; 0: none.
        """
        # The devices of a doomed trial may be lost.
        if trial.doom is not None or not step_time_s > 0:
            return 0
        if trial.steps_since_launch == 0:
            self._learn_launch(trial, step_time_s, stride, now)
            return 0
        atoms, back = len(trial.devices), 0
        if trial.id in self._before:
            before, before_s, usual_s = self._before[trial.id]
            is_slower = before < atoms and step_time_s > SLOWER * max(before_s, usual_s)
            # A rare evaluation makes one report slow, not two.
            if not is_slower or trial.steps_since_launch > stride:
                del self._before[trial.id]
                self.saw_resize(before, before_s, atoms, step_time_s)
                back = before if is_slower else 0
        if trial.id in self._unpriced:
            took_s, steps = self._unpriced.pop(trial.id)
            self._took(took_s - steps * step_time_s)
        self._steps.add(step_time_s * self.s(atoms))
        self.step_on_one_atom_s = self._steps.value
        trial.step_time_s = step_time_s
        return back

    def _learn_launch(self, trial: TrialRecord, first_s: float, stride: int, now: float) -> None:
        """Learn from the first report of a launch, whose steps take longer than the others.

        What a usual step of a new trial takes is known at its second report; To is the least that can be, until then.
        """
        atoms, usual_s = len(trial.devices), trial.step_time_s
        if (before := self._before.get(trial.id)) is not None:
            usual_s = before[1] * self.s(before[0]) / self.s(atoms)
        took_s = None if trial.decided_at is None else now - trial.decided_at
        if took_s is not None and usual_s is not None:
            self._took(took_s - stride * min(first_s, usual_s))
        elif took_s is not None:
            self._unpriced[trial.id] = took_s, stride
            if self._overheads.value is None:
                known, least_s = self.overhead_s, max(0.0, took_s - stride * first_s)
                self.overhead_s = least_s if known is None else min(known, least_s)
        trial.step_time_s = first_s if usual_s is None else min(first_s, usual_s)
        if self._steps.value is None:  # the shortest first step counts, until there is another step
            known, on_one_s = self.step_on_one_atom_s, first_s * self.s(atoms)
            self.step_on_one_atom_s = on_one_s if known is None else min(known, on_one_s)

    def _took(self, overhead_s: float) -> None:
        self._overheads.add(max(0.0, overhead_s))
        self.overhead_s = self._overheads.value

    def resizes(self, trial: TrialRecord) -> None:
        """Remember the speed of a trial that leaves for another size, unless its last resize is still to be judged."""
        if trial.trained_atoms and trial.step_time_s is not None and trial.id not in self._before:
            reports = trial.steps_since_launch // trial.stride
            lately_s = [*trial.intervals_s][1 - reports :] if reports > 1 else []
            usual_s = statistics.median(lately_s or [0.0]) / trial.stride
            self._before[trial.id] = (trial.trained_atoms, trial.step_time_s, usual_s)

    def saw_resize(
        self, atoms_before: int, before_s: float, atoms_after: int, after_s: float
    ) -> None:
        """Learn f from a trial whose step took ``before_s`` on a atoms and ``after_s`` on b."""
        if self._given is not None or atoms_before == atoms_after or before_s <= 0:
            return
        fraction = _serial_fraction(atoms_before, atoms_after, after_s / before_s)
        if fraction is not None:
            self._fractions.add(fraction)
