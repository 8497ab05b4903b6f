"""``sha``: synchronous successive halving (HyperSched, SoCC'19, section 3.2).

"81 trials x 1 resource per trial in the first halving iteration, 27 x 3 per trial in the second, 9 x 9, 3 x 27, and
finally, 1 trial x 81 resources in the last": with r = 1, R = 81, eta = 3. In general the milestones are those of
``asha`` (r * eta^k below R, then R), and as many trials begin as leave one for R. Trials have one atom each. When a
bracket is over the next one begins, until the deadline, which is not looked at.

Synchronous means to wait: "every trial within a halving iteration must complete consuming its resource".
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpusched.core.decisions import (
    Complete,
    Decision,
    Pause,
    Resume,
    Start,
    Stop,
    TrialView,
    View,
)
from gpusched.core.rung import Rung, milestones
from gpusched.policies import base
from gpusched.policies.halving.bracket import Bracket, Shape, shrinking
from gpusched.text import ordinal


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(base.HalvingOptions):
    """Options of synchronous halving: those of all halving, and R must be given."""

    def problems(self) -> Iterator[base.BadOption]:
        yield from base.HalvingOptions.problems(self)
        if self.R is None:
            yield "R", "synchronous halving needs an end: give R, the most steps a trial may have"


class Synchronous(base.Policy):
    """Brackets of successive halving, one after the other; ``_shapes`` says which."""

    options_type = Options
    options: Options

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._next_shape = self._shapes()
        self._brackets: list[Bracket] = []
        self._bracket_of: dict[int, Bracket] = {}

    def _shapes(self) -> Iterator[Shape]:
        """Yield the form of each bracket, without end."""
        raise AssertionError("which brackets a policy runs is its own")

    # ------------------------------------------------------------ reports

    def on_report(self, view: View, trial: TrialView) -> Sequence[Decision]:
        bracket = self._bracket_of[trial.id]
        if trial.step < bracket.milestone:
            return base.NOTHING
        if not bracket.takes_part(trial.id):
            return (
                Stop(trial.id, f"the halving before {bracket.milestone} steps went on without it"),
            )
        milestone, is_last = bracket.milestone, bracket.is_last_halving
        bracket.arrive(trial)
        decisions = self._close(view, bracket)
        if is_last:
            return (Complete(trial.id, f"complete: {trial.step} steps"), *decisions)
        if any(found.trial == trial.id for found in decisions):
            return decisions
        if bracket.is_waiting(trial.id):  # the trial was the last to arrive, and is among the best
            bracket.launched(trial.id)
            return decisions
        rest = len(bracket.now.coming)
        others = "1 other" if rest == 1 else f"{rest} others"
        return (Pause(trial.id, f"at {milestone} steps; waits for {others}"), *decisions)

    def _close(self, view: View, bracket: Bracket) -> Sequence[Stop]:
        """End the halving if all are in; those that are not among the best stop."""
        if bracket.is_over or not bracket.is_complete:
            return ()
        rung, was_last = bracket.now.rung, bracket.is_last_halving
        losers, is_over = bracket.advance()
        if is_over:
            self._brackets.remove(bracket)
        if was_last:
            return ()
        return [
            Stop(
                trial,
                f"out: {ordinal(rung.rank(trial))} of {len(rung)} at {rung.milestone} steps",
            )
            for trial in losers
            if not view.trials[trial].is_final
        ]

    # ------------------------------------------------------------ atoms

    def on_capacity(self, view: View) -> Sequence[Decision]:
        if view.rules.smallest > view.atoms_free:
            return base.NOTHING
        for bracket in list(self._brackets):
            decision = self._next_of(view, bracket)
            if decision is not None:
                return (decision,)
            out = self._close(view, bracket)
            if out or bracket.has_waiting:
                decision = self._next_of(view, bracket)
                return (*out, decision) if decision is not None else out
        if not self._brackets and view.can_draw:
            return (self._start(self._begin()),)
        return base.NOTHING

    def _next_of(self, view: View, bracket: Bracket) -> Decision | None:
        """Return what a bracket would do with a free atom."""
        trial = bracket.next_waiting(view)
        if trial is not None:
            bracket.launched(trial.id)
            return Resume(trial.id, 1, f"goes on to {bracket.milestone} steps")
        if bracket.wants_new:
            if view.can_draw:
                return self._start(bracket)
            bracket.is_full = not view.awaits_configuration
        return None

    def _start(self, bracket: Bracket) -> Decision:
        of = bracket.shape.sizes[0]
        return Start(1, f"{bracket.shape.name}, {bracket.entered + 1} of {of}", tag=bracket)

    def on_start(self, view: View, trial: TrialView) -> None:
        # A configuration that a person asked for has no tag: it takes a place, or begins a bracket.
        wants = (bracket for bracket in self._brackets if bracket.wants_new)
        bracket = trial.tag or next(wants, None) or self._begin()
        self._bracket_of[trial.id] = bracket
        bracket.enter(trial.id)

    def _begin(self) -> Bracket:
        bracket = Bracket(next(self._next_shape))
        self._brackets.append(bracket)
        return bracket

    # ------------------------------------------------------------ who does not come

    def on_exit(self, view: View, trial: TrialView) -> Sequence[Decision]:
        bracket = self._bracket_of[trial.id]
        if bracket.is_over:
            return base.NOTHING
        if trial.id in bracket.now.coming:
            if trial.is_final or trial.held_by_user:
                bracket.drop(trial.id)
            elif not bracket.is_waiting(trial.id):
                bracket.comes_first(trial.id)  # the trial left without having been told to
        return self._close(view, bracket)

    # ------------------------------------------------------------ for people

    def rungs(self, view: View) -> Sequence[Rung]:
        return self._brackets[0].rungs if self._brackets else ()

    def notes(self, view: View) -> Sequence[str]:
        return [
            f"{bracket.shape.name}: {len(bracket.now.rung)} in at {bracket.milestone} steps, "
            f"{len(bracket.now.coming)} to come"
            for bracket in self._brackets
        ]

    def explain(self, view: View, trial: TrialView) -> Sequence[str]:
        bracket = self._bracket_of[trial.id]
        lines = [f"it is in {bracket.shape.name}"]
        for rung, size in zip(bracket.rungs, (*bracket.shape.sizes[1:], 0), strict=False):
            if trial.id in rung:
                goes_on = f"the best {size} go on" if size else "the last halving"
                place = ordinal(rung.rank(trial.id))
                lines.append(f"{rung.milestone} steps: {place} of {len(rung)}; {goes_on}")
        return lines


class Sha(Synchronous):
    """Successive halving from r steps up, again and again."""

    name = "sha"

    def _shapes(self) -> Iterator[Shape]:
        options = self.options
        assert options.R is not None
        steps = (*milestones(options.r, options.R, options.eta), options.R)
        first = math.ceil(options.eta ** (len(steps) - 1) - 1e-9)
        sizes = tuple(shrinking(first, options.eta, len(steps)))
        number = 0
        while True:
            number += 1
            yield Shape(f"bracket {number}", sizes, steps)
