"""``foresight``: every atom-second goes to whatever promises most for the deadline.

    forecast   the level of each trial at the deadline, had it all atoms from now on           ``foresight_beliefs``
    incumbent  the trial with the best forecast M; ``_wanted``: the atoms that its gain is worth
    bids       a trial: E[(X - M)+] / what finding out costs                                   ``_bid``
               a new configuration: the same, for a launch and a first look                    ``_bid_of_new``
    rule       at a report a trial keeps its atoms while no bid elsewhere is higher; free atoms go to the highest
    scouts     the first trials, one an atom, run on for a while whatever their rank: they show what curves do later

Not from a paper; held against the papers' policies in docs/papers.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from gpusched.core.decisions import (
    NO_STEP_FITS,
    Decision,
    Pause,
    Resize,
    Resume,
    Start,
    Stop,
    TrialView,
    View,
)
from gpusched.core.trial import NEVER, TrialState
from gpusched.policies import base
from gpusched.policies.foresight_beliefs import Beliefs
from gpusched.policies.foresight_curves import AHEAD, Belief, expected_excess

#: Forecasts are made again after this share of the deadline.
REFRESH = 0.01
#: So many live trials, or fewer, are forecast again after each report that calls for that; others after several.
AT_ONCE = 32
#: A newcomer is judged after it has trained this share of what its launch took.
LOOK = 0.25
#: Share of the deadline that scouts train for: what later octaves bring is seen before anybody is judged.
SCOUTING = 0.1
#: Steps after a launch before the incumbent is resized: its speed is known by then.
COOLDOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(base.Options):
    """``R``: most steps of a trial (None: no limit)."""

    #: The best possible metric, where it is known: forecasts are better (1 for an accuracy, 0 for a loss).
    metric_max: float | None = None
    metric_min: float | None = None

    def problems(self) -> Iterator[base.BadOption]:
        yield from base.Options.problems(self)
        low, high = self.metric_min, self.metric_max
        if low is not None and high is not None and not low < high:
            yield "metric_max", f"must be above metric_min = {low:g}, not {high:g}"


class Foresight(base.Policy):
    """Forecasts of the deadline, and an auction of atom-seconds."""

    name = "foresight"
    options_type = Options
    options: Options

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.beliefs = Beliefs(options.R)
        #: The bid of a new configuration.
        self._new = math.inf
        #: Paused trials by bid, the highest first.
        self._queue: list[int] = []
        #: When forecasts were last made, and how much has called for others since.
        self._refreshed_at, self._stale = -math.inf, 0
        #: Reports that the incumbent has let pass, with atoms free, because more are to come.
        self._waited = 0

    def take_length(self, steps: int, *, is_first: bool) -> None:
        super().take_length(steps, is_first=is_first)
        self.beliefs.most_steps = steps

    def _refresh(self, view: View) -> None:
        """Believe and bid anew where something may have changed."""
        is_due = view.now - self._refreshed_at >= REFRESH * view.rules.deadline_s
        if not is_due and self._stale * AT_ONCE <= len(view.live):
            return
        self._refreshed_at, self._stale = view.now, 0
        fresh = self.beliefs.refresh(view)
        for i in fresh:
            self.beliefs.of[i].bid = self._bid_of(view, view.trials[i], self.beliefs.of[i])
        self._queue = [i for i in fresh if i in view.paused and i != self.beliefs.incumbent]
        self._queue.sort(key=self._by_bid)
        self._new = self._bid_of_new(view)

    def _by_bid(self, trial: int) -> tuple[float, float, int]:
        belief = self.beliefs.of[trial]
        return -belief.bid, -belief.mean, trial

    # ------------------------------------------------------------ bids, in levels an atom-second

    def _bid_of(self, view: View, trial: TrialView, belief: Belief) -> float:
        """Return by how much the trial may beat M, for what finding out costs."""
        if trial.id == self.beliefs.incumbent:
            return math.inf
        return self._bid(view, belief, 0.0, 0.0 if trial.is_live else view.overhead_s)

    def _bid(self, view: View, belief: Belief, unpaid: float, launch_s: float) -> float:
        """Return the most that training on for some more looks, or all of the way, may bring an atom-second."""
        step_s, bids = self.beliefs.step_s(view), []
        for further, share in zip(AHEAD, belief.tells, strict=True):
            steps = unpaid + max(1.0, min((further - 1.0) * belief.step, belief.steps))
            excess = expected_excess(belief.mean, share * belief.deviation, self.beliefs.to_beat)
            bids.append(excess / (steps * step_s + launch_s))
        return max(bids)

    def _first_look(self, view: View) -> int:
        """Return the steps after which a newcomer is judged."""
        return max(2, round(LOOK * view.overhead_s / self.beliefs.step_s(view)))

    def _bid_of_new(self, view: View) -> float:
        """Return what the latest newcomers promised at their first look, which is still to be paid for."""
        look_s = self._first_look(view) * self.beliefs.step_s(view)
        if not view.can_draw or view.time_left_s <= view.overhead_s + look_s:
            return -1.0
        fresh = self.beliefs.curves.newcomers(self.beliefs.horizon(view))
        bids = [self._bid(view, belief, belief.step, view.overhead_s) for belief in fresh]
        return sum(bids) / len(bids) if bids else math.inf

    def _wanted(self, view: View, against: float, most: float = math.inf) -> int:
        """Return the atoms for the incumbent if an atom-second is worth ``against`` elsewhere.

        0, it rests, only where nothing else could train beside it.
        """
        if self.beliefs.incumbent is None:
            return 0
        on, worth = self.beliefs.on, max(0.0, against)
        least = 0 if view.atoms_total < 2 * view.rules.smallest else 1
        sizes = [size for size in on if least <= size <= most]
        if against == math.inf or not sizes:
            return min(sizes, default=0)
        return max(sizes, key=lambda size: (on[size].score - worth * on[size].atom_s, -size))

    def _best(self, view: View) -> TrialView | None:
        """Return the incumbent."""
        return None if self.beliefs.incumbent is None else view.trials[self.beliefs.incumbent]

    def _waiting(self, view: View, served: int = 0) -> tuple[float, int | None]:
        """Return the highest bid of a paused trial, but for so many that have atoms coming."""
        able = (i for i in self._queue if _may_resume(view, view.trials[i]))
        waiting = next(islice(able, served, None), None)
        return (-1.0, None) if waiting is None else (self.beliefs.of[waiting].bid, waiting)

    # ------------------------------------------------------------ reports

    def on_report(self, view: View, trial: TrialView) -> Sequence[Decision]:
        beliefs, sign = self.beliefs, view.rules.sign
        best = self.options.metric_max if sign > 0 else self.options.metric_min
        looked = beliefs.curves.look(trial, sign, None if best is None else best * sign)
        done = base.complete_at(trial, self.options.R)
        if done:
            return done
        if trial.step_time_s is not None and trial.step_time_s * trial.stride > view.time_left_s:
            return (Stop(trial.id, NO_STEP_FITS),)
        if looked:
            fresh = beliefs.believe(view, trial)
            if fresh is None:
                why = "its metric is not finite"
                return (Stop(trial.id, why),) if trial.score == NEVER else base.NOTHING
            self._stale += trial.id == beliefs.incumbent or fresh.mean > beliefs.to_beat
            fresh.bid = self._bid_of(view, trial, fresh)
        self._refresh(view)
        if trial.id == beliefs.incumbent:
            return self._lead(view, trial)
        if trial.id not in beliefs.of or trial.step < self._first_look(view):
            return base.NOTHING
        return base.NOTHING if self._scouts(view, trial) else self._leave(view, trial)

    def _scouts(self, view: View, trial: TrialView) -> bool:
        """Tell whether the trial is one of the first, and its time is not over."""
        if trial.id >= view.atoms_total:
            return False
        return trial.training_s(view.now) < SCOUTING * view.rules.deadline_s

    def _lead(self, view: View, trial: TrialView) -> Sequence[Decision]:
        """Rest, or grow into free atoms, as far as that pays; let some reports pass where more are wanted."""
        elsewhere = max(self._new, self._waiting(view)[0])
        wanted = self._wanted(view, elsewhere)
        if not wanted and elsewhere > 0 and not self._scouts(view, trial):
            return (Pause(trial.id, "pauses: it has converged, and another could still win"),)
        if not view.atoms_free or not _may_grow(trial):
            self._waited = 0
            return base.NOTHING
        self._waited += 1
        atoms = self._wanted(view, elsewhere, trial.atoms + view.atoms_free)
        # One resize instead of two: the dearer a resize, the longer it may wait for the rest.
        if atoms <= trial.atoms or (atoms < wanted and self._waits(view)):
            return base.NOTHING
        self._waited = 0
        return (Resize(trial.id, atoms, f"grows {trial.atoms} -> {atoms}: the best forecast"),)

    def _waits(self, view: View) -> bool:
        """Tell whether the incumbent may let another report pass: atoms are kept free for it so long."""
        return self._waited <= max(1.0, 0.5 * view.overhead_s / self.beliefs.step_s(view))

    def _leave(self, view: View, trial: TrialView) -> Sequence[Decision]:
        """Pause the trial if its atoms are worth more elsewhere."""
        own, coming = self.beliefs.of[trial.id].bid, view.atoms_free + view.atoms_coming
        waiting, who = self._waiting(view, coming)
        other, why = self._new, "a new configuration promises more"
        if waiting > other:
            other, why = waiting, f"trial {who} promises more"
        best = self._best(view)
        may_grow = best is not None and (_may_resume(view, best) or _may_grow(best))
        if best and may_grow and self._wanted(view, max(other, own)) > best.atoms + coming:
            why = f"its atoms are worth more to trial {best.id}"
        elif other <= own:
            return base.NOTHING
        return (Pause(trial.id, f"pauses: {why}"),)

    # ------------------------------------------------------------ free atoms

    def on_wake(self, view: View) -> Sequence[Decision]:
        self._refreshed_at = -math.inf
        return base.NOTHING

    def on_exit(self, view: View, trial: TrialView) -> Sequence[Decision]:
        if trial.is_final:
            self.beliefs.over = max(self.beliefs.over, trial.best_score)
        if trial.is_final or trial.id == self.beliefs.incumbent:
            self._stale += 1
        elif trial.id in view.paused and trial.id in self.beliefs.of:
            self._queue.append(trial.id)
            self._queue.sort(key=self._by_bid)
        return base.NOTHING

    def on_capacity(self, view: View) -> Sequence[Decision]:
        step_s = view.step_on_one_atom_s
        if step_s is not None and view.overhead_s + step_s / 4 > view.time_left_s:
            return base.NOTHING
        self._refresh(view)
        waiting, who = self._waiting(view)
        elsewhere = max(self._new, waiting)
        best = self._best(view)
        is_ready = best is not None and _may_resume(view, best)
        if best and is_ready and (atoms := self._wanted(view, elsewhere, view.atoms_free)):
            return (Resume(best.id, atoms, "the best forecast goes on"),)
        may_grow = best is not None and _may_grow(best) and self._waits(view)
        if best and may_grow and self._wanted(view, elsewhere) > best.atoms:
            return base.NOTHING
        if who is not None and (waiting > self._new or not view.can_draw):
            return (Resume(who, 1, "the most promising of those that wait"),)
        if view.can_draw:
            return (Start(1, "a new configuration"),)
        if best and is_ready:
            return (Resume(best.id, view.atoms_free, "nothing else is left to do"),)
        return base.NOTHING

    # ------------------------------------------------------------ for people

    def notes(self, view: View) -> Sequence[str]:
        if self.beliefs.incumbent is None:
            return ("no trial leads: none that may train has come to its first look",)
        words = self.beliefs.in_words(self.beliefs.incumbent)
        return f"trial {self.beliefs.incumbent} has the best forecast, {words}", self._worth(view)

    def explain(self, view: View, trial: TrialView) -> Sequence[str]:
        belief = self.beliefs.of.get(trial.id)
        if belief is None or trial.is_final:
            return ()
        lines = [f"forecast {self.beliefs.in_words(trial.id)}"]
        if self.beliefs.incumbent is None:
            return lines
        lines.append(self._worth(view))
        if trial.id == self.beliefs.incumbent:
            return [*lines, "it has the best forecast of all"]
        if trial.is_live and self._scouts(view, trial):
            lines.append("one of the first trials, which run on for a while whatever their rank")
        return [*lines, f"an atom for it promises {self.beliefs.a_minute(belief.bid)} a minute"]

    def _worth(self, view: View) -> str:
        on = self.beliefs.on
        prices = [(one.score - on[0].score) / one.atom_s for one in on.values() if one.atom_s]
        price = self.beliefs.a_minute(max(prices, default=0.0))
        new = f", a new configuration {self.beliefs.a_minute(self._new)}" if view.can_draw else ""
        return f"trial {self.beliefs.incumbent}'s atoms are worth {price} a minute{new}"


def _may_grow(incumbent: TrialView) -> bool:
    is_running = incumbent.state is TrialState.RUNNING and not incumbent.is_resizing
    return is_running and incumbent.steps_since_resize >= COOLDOWN


def _may_resume(view: View, trial: TrialView) -> bool:
    """Tell whether the trial is paused, and not by a person."""
    return trial.id in view.paused and not trial.held_by_user
