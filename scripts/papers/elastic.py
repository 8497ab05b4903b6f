"""The elastic baselines of SEER (SoCC'21, 6.3): elastic grid search and elastic Hyperband. Times in minutes.

``e_grid``: T/2 for as many trials as the budget allows on p_min atoms each, T/2 for the best of them on p_max.
``e_hyperband``: all brackets of Hyperband at once on p_min atoms a trial, stages by wall-clock; R is "the largest r
which is less than the deadline but also so that the cost is less than the given budget". Ours: where the budget is
enough for several of these, every bracket begins with so many times as many trials.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from gpusched import policies
from gpusched.core.decisions import Complete, Decision, Resize, Start, Stop, TrialView, View, WakeAt
from gpusched.core.trial import TrialState
from gpusched.policies import base

ETA = 4.0


@dataclass(frozen=True, slots=True)
class Stage:
    """Until ``end_min`` ``trials`` train on ``atoms`` each."""

    end_min: float
    trials: int
    atoms: int


Bracket = tuple[Stage, ...]


def peak(plan: Sequence[Bracket]) -> int:
    return sum(bracket[0].trials * bracket[0].atoms for bracket in plan)


def cost(bracket: Bracket) -> float:
    """Return the atom-minutes of a bracket."""
    begins = (0.0, *(stage.end_min for stage in bracket))
    return sum(
        (stage.end_min - begin) * stage.trials * stage.atoms
        for stage, begin in zip(bracket, begins, strict=False)
    )


def grid(T: float, B: float, p_min: int, p_max: int) -> list[Bracket]:
    trials = int((B - p_max * T / 2) / (p_min * T / 2) + 1e-9)
    return [(Stage(T / 2, max(1, trials), p_min), Stage(T, 1, p_max))]


def hyperband(T: float, B: float, p_min: int, t_min: float) -> list[Bracket]:
    def plan(longest_min: float, times: int = 1) -> list[Bracket]:
        """Hyperband (Li et al., JMLR 2018), Algorithm 1: brackets s = s_max .. 0 of s + 1 halvings."""
        s_max = int(math.log(longest_min / t_min, ETA) + 1e-9)
        return [
            tuple(
                Stage(longest_min * ETA ** (i - s), max(1, int(first / ETA**i)) * times, p_min)
                for i in range(s + 1)
            )
            for s in range(s_max, -1, -1)
            for first in [math.ceil((s_max + 1) / (s + 1) * ETA**s - 1e-9)]
        ]

    longest_min = T
    while longest_min > t_min and sum(map(cost, plan(longest_min))) > B:
        longest_min *= 0.99
    times = max(1, int(B / sum(map(cost, plan(longest_min)))))
    return plan(longest_min, times)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(base.Options):
    """T in minutes, B in atom-minutes."""

    T: float = 30.0
    B: float = 480.0
    p_min: int = 1
    p_max: int = 4
    t_min: float = 1.0

    def plan(self, policy: str) -> list[Bracket]:
        if policy == "e_grid":
            return grid(self.T, self.B, self.p_min, self.p_max)
        return hyperband(self.T, self.B, self.p_min, self.t_min)


class Elastic(base.Policy):
    """Every bracket of a plan at once, each stage until its time is over."""

    name: ClassVar[str]
    options_type = Options
    options: Options

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.plan = options.plan(self.name)
        self._stage = [0] * len(self.plan)
        self._members: list[list[int]] = [[] for _ in self.plan]
        self._started = [0] * len(self.plan)

    def on_report(self, view: View, trial: TrialView) -> Sequence[Decision]:
        return base.complete_at(trial, self.options.R)

    def on_capacity(self, view: View) -> Sequence[Decision]:
        for place, bracket in enumerate(self.plan):
            if self._stage[place] == 0 and self._started[place] < bracket[0].trials:
                self._started[place] += 1
                woken = () if view.wake_at is not None else (WakeAt(self._next_end_s()),)
                return (Start(bracket[0].atoms, f"bracket {place}", tag=place), *woken)
        return self._grow(view)

    def _grow(self, view: View) -> Sequence[Decision]:
        """Give a trial the atoms of its stage as soon as they are there."""
        for place, bracket in enumerate(self.plan):
            if self._stage[place] == len(bracket):
                continue
            atoms = bracket[self._stage[place]].atoms
            for trial in (view.trials[n] for n in self._members[place]):
                more = atoms - trial.atoms
                if trial.state is TrialState.RUNNING and 0 < more <= view.atoms_free:
                    return (Resize(trial.id, atoms, f"stage {self._stage[place] + 1}"),)
        return base.NOTHING

    def _next_end_s(self) -> float:
        ends = [
            60.0 * bracket[stage].end_min
            for bracket, stage in zip(self.plan, self._stage, strict=True)
            if stage < len(bracket)
        ]
        return min(ends, default=math.inf)

    def on_wake(self, view: View) -> Sequence[Decision]:
        decisions: list[Decision] = []
        for place, bracket in enumerate(self.plan):
            stage = self._stage[place]
            if stage < len(bracket) and 60.0 * bracket[stage].end_min <= view.now + 1e-6:
                self._stage[place] += 1
                decisions += self._end(view, place)
        ends_s = self._next_end_s()
        return (*decisions, WakeAt(ends_s)) if math.isfinite(ends_s) else decisions

    def _end(self, view: View, place: int) -> Iterable[Decision]:
        """The best of a bracket go on to its next stage, the others are out."""
        bracket, stage = self.plan[place], self._stage[place]
        if stage == 1:
            self._members[place] = [n for n, trial in view.trials.items() if trial.tag == place]
        ranked = [view.trials[n] for n in self._members[place] if not view.trials[n].is_final]
        ranked.sort(key=lambda trial: (-trial.score, trial.id))
        if stage == len(bracket):
            yield from (Complete(trial.id, "its bracket is over") for trial in ranked)
            return
        kept = bracket[stage].trials
        self._members[place] = [trial.id for trial in ranked[:kept]]
        yield from (Stop(trial.id, f"out after stage {stage}") for trial in ranked[kept:])


class Grid(Elastic):
    name = "e_grid"


class Hyperband(Elastic):
    name = "e_hyperband"


policies.REGISTRY = {
    **policies.REGISTRY,
    "e_grid": (__name__, "Grid"),
    "e_hyperband": (__name__, "Hyperband"),
}
