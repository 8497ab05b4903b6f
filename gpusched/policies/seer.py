"""``seer``: sequential elimination with elastic resources (SoCC'21, section 3, Algorithms 1 to 3).

Everything is planned before it starts (``seer_plan``): K stages by wall-clock, brackets of trials on P[1] < P[2] < ..
atoms each. A stage ends when its time is over, whoever has come how far (Algorithm 1):

    lines 4 to 7   the trials of bracket i are the next floor(N[i] / eta^(k-1)) of the ordered S_k       ``_assign``
    line 8         they train for t1 * eta^(k-1), in parallel, with P[i] atoms each                      ``on_wake``
    line 9         of each bracket the best floor(N[i] / eta^k) stay                                     ``_eliminate``
    lines 10, 11   all that stay are ordered by loss: the best move to the bracket with most atoms       ``_assign``

Line 9 is printed as "remove the lowest floor(N[i] / eta^k)"; the text ("only (1/eta) fraction of the trials are carried
forward") means what is done here. What is ours stands in ``docs/policies.md``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gpusched.core.decisions import (
    Complete,
    Decision,
    Resize,
    Resume,
    Start,
    Stop,
    TrialView,
    View,
    WakeAt,
)
from gpusched.core.rules import Rules
from gpusched.core.trial import TrialState
from gpusched.policies import base, seer_plan
from gpusched.policies.seer_plan import Arguments, Plan
from gpusched.text import count


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(base.Options):
    """SEER's arguments, in minutes and atom-minutes as in the paper.

    T is the search's deadline, P_min and P_max are the recipe's ``sizes`` and ``max_atoms``.
    """

    #: Budget in atom-minutes (None: all atoms for all of the time).
    B: float | None = None
    eta: float = 4.0
    nu: float = 2.0
    #: Minutes before a trial may be eliminated, about two steps (None: 1, or a tenth of a shorter deadline, or longer
    #: where the plan is cut to the box and would otherwise end early).
    t_min: float | None = None

    def problems(self) -> Iterator[base.BadOption]:
        yield from base.Options.problems(self)
        for name in ("B", "t_min"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                yield name, f"must be more than 0, not {value:g}"
        if not self.eta > 1:
            yield "eta", f"must be more than 1, not {self.eta:g}; 4 is the usual choice"
        if not self.nu > 1:
            yield "nu", f"must be more than 1, not {self.nu:g}; 2 is the usual choice"

    def arguments(self, rules: Rules, atoms: int, time_left_s: float) -> Arguments:
        """Return what the planner is asked, with options that were left open filled in."""
        deadline = time_left_s / 60.0
        return Arguments(
            deadline=deadline,
            budget=self.B if self.B is not None else deadline * atoms,
            eta=self.eta,
            nu=self.nu,
            p_min=rules.smallest,
            p_max=rules.fit(atoms),
            t_min=self.t_min if self.t_min is not None else min(1.0, deadline / 10.0),
        )


class Seer(base.Policy):
    """A plan, and its stages one after the other."""

    options_type = Options
    options: Options

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        #: The plan, None before it is made and where none fits; in words, or why none fits.
        self.plan: Plan | None = None
        self._words = ""
        self._has_planned = False
        #: Deadline that the plan was made for.
        self._planned_to_s = 0.0
        self._began_s = 0.0
        self._stage = 0
        #: Trials under way and the bracket each is in; how many of each bracket are still to be started.
        self._bracket_of: dict[int, int] = {}
        self._missing: list[int] = []
        #: Trials that may have other atoms than their bracket gives, in the order in which that is put right.
        self._unsettled: dict[int, None] = {}
        self._winner: int | None = None
        #: Trials that have been given a bracket so far.
        self._met = 0

    # ------------------------------------------------------------ before it starts

    def plan_for(self, rules: Rules, atoms: int, time_left_s: float) -> tuple[Plan | None, str]:
        """Make the plan for so many atoms, and word it: how the plan was cut, or why none fits."""
        given = self.options.arguments(rules, atoms, time_left_s)
        wanted = seer_plan.make_plan(given)
        plan = wanted
        if wanted is None or given.p_min > atoms:
            plan = None
        elif wanted.peak > atoms:
            plan = self._cut(given, atoms)
        if plan is None or wanted is None:
            return None, self._why_none(given, atoms)[1]
        words = seer_plan.in_words(plan)
        if plan is wanted:
            return plan, words
        cut = f"cut to {plan.budget:.3g} of {given.budget:.3g} atom-minutes"
        return plan, f"{words} ({cut}: the plan needs {wanted.peak} atoms at once, of {atoms})"

    def _cut(self, given: Arguments, atoms: int) -> Plan | None:
        """Make the largest plan that fits the box.

        If t_min was left open: with as many stages, and of those the one that uses most of the budget. Few atoms cannot
        run the many short trials that a t_min of a minute calls for, and would have few long ones done too early.
        """
        plans = []
        while given.t_min <= given.deadline:
            plan = seer_plan.fitting_plan(atoms, given)
            if plan is not None:
                plans.append(plan)
            if self.options.t_min is not None:
                break
            given = replace(given, t_min=given.t_min * 1.1)
        return max(plans, key=lambda plan: (plan.stages, plan.used_budget), default=None)

    def _why_none(self, given: Arguments, atoms: int) -> base.BadOption:
        one = given.p_min * given.t_min
        least = f"a trial needs {count(given.p_min, 'atom')} for t_min = {given.t_min:g} min"
        why = (
            f"no plan fits {count(atoms, 'atom')}, {given.deadline:.3g} min and {given.budget:.3g} atom-minutes: "
            f"{least}, and those of the first stage train at once; raise B, or change t_min"
        )
        return "B" if given.budget < one else "t_min", why

    def problems(self, rules: Rules, atoms: int) -> Iterator[base.BadOption]:
        if self.plan_for(rules, atoms, rules.deadline_s)[0] is None:
            yield self._why_none(self.options.arguments(rules, atoms, rules.deadline_s), atoms)

    # ------------------------------------------------------------ the first stage

    def on_capacity(self, view: View) -> Sequence[Decision]:
        first: Sequence[Decision] = () if self._has_planned else self._begin(view)
        if self.plan is None:
            return first
        self._meet(view)
        decision = self._start_next(view) if self._stage == 1 else None
        decision = decision or self._put_right(view)
        return (*first, decision) if decision is not None else first

    def _begin(self, view: View) -> Sequence[Decision]:
        self._planned_to_s = view.rules.deadline_s
        self._has_planned = True
        self._began_s = view.now
        self.plan, self._words = self.plan_for(view.rules, view.atoms_total, view.time_left_s)
        if self.plan is None:
            return base.NOTHING
        self._stage, self._winner = 1, None
        self._missing = [bracket.trials for bracket in self.plan.brackets]
        return (WakeAt(self._stage_end_s),)

    @property
    def _stage_end_s(self) -> float:
        assert self.plan is not None
        return self._began_s + 60.0 * self.plan.stage_end_min(self._stage)

    def _start_next(self, view: View) -> Decision | None:
        """Algorithm 1, line 2: S_1 is a random sample; the trials with many atoms are placed first."""
        assert self.plan is not None
        if not view.can_draw:
            return None
        for place in reversed(range(len(self._missing))):
            atoms = self.plan.brackets[place].atoms
            if self._missing[place] and view.rules.fit(atoms) <= view.atoms_free:
                return Start(atoms, f"a trial of bracket {place + 1}", tag=place)
        return None

    def _meet(self, view: View) -> None:
        """Give new trials their brackets; one that a person asked for has no tag."""
        for number in range(self._met, len(view.trials) if self.plan is not None else 0):
            place = view.trials[number].tag or 0
            self._missing[place] = max(0, self._missing[place] - 1)
            self._bracket_of[number] = place
            self._met = number + 1

    def _put_right(self, view: View) -> Decision | None:
        """Give a trial the atoms of its bracket, if it has others or none, as far as they are free."""
        for trial_id in list(self._unsettled):
            trial = view.trials[trial_id]
            if trial_id not in self._bracket_of or trial.is_final:
                del self._unsettled[trial_id]
                continue
            wanted = self._atoms_of(view, trial_id)
            more = wanted - trial.atoms
            if trial.state is TrialState.RUNNING and more == 0:
                del self._unsettled[trial_id]
            elif more > view.atoms_free:
                continue
            elif trial.state is TrialState.RUNNING:
                return Resize(trial_id, wanted, self._why(trial_id, wanted))
            elif trial.may_resume:
                return Resume(trial_id, wanted, self._why(trial_id, wanted))
        return None

    def _atoms_of(self, view: View, trial: int) -> int:
        assert self.plan is not None
        return view.fit(view.trials[trial], self.plan.brackets[self._bracket_of[trial]].atoms)

    def _why(self, trial: int, atoms: int) -> str:
        bracket = f"bracket {self._bracket_of[trial] + 1} of stage {self._stage}"
        return f"{bracket}: {count(atoms, 'atom')}"

    # ------------------------------------------------------------ the end of a stage

    def on_report(self, view: View, trial: TrialView) -> Sequence[Decision]:
        return base.ended(trial, self.options.R)

    def on_wake(self, view: View) -> Sequence[Decision]:
        plan = self.plan
        self._meet(view)
        for number in [n for n in self._bracket_of if view.trials[n].is_final]:
            del self._bracket_of[number]  # it ended with the search, which continues
        if not self._bracket_of and view.rules.deadline_s > self._planned_to_s:
            self._has_planned = False  # the search continues after its end, by another plan
        if plan is None or not self._bracket_of or view.now < self._stage_end_s - 1e-9:
            return base.NOTHING
        self._missing = [0] * len(plan.brackets)
        if self._stage == plan.stages:
            return self._end(view, plan)
        out, kept = self._eliminate(view, plan)
        self._stage += 1
        self._assign(view, plan, kept)
        return (*out, WakeAt(self._stage_end_s))

    def _eliminate(self, view: View, plan: Plan) -> tuple[list[Stop], list[int]]:
        """Lines 9 to 11: the best floor(N[i] / eta^k) of each bracket stay; all of them, the worst first."""
        kept: list[int] = []
        for place, bracket in enumerate(plan.brackets):
            members = [trial for trial, found in self._bracket_of.items() if found == place]
            members.sort(key=lambda trial: (-view.trials[trial].score, trial))
            kept += members[: plan.size(bracket, self._stage + 1)]
        if not kept:
            kept = [max(self._bracket_of, key=lambda trial: (view.trials[trial].score, -trial))]
        kept.sort(key=lambda trial: (view.trials[trial].score, -trial))
        staying = set(kept)
        out = [
            Stop(trial, f"eliminated at the end of stage {self._stage}")
            for trial in self._bracket_of
            if trial not in staying
        ]
        return out, kept

    def _assign(self, view: View, plan: Plan, ordered: Sequence[int]) -> None:
        """Lines 4 to 7 of the next round: from the best down, the bracket with most atoms first."""
        rest = list(ordered)
        self._bracket_of.clear()
        self._unsettled = dict.fromkeys(reversed(ordered))
        sizes = [plan.size(bracket, self._stage) for bracket in plan.brackets]
        if not any(sizes):
            sizes[-1] = 1
        for place in reversed(range(len(sizes))):
            for _ in range(min(sizes[place], len(rest))):
                self._bracket_of[rest.pop()] = place

    def _end(self, view: View, plan: Plan) -> Sequence[Decision]:
        """Line 13: the best trial of the last round is the result."""
        winner = max(self._bracket_of, key=lambda trial: (view.trials[trial].score, -trial))
        others = [trial for trial in self._bracket_of if trial != winner]
        atoms = self._atoms_of(view, winner)
        rest_s = view.time_left_s
        if self.options.B is not None:
            rest_s = min(60.0 * (self.options.B - plan.used_budget) / atoms, rest_s)
        out = [Stop(trial, "the last stage is over: another trial is the best") for trial in others]
        if rest_s > 1e-6 and (self._winner is None or self.options.B is None):
            self._winner = winner
            place = self._bracket_of[winner]
            self._bracket_of = {winner: place}
            return (*out, WakeAt(view.now + rest_s))
        self._bracket_of.clear()
        return (*out, Complete(winner, "the best trial of the last stage"))

    def on_exit(self, view: View, trial: TrialView) -> Sequence[Decision]:
        self._meet(view)
        if trial.is_final:
            self._bracket_of.pop(trial.id, None)
            over = self._has_planned and not self._bracket_of and not any(self._missing)
            if over and view.wake_at is not None and view.wake_at > view.now:
                return (WakeAt(view.now),)  # nobody is left to wait for
        elif trial.id in self._bracket_of:
            self._unsettled[trial.id] = None
        return base.NOTHING

    # ------------------------------------------------------------ for people

    def notes(self, view: View) -> Sequence[str]:
        if self._winner is not None:
            return (f"trial {self._winner} has won and trains on",)
        words = f"stage {self._stage} of a plan: {self._words}" if self.plan else self._words
        return (words,) if words else ()
