"""``sha`` and ``hyperband``: synchronous successive halving (HyperSched, SoCC'19, 3.2; Li et al., JMLR 2018).

``sha`` has the milestones of ``asha`` (r * eta^k below R, then R), and as many trials begin as leave one for R: 81
trials of 1 step, 27 of 3, 9 of 9, 3 of 27 and 1 of 81 with r = 1, R = 81, eta = 3. ``hyperband`` has brackets from the
most to the least aggressive (Algorithm 1):

    s_max = floor(log_eta(R / r))
    bracket s = s_max .. 0:  n = ceil((s_max + 1) / (s + 1) * eta^s) trials begin,
                             halving i = 0 .. s:  floor(n / eta^i) trials up to R * eta^(i - s) steps

Trials have one atom each. When a bracket is over the next one begins, until the deadline. A trial that has failed, or
that a person stopped or holds, must not block a halving for ever and does not count; one that comes back while the
halving is open takes part after all.
"""

from __future__ import annotations

import math
from collections import OrderedDict
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
from gpusched.core.trial import NEVER, TrialState
from gpusched.policies import base
from gpusched.text import ordinal


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(base.HalvingOptions):
    """Options of synchronous halving: those of all halving, and R must be given."""

    def problems(self) -> Iterator[base.BadOption]:
        yield from base.HalvingOptions.problems(self)
        if self.R is None:
            yield "R", "synchronous halving needs an end: give R, the most steps a trial may have"


@dataclass(frozen=True, slots=True)
class Shape:
    """Form of a bracket: how many trials train up to which step, halving by halving."""

    name: str
    sizes: tuple[int, ...]
    milestones: tuple[int, ...]


