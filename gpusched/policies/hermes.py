"""``hermes``: many trials time-share each device, the fastest converging first (Hermes, Electronics 2021, section 3).

    3.2, Algorithms 1, 2   at most G_thres = 4 trials a device are under way; others wait to begin   ``_may_draw``
    3.3                    loss_j(i) = (max L_j(i) + min L_j(i)) / 2 over the losses of quantum i    ``Job.end_quantum``
                           C_j(i) = (loss_j(i-1) - loss_j(i)) / |L_j(i)|
                           C_j(0) = (max L_j(0) - min L_j(0)) / |L_j(0)|
    3.3, Algorithm 3       at the end of each quantum (10 s) the trial with the highest C runs next  ``on_report``
    3.3                    the quantum grows as the loss falls by user-set percentages               ``Job.grow``

Trials are not tied to a device: there is one queue. Where the paper is silent: a trial that has not had its first
quantum comes before all that have; a first quantum lasts until there are two losses; with equal C the one that has
waited longest runs. Where more is better the loss is ``metric_max`` less the metric. A quantum is at least what a
hand-over takes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpusched.core.decisions import Decision, Pause, Resume, Start, TrialView, View
from gpusched.policies import base

#: Factor of a quantum at each milestone.
GROWTH = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(base.Options):
    """``R`` most steps of a trial; ``quantum_s`` seconds a turn; ``trials_per_device`` under way."""

    quantum_s: float = 10.0
    trials_per_device: int = 4
    #: Shares of its first value by which the loss must have fallen for the quantum to double.
    milestones: tuple[float, ...] = (0.5, 0.75, 0.9)
    #: The best possible metric, where more is better: what is missing to it counts as the loss.
    metric_max: float = 1.0

    def problems(self) -> Iterator[base.BadOption]:
        yield from base.Options.problems(self)
        if not 0 < self.quantum_s < math.inf:
            yield "quantum_s", f"must be more than 0 s, not {self.quantum_s:g}; the paper has 10"
        if self.trials_per_device < 1:
            yield "trials_per_device", f"must be at least 1, not {self.trials_per_device}"
        rising = list(self.milestones) == sorted(set(self.milestones))
        if not rising or not all(0 < share < 1 for share in self.milestones):
            yield (
                "milestones",
                f"must rise and lie between 0 and 1, not {', '.join(map('{:g}'.format, self.milestones))}",
            )


@dataclass(slots=True)
class Job:
    """Convergence and quantum of a trial."""

    quantum_s: float
    #: C of its latest quantum: what its loss fell by, a report. Infinite before the first is over.
    speed: float = math.inf
    quanta: int = 0
    #: Milestones passed.
    passed: int = 0
    #: When the present quantum began; None: it has not run yet, or does not run.
    began_s: float | None = None
    _first: float | None = None
    _last: float | None = None
    #: Losses of the present quantum: how many, the lowest, the highest.
    _count: int = 0
    _low: float = math.inf
    _high: float = -math.inf

    def saw(self, loss: float | None) -> None:
        """A report of the present quantum; None: its loss was not finite."""
        if loss is None:
            return
        if self._first is None:
            self._first = loss
        self._count += 1
        self._low, self._high = min(self._low, loss), max(self._high, loss)

    def grow(self, loss: float | None, milestones: Sequence[float]) -> None:
        """ "The milestones are set by the user as the percentage decrease of the loss"."""
        if loss is None or self._first is None or self._first <= 0:
            return
        fallen = (self._first - loss) / self._first
        while self.passed < len(milestones) and fallen >= milestones[self.passed]:
            self.passed += 1
            self.quantum_s *= GROWTH

    def is_over(self, now_s: float, at_least_s: float) -> bool:
        """Tell whether the present quantum is over, and long enough to say something."""
        if self.began_s is None or now_s - self.began_s < max(self.quantum_s, at_least_s):
            return False
        return self.quanta > 0 or self._count != 1

    def end_quantum(self, now_s: float) -> None:
        """The equations of section 3.3; the next quantum begins."""
        if self._count == 0:
            self.speed = -math.inf
        else:
            before = self._last
            self._last = 0.5 * self._high + 0.5 * self._low  # loss_j(i)
            fall = self._high - self._low if before is None else before - self._last
            self.speed = fall / self._count
        self._count, self._low, self._high = 0, math.inf, -math.inf
        self.quanta += 1
        self.began_s = now_s


def _falls(speed: float) -> str:
    return f"falls by {speed:.3g} a report" if speed > -math.inf else "is not finite"


class Hermes(base.Policy):
    """One queue for all devices, ordered by convergence."""

    options_type = Options
    options: Options

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._jobs: dict[int, Job] = {}
        #: When preempted trials left.
        self._left_at: dict[int, float] = {}

    def job(self, trial: int) -> Job:
        """Return the job of a trial."""
        return self._jobs.setdefault(trial, Job(self.options.quantum_s))

    # ------------------------------------------------------------ Algorithm 3

    def on_report(self, view: View, trial: TrialView) -> Sequence[Decision]:
        options = self.options
        done = base.ended(trial, options.R)
        if done:
            return done
        job, loss = self.job(trial.id), self._loss(view, trial)
        if job.began_s is None:
            job.began_s = trial.up_at if trial.up_at is not None else view.now
        job.saw(loss)
        job.grow(loss, options.milestones)
        handover_s = view.overhead_s + trial.save_s
        if not job.is_over(view.now, handover_s):
            return base.NOTHING
        job.end_quantum(view.now)
        challenger = self._challenger(view)
        if challenger is None or challenger < job.speed:
            return base.NOTHING
        new = "the next one has not had a turn yet"
        other = new if challenger == math.inf else f"that of the next one {_falls(challenger)}"
        return (Pause(trial.id, f"pauses: its loss {_falls(job.speed)}, {other}"),)

    def _loss(self, view: View, trial: TrialView) -> float | None:
        if trial.metric is None:
            return None
        return trial.metric if view.rules.sign < 0 else self.options.metric_max - trial.metric

    def _challenger(self, view: View) -> float | None:
        """Return C of the first trial in the queue for which no atom is free or coming; None if each has one."""
        smallest = view.rules.smallest
        if view.atoms_free >= smallest:
            return None
        served = view.atoms_coming // smallest
        new = max(0, min(view.draws_left, self._most(view) - self._under_way(view)))
        if served < new:
            return math.inf
        waiting = self._waiting(view)[served - int(new) :]
        return self.job(waiting[0]).speed if waiting else None

    # ------------------------------------------------------------ Algorithms 1 and 2

    def on_capacity(self, view: View) -> Sequence[Decision]:
        if view.can_draw and self._under_way(view) < self._most(view):
            return (Start(1, "its first turn"),)
        for trial in self._waiting(view)[:1]:
            speed = self.job(trial).speed
            why = f"its turn: its loss {_falls(speed)}, the fastest that waits"
            return (Resume(trial, 1, "its first turn" if speed == math.inf else why),)
        return base.NOTHING

    def _most(self, view: View) -> int:
        """G_thres: "we heuristically set the maximum number of jobs per GPU"."""
        return self.options.trials_per_device * (view.atoms_total // view.rules.smallest)

    def _under_way(self, view: View) -> int:
        return len(view.live) + len(view.paused)

    def _waiting(self, view: View) -> list[int]:
        """Return the trials that wait, the highest C first: at most G_thres a device are under way."""
        able = (number for number, trial in view.paused.items() if trial.may_resume)
        return sorted(able, key=lambda n: (-self.job(n).speed, self._left_at.get(n, 0.0), n))

    def on_exit(self, view: View, trial: TrialView) -> Sequence[Decision]:
        self.job(trial.id).began_s = None
        self._left_at[trial.id] = view.now
        return base.NOTHING
