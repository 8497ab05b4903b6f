"""SEER's plan (SoCC'21, Algorithms 2 and 3): how long, how many trials, on how many atoms.

Times in minutes, budgets in atom-minutes, as in the paper. Two remarks:

* ``floor(B[i] / (K t1 P[i]))`` is computed with a tolerance: in the paper's own example it is 8, give or take rounding.
* The bracket budgets printed in section 3.4 ([17.142, 34.283, 11.432]) contradict Algorithm 3 ([34.29, 34.29, 11.43]);
  the trial counts printed there, [8, 4], agree with Algorithm 3.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from gpusched.text import count

TOLERANCE = 1e-9
#: Budgets tried when a plan is cut, down to a four-hundredth.
TRIED_BUDGETS = 600


@dataclass(frozen=True, slots=True)
class Arguments:
    """T, B and the optional arguments of Algorithm 2."""

    deadline: float
    budget: float
    eta: float = 4.0
    nu: float = 2.0
    p_min: int = 1
    p_max: int | None = None
    t_min: float = 1.0


@dataclass(frozen=True, slots=True)
class PlannedBracket:
    """``trials`` begin on ``atoms`` atoms each."""

    atoms: int
    trials: int


@dataclass(frozen=True, slots=True)
class Plan:
    """``stages`` (K) rounds, the first of ``first_stage_min`` (t1) minutes, each ``eta`` times as long as the last."""

    stages: int
    first_stage_min: float
    brackets: tuple[PlannedBracket, ...]
    eta: float
    budget: float

    @property
    def trials(self) -> int:
        return sum(bracket.trials for bracket in self.brackets)

    @property
    def peak(self) -> int:
        """Most atoms in use at once: those of the first stage."""
        return sum(bracket.atoms * bracket.trials for bracket in self.brackets)

    @property
    def used_budget(self) -> float:
        """Atom-minutes of all stages together."""
        return sum(
            self.size(bracket, stage) * bracket.atoms * self.stage_min(stage)
            for stage in range(1, self.stages + 1)
            for bracket in self.brackets
        )

    def stage_min(self, stage: int) -> float:
        """Algorithm 1, line 8: stage k takes t1 * eta^(k-1)."""
        return float(self.first_stage_min * self.eta ** (stage - 1))

    def stage_end_min(self, stage: int) -> float:
        """Minutes from the beginning to the end of a stage, counted from 1."""
        return sum(self.stage_min(k) for k in range(1, stage + 1))

    def size(self, bracket: PlannedBracket, stage: int) -> int:
        """Trials of a bracket in a stage: floor(N[i] / eta^(k-1))."""
        return int(bracket.trials / self.eta ** (stage - 1) + TOLERANCE)


def largest_R(deadline: float, budget: float, eta: float, p_min: int, t_min: float) -> float:
    """Algorithm 2, line 2: the largest R that fits both the deadline and the budget; 0 if none above 1 does.

    With K = ceil(log_eta R) fixed, both conditions are linear in R; K grows while some R in (eta^(K-1), eta^K] fits.
    """
    best, stages = 0.0, 1
    while stages < 200:
        by_time = deadline / t_min * (eta - 1.0) / eta / (1.0 - eta**-stages)
        by_budget = budget / t_min / (p_min * stages)
        largest = min(by_time, by_budget, eta**stages)
        # R = 1 is the least with a stage at all: one trial for t_min.
        if largest <= eta ** (stages - 1) * (1.0 - TOLERANCE):
            break
        best = largest
        stages += 1
    return best


def make_plan(given: Arguments) -> Plan | None:
    """Algorithm 2; None where not even one trial fits into deadline and budget."""
    eta = given.eta
    R = largest_R(given.deadline, given.budget, eta, given.p_min, given.t_min)
    if R <= 0:
        return None
    stages = max(1, math.ceil(math.log(R, eta) - TOLERANCE))
    t_1 = given.t_min * R * eta ** -(stages - 1)
    first_budget = given.p_min * given.t_min * R * stages
    brackets = []
    for atoms, share in _bracket_budgets(given, first_budget):
        trials = int(share / (stages * t_1 * atoms) + TOLERANCE)
        if trials > 0:
            brackets.append(PlannedBracket(atoms, trials))
    return Plan(stages, t_1, tuple(brackets), eta, given.budget)


def bracket_count(budget: float, first_budget: float, nu: float) -> int:
    """Algorithm 3, line 2: q*, the largest q with q * nu^(q-1) <= B / B0."""
    q = 1
    while q < 64 and (q + 1) * nu**q <= budget / first_budget * (1.0 + TOLERANCE):
        q += 1
    return q


def _bracket_budgets(given: Arguments, first_budget: float) -> Iterator[tuple[int, float]]:
    """Algorithm 3: atoms a trial and budget of each bracket."""
    budget, nu, p_min = given.budget, given.nu, given.p_min
    most = math.inf if given.p_max is None else float(given.p_max)
    q = bracket_count(budget, first_budget, nu)
    if p_min * nu ** (q - 1) < most:
        sizes = [p_min * nu**i for i in range(q)] + [min(most, p_min * nu**q)]
        share = first_budget * nu ** (q - 1)
        shares = [share] * q + [max(0.0, budget - q * share)]
    else:
        # Line 6: q', the largest q with p_min * nu^q < p_max. Fewer brackets, more trials in each.
        q = 0
        while p_min * nu ** (q + 1) < most:
            q += 1
        sizes = [p_min * nu**i for i in range(q + 1) if p_min * nu**i < most] + [most]
        shares = [budget / len(sizes)] * len(sizes)
    # "Resources are integral" (3.1): where nu is not, sizes are rounded down.
    for size, share in zip(sizes, shares, strict=True):
        yield int(size + TOLERANCE), share


def fitting_plan(atoms: int, given: Arguments) -> Plan | None:
    """The plan of the largest budget, up to the one given, whose first stage runs on ``atoms`` atoms at once.

    How many atoms a plan needs jumps up and down with its budget: budgets are tried from above, to within a hundredth.
    """
    for place in range(TRIED_BUDGETS):
        plan = make_plan(replace(given, budget=given.budget * 0.99**place))
        if plan is not None and plan.trials > 0 and plan.peak <= atoms:
            return plan
    return None


def in_words(plan: Plan) -> str:
    """``3 stages of 1.43, 2.86 and 5.71 min; 8 trials on 1 atom, 4 trials on 2 atoms``."""
    lengths = [f"{plan.stage_min(stage):.3g}" for stage in range(1, plan.stages + 1)]
    sizes = [
        f"{count(bracket.trials, 'trial')} on {count(bracket.atoms, 'atom')}"
        for bracket in plan.brackets
    ]
    before = ", ".join(lengths[:-1])
    stages = f"{before} and {lengths[-1]}" if before else lengths[-1]
    return f"{count(plan.stages, 'stage')} of {stages} min; {', '.join(sizes)}"