class Bracket:
    """A running bracket. Trials are entered by number, ``arrive`` and are dropped; ``advance`` ends a halving."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self._place = 0
        self.rungs = [Rung(shape.milestones[0])]
        #: Trials with a place in the present halving that are not in yet, and those dropped, but not for good.
        self.coming, self._left_out = set[int](), set[int]()
        self.entered = 0
        #: No more configurations: fewer trials than planned take part.
        self.is_full = False
        self.is_over = False
        #: Trials to be given atoms, in this order: winners of the last halving, and trials that lost theirs. Each is
        #: in it once, and taking out one that is not in it changes nothing: trials leave by more ways than one.
        self._line: OrderedDict[int, None] = OrderedDict()

    @property
    def rung(self) -> Rung:
        """The trials that are in, with their scores."""
        return self.rungs[-1]

    @property
    def milestone(self) -> int:
        return self.rung.milestone

    @property
    def is_last_halving(self) -> bool:
        return self._place + 1 == len(self.shape.milestones)

    @property
    def wants_new(self) -> bool:
        return self._place == 0 and not self.is_full and self.entered < self.shape.sizes[0]

    # ------------------------------------------------------------ trials come and go

    def enter(self, trial: int) -> None:
        """Note that a new configuration was started for this bracket."""
        self.entered += 1
        self.coming.add(trial)

    def launched(self, trial: int) -> None:
        """Note that a trial that waited for atoms was given some, or has them still."""
        self._line.pop(trial, None)
        self.coming.add(trial)

    def is_waiting(self, trial: int) -> bool:
        """Tell whether the trial is to be given atoms for the present halving."""
        return trial in self._line

    @property
    def has_waiting(self) -> bool:
        return bool(self._line)

    def comes_first(self, trial: int) -> None:
        """Put the trial first in line for atoms."""
        self._line[trial] = None
        self._line.move_to_end(trial, last=False)

    def takes_part(self, trial: int) -> bool:
        """Tell whether the present halving is open to this trial."""
        return not self.is_over and (trial in self.coming or trial in self._left_out)

    def arrive(self, trial: TrialView) -> None:
        """Record that a trial that takes part is at the milestone."""
        self.coming.discard(trial.id)
        self._left_out.discard(trial.id)
        self.rung.record(trial.id, trial.score)
        # A person may have let it go on before its turn: it must not be given atoms for this halving again.
        self._line.pop(trial.id, None)

    def drop(self, trial: int) -> None:
        """Let the halving go on without a trial, unless it comes before the others are in."""
        if trial in self.coming:
            self.coming.remove(trial)
            self._left_out.add(trial)

    def next_waiting(self, view: View) -> TrialView | None:
        """Return the next trial to be given atoms; drop trials that cannot run any more or that a person holds."""
        for number in list(self._line):
            trial = view.trials[number]
            if trial.state is TrialState.PAUSED and not trial.held_by_user:
                return trial
            if trial.state is TrialState.YIELDING:
                self._line.move_to_end(number)
                continue
            self._line.pop(number, None)
            if not trial.is_live:
                self.drop(number)
        return None

    # ------------------------------------------------------------ the end of a halving

    @property
    def is_complete(self) -> bool:
        """Whether every trial that takes part in this halving is in."""
        return not self.coming and not self.wants_new

    def advance(self) -> tuple[Sequence[int], bool]:
        """End the halving and move the winners on; return the losers, and whether the bracket is over."""
        rung = self.rung
        ranked = list(rung.top(len(rung)))
        count = 0 if self.is_last_halving else self.shape.sizes[self._place + 1]
        winners = [trial for trial in ranked[:count] if rung.score(trial) > NEVER]
        if not winners:
            self.is_over = True
            self._line.clear()
            return ranked, True
        self._place += 1
        self.rungs.append(Rung(self.shape.milestones[self._place]))
        self.coming, self._left_out = set(winners), set()
        self._line = OrderedDict.fromkeys(winners)
        return ranked[len(winners) :], False


def shrinking(first: int, eta: float, count: int) -> Iterator[int]:
    """first, floor(first/eta), floor(first/eta^2), ..: at least one."""
    for power in range(count):
        yield max(1, int(first / eta**power + 1e-9))


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
        self._meet(view)
        bracket = self._bracket_of[trial.id]
        if trial.step < bracket.milestone:
            return base.NOTHING
        if not bracket.takes_part(trial.id):
            return (
                Stop(
                    trial.id, f"the halving before {bracket.milestone} steps continued without it"
                ),
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
        rest = len(bracket.coming)
        others = "1 other" if rest == 1 else f"{rest} others"
        return (Pause(trial.id, f"at {milestone} steps; waits for {others}"), *decisions)

    def _close(self, view: View, bracket: Bracket) -> Sequence[Stop]:
        """End the halving if all are in; those that are not among the best stop."""
        if bracket.is_over or not bracket.is_complete:
            return ()
        rung, was_last = bracket.rung, bracket.is_last_halving
        losers, is_over = bracket.advance()
        if is_over:
            self._brackets.remove(bracket)
        self.rungs = self._brackets[0].rungs if self._brackets else ()
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
        self._meet(view)
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
            return Resume(trial.id, 1, f"continues to {bracket.milestone} steps")
        if bracket.wants_new:
            if view.can_draw:
                return self._start(bracket)
            bracket.is_full = not view.awaits_configuration
        return None

    def _start(self, bracket: Bracket) -> Decision:
        of = bracket.shape.sizes[0]
        return Start(1, f"{bracket.shape.name}, {bracket.entered + 1} of {of}", tag=bracket)

    def _meet(self, view: View) -> None:
        """Give new trials their places; one that a person asked for has no tag, and may begin a bracket."""
        for number in range(len(self._bracket_of), len(view.trials)):
            wants = (bracket for bracket in self._brackets if bracket.wants_new)
            bracket = view.trials[number].tag or next(wants, None) or self._begin()
            self._bracket_of[number] = bracket
            bracket.enter(number)

    def _begin(self) -> Bracket:
        bracket = Bracket(next(self._next_shape))
        self._brackets.append(bracket)
        self.rungs = self._brackets[0].rungs
        return bracket

    # ------------------------------------------------------------ who does not come

    def on_exit(self, view: View, trial: TrialView) -> Sequence[Decision]:
        self._meet(view)
        bracket = self._bracket_of[trial.id]
        if bracket.is_over:
            return base.NOTHING
        if trial.id in bracket.coming:
            if trial.is_final or trial.held_by_user:
                bracket.drop(trial.id)
            elif not bracket.is_waiting(trial.id):
                bracket.comes_first(trial.id)  # the trial left without having been told to
        return self._close(view, bracket)

    # ------------------------------------------------------------ for people

    def notes(self, view: View) -> Sequence[str]:
        return [
            f"{bracket.shape.name}: {len(bracket.rung)} in at {bracket.milestone} steps, "
            f"{len(bracket.coming)} to come"
            for bracket in self._brackets
        ]

    def explain(self, view: View, trial: TrialView) -> Sequence[str]:
        if (bracket := self._bracket_of.get(trial.id)) is None:
            return ()
        lines = [f"it is in {bracket.shape.name}"]
        for rung, size in zip(bracket.rungs, (*bracket.shape.sizes[1:], 0), strict=False):
            if trial.id in rung:
                goes_on = f"the best {size} continue" if size else "the last halving"
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


def brackets(r: int, R: int, eta: float) -> Iterator[Shape]:
    """Yield the brackets of one round, the most aggressive first."""
    s_max = int(math.log(R / r, eta) + 1e-9)
    for s in range(s_max, -1, -1):
        first = math.ceil((s_max + 1) / (s + 1) * eta**s - 1e-9)
        steps = tuple(max(1, round(R * eta ** (i - s))) for i in range(s + 1))
        yield Shape(f"bracket s={s}", tuple(shrinking(first, eta, s + 1)), steps)


class Hyperband(Synchronous):
    """All brackets from the most to the least aggressive, again and again."""

    name = "hyperband"

    def _shapes(self) -> Iterator[Shape]:
        options = self.options
        assert options.R is not None
        while True:
            yield from brackets(options.r, options.R, options.eta)
