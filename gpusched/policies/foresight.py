"""``foresight``: every atom-second goes to whatever promises most for the deadline.

    forecast   the level of each trial at the deadline, had it all atoms from now on           ``foresight_beliefs``
    incumbent  the trial with the best forecast M; ``_price``: what an atom more brings it at the deadline, a second
    bids       a trial: E[(X - M)+] / what finding out costs                                   ``_bid_of``
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

from gpusched.core.decisions import Decision, Pause, Resize, Resume, Start, Stop
from gpusched.core.policy import NO_STEP_FITS, TrialView, View
from gpusched.core.trial import NEVER, TrialState
from gpusched.policies import base
from gpusched.policies.foresight_beliefs import Beliefs, may_resume, pays
from gpusched.policies.foresight_curves import AHEAD, Belief, expected_excess

#: Forecasts are made again after this share of the deadline.
REFRESH = 0.01
#: With more live trials than this, forecasts of all wait for more than one report that calls for them.
AT_ONCE = 32
#: A newcomer is judged after it has trained this share of what its launch took.
LOOK = 0.25
#: Steps after a launch before the incumbent is resized: its speed is known by then.
COOLDOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(base.Options):
    """``R``: most steps of a trial (None: no limit)."""

    #: The best possible metric, where it is known: forecasts are better (1 for an accuracy, 0 for a loss).
    metric_max: float | None = None
    metric_min: float | None = None
    #: Share of the deadline that scouts train for: what later octaves bring is seen before anybody is judged.
    scouting: float = 0.1

    def problems(self) -> Iterator[base.BadOption]:
        yield from base.Options.problems(self)
        if not 0 <= self.scouting <= 1:
            yield "scouting", f"must be between 0 and 1, not {self.scouting:g}"
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
        self._refreshed_at, self._trials_then, self._is_stale = -math.inf, 0, True
        #: How often forecasts were due since they were last made.
        self._asked = 0
        #: Steps that newcomers had when they were judged for the first time, and how many were.
        self._judged = [3.0, 1.0]
        #: Reports that the incumbent has let pass because more atoms were coming.
        self._waited = 0

    def _refresh(self, view: View) -> None:
        """Believe and bid anew where something may have changed."""
        is_due = view.now - self._refreshed_at >= REFRESH * view.rules.deadline_s
        if not (is_due or self._is_stale or len(view.trials) > 1.1 * self._trials_then + 1):
            return
        self._asked += 1
        if self._asked < len(view.live) // AT_ONCE:
            return
        self._asked = 0
        self._refreshed_at, self._trials_then, self._is_stale = view.now, len(view.trials), False
        beliefs = self.beliefs
        beliefs.refresh(view)
        for i, belief in beliefs.of.items():
            belief.bid = self._bid_of(view, view.trials[i], belief)
        self._queue = [i for i in beliefs.of if i in view.paused and i != beliefs.incumbent]
        self._queue.sort(key=self._by_bid)
        self._new = self._bid_of_new(view)

    def _by_bid(self, trial: int) -> tuple[float, float, int]:
        belief = self.beliefs.of[trial]
        return -belief.bid, -belief.mean, trial

    # ------------------------------------------------------------ bids, in levels an atom-second

    def _look_s(self, view: View) -> float:
        """Return the time after which a newcomer is usually judged."""
        return self._judged[0] / self._judged[1] * self.beliefs.step_s(view)

    def _bid_of(self, view: View, trial: TrialView, belief: Belief) -> float:
        """Return by how much the trial may beat M, for what finding out costs."""
        if trial.id == self.beliefs.incumbent:
            return math.inf
        return self._bid(view, belief, 0.0, 0.0 if trial.is_live else view.overhead_s)

    def _bid(self, view: View, belief: Belief, unpaid: float, launch_s: float) -> float:
        """Return the most that training on for some more looks, or all of the way, may bring an atom-second."""
        step_s, to_beat = self.beliefs.step_s(view), self.beliefs.to_beat
        deviation = self.beliefs.curves.apart * belief.deviation

        def bid(share: float, steps: float) -> float:
            excess = expected_excess(belief.mean, share * deviation, to_beat)
            return excess / ((unpaid + max(1.0, min(steps, belief.steps))) * step_s + launch_s)

        looks = (
            bid(share, (further - 1.0) * belief.step)
            for further, share in zip(AHEAD, belief.tells, strict=True)
        )
        return max(bid(1.0, belief.steps), *looks)

    def _bid_of_new(self, view: View) -> float:
        """Return what the latest newcomers promised at their first look, which is still to be paid for."""
        if not view.can_draw:
            return -1.0
        launch_s, look_s = view.overhead_s, self._look_s(view)
        if view.time_left_s <= launch_s + look_s:
            return -1.0
        curves = self.beliefs.curves
        fresh = curves.newcomers(self.beliefs.horizon(view, None, launch_s + look_s))
        if not fresh:
            return math.inf
        bids = [self._bid(view, belief, belief.step, launch_s) for belief in fresh]
        return sum(bids) / len(bids)

    def _price(self, view: View, atoms: int) -> float:
        """Return the most that some more atoms would bring the incumbent that has so many, an atom-second."""
        at, now = self.beliefs.at, self._score_on(atoms)
        if view.time_left_s <= 0:
            return 0.0
        gains = ((at[size] - now) / (size - atoms) for size in at if size > atoms)
        return max([0.0, *gains]) / view.time_left_s

    def _wanted(self, view: View, against: float) -> int:
        """Return the atoms the incumbent should have if an atom-second is worth ``against`` elsewhere."""
        best = self.beliefs.best(view)
        held = best.atoms if best is not None and best.is_live else 0
        if not math.isfinite(against):
            return held
        worth = max(0.0, against) * view.time_left_s
        larger = (size for size in self.beliefs.at if size > held)
        return max((held, *larger), key=lambda size: (self._score_on(size) - worth * size, -size))

    def _score_on(self, atoms: int) -> float:
        """Return the incumbent's forecast on so many atoms from now on, or on the next size that is known."""
        at = self.beliefs.at
        known = max((size for size in at if size <= atoms), default=min(at, default=0))
        return at.get(known, NEVER)

    def _waiting(self, view: View, served: int = 0) -> tuple[float, int | None]:
        """Return the highest bid of a paused trial, but for so many that have atoms coming."""
        able = (i for i in self._queue if i in self.beliefs.of and may_resume(view, view.trials[i]))
        waiting = next(islice(able, served, None), None)
        return (-1.0, None) if waiting is None else (self.beliefs.of[waiting].bid, waiting)

    def _elsewhere(self, view: View) -> float:
        return max(self._new, self._waiting(view)[0])

    def _rests(self, view: View) -> bool:
        """Tell whether the incumbent has converged: what it still gains is worth less than its atoms elsewhere."""
        if self.beliefs.incumbent is None:
            return False
        trial, belief = view.trials[self.beliefs.incumbent], self.beliefs.of[self.beliefs.incumbent]
        atoms = max(1, trial.atoms)
        a_second = belief.rise / (belief.steps * self.beliefs.step_s(view, trial))
        return a_second * view.speedup(atoms) / atoms < self._elsewhere(view)

    # ------------------------------------------------------------ reports

    def on_report(self, view: View, trial: TrialView) -> Sequence[Decision]:
        sign = view.rules.sign
        best = self.options.metric_max if sign > 0 else self.options.metric_min
        looked = self.beliefs.curves.look(trial, sign, None if best is None else best * sign)
        done = base.complete_at(trial, self.options.R)
        if done:
            return done
        if trial.step_time_s is not None and trial.step_time_s > view.time_left_s:
            return (Stop(trial.id, NO_STEP_FITS),)
        if looked:
            fresh = self.beliefs.believe(view, trial)
            if fresh is None:
                why = "its metric is not finite"
                return (Stop(trial.id, why),) if trial.score == NEVER else base.NOTHING
            self._is_stale |= (
                trial.id == self.beliefs.incumbent or fresh.mean > self.beliefs.to_beat
            )
            fresh.bid = self._bid_of(view, trial, fresh)
        self._refresh(view)
        if self._scouts(view, trial) and trial.id != self.beliefs.incumbent:
            return base.NOTHING
        if trial.id == self.beliefs.incumbent:
            if self._rests(view) and not self._scouts(view, trial):
                return (Pause(trial.id, "pauses: it has converged, and another could still win"),)
            return self._grow(view, trial)
        launch_steps = view.overhead_s / self.beliefs.step_s(view)
        first = max(2, round(LOOK * launch_steps))
        if trial.id not in self.beliefs.of or trial.step < first:
            return base.NOTHING
        return self._leave(view, trial)

    def _scouts(self, view: View, trial: TrialView) -> bool:
        """Tell whether the trial is one of the first, and its time is not over."""
        if trial.id >= view.atoms_total:
            return False
        return trial.training_s(view.now) < self.options.scouting * view.rules.deadline_s

    def _leave(self, view: View, trial: TrialView) -> Sequence[Decision]:
        """Pause the trial if its atoms are worth more elsewhere."""
        waiting, who = self._waiting(view, self._spare(view))
        other, why = self._new, "a new configuration promises more"
        if waiting > other:
            other, why = waiting, f"trial {who} promises more"
        if self._needs_atoms(view, max(other, self.beliefs.of[trial.id].bid)):
            why = f"its atoms are worth more to trial {self.beliefs.incumbent}"
        elif other <= self.beliefs.of[trial.id].bid:
            return base.NOTHING
        if trial.incarnation == 1:
            self._judged[0] += trial.step
            self._judged[1] += 1
        return (Pause(trial.id, f"pauses: {why}"),)

    def _spare(self, view: View) -> int:
        """Return the atoms, free or coming, that the incumbent leaves to others."""
        best, spare = self.beliefs.best(view), view.atoms_free + view.atoms_coming
        if best is not None and best.is_live and self._may_grow(best):
            spare -= self._wanted(view, self._elsewhere(view)) - best.atoms
        return max(0, spare)

    def _needs_atoms(self, view: View, against: float) -> bool:
        """Tell whether the incumbent waits for an atom, or is to have more than are free or coming."""
        best = self.beliefs.best(view)
        if best is None or (best.is_live and not self._may_grow(best)):
            return False
        if not best.is_live:
            return not self._rests(view)
        has = best.atoms + view.atoms_free + view.atoms_coming
        return self._price(view, best.atoms) > against and self._wanted(view, against) > has

    def _may_grow(self, incumbent: TrialView) -> bool:
        is_running = incumbent.state is TrialState.RUNNING and not incumbent.is_resizing
        return is_running and incumbent.steps_since_resize >= COOLDOWN

    def _grow(self, view: View, trial: TrialView) -> Sequence[Decision]:
        """Take free atoms as far as that pays; let some reports pass while more are coming."""
        if not view.atoms_free or not self._may_grow(trial):
            self._waited = 0
            return base.NOTHING
        self._waited += 1
        wanted = self._wanted(view, self._elsewhere(view))
        most = trial.atoms + view.atoms_free
        atoms = view.rules.fit(min(wanted, most))
        more = view.rules.fit(min(wanted, most + self._coming(view, trial)))
        grows = trial.atoms < atoms <= most and pays(view, trial.atoms, atoms)
        # One resize instead of two: the dearer a resize, the longer it may wait for the rest.
        if not grows or (more > atoms and self._waits(view, trial)):
            return base.NOTHING
        self._waited = 0
        return (Resize(trial.id, atoms, f"grows {trial.atoms} -> {atoms}: the best forecast"),)

    def _waits(self, view: View, incumbent: TrialView) -> bool:
        """Tell whether the incumbent may let another report pass: atoms are kept free for it so long."""
        return self._waited <= max(1.0, 0.5 * view.overhead_s / (incumbent.step_time_s or 1.0))

    def _coming(self, view: View, incumbent: TrialView) -> int:
        """Return the atoms on their way, and those of trials that will make room at their next report."""
        price = self._price(view, incumbent.atoms)
        leave = (
            i for i, belief in self.beliefs.of.items() if belief.bid < price and i in view.live
        )
        if price <= self._elsewhere(view):
            return view.atoms_coming
        stay = (
            t for t in map(view.trials.__getitem__, leave) if t.state is not TrialState.YIELDING
        )
        return view.atoms_coming + sum(trial.atoms for trial in stay)

    # ------------------------------------------------------------ free atoms

    def on_reopen(self, view: View) -> Sequence[Decision]:
        self._is_stale = True
        return base.NOTHING

    def on_exit(self, view: View, trial: TrialView) -> Sequence[Decision]:
        if trial.is_final:
            self.beliefs.over = max(self.beliefs.over, trial.best_score)
        self._is_stale |= trial.is_final or trial.id == self.beliefs.incumbent
        if (
            trial.id in view.paused
            and trial.id in self.beliefs.of
            and trial.id != self.beliefs.incumbent
        ):
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
        best = self.beliefs.best(view)
        is_ready = best is not None and may_resume(view, best)
        if best is not None and is_ready and not self._rests(view):
            atoms = min(max(1, self._wanted(view, elsewhere)), view.atoms_free)
            return (Resume(best.id, atoms, "the best forecast goes on"),)
        may_grow = best is not None and self._may_grow(best) and self._waits(view, best)
        if best is not None and may_grow and self._wanted(view, elsewhere) > best.atoms:
            return base.NOTHING
        if who is not None and (waiting > self._new or not view.can_draw):
            return (Resume(who, 1, "the most promising of those that wait"),)
        if view.can_draw:
            return (Start(1, "a new configuration"),)
        if best is not None and is_ready:
            return (Resume(best.id, view.atoms_free, "nothing else is left to do"),)
        return base.NOTHING

    # ------------------------------------------------------------ for people

    def notes(self, view: View) -> Sequence[str]:
        if self.beliefs.incumbent is None:
            return ("no forecast yet: no trial has come to its first look",)
        words = self.beliefs.in_words(self.beliefs.incumbent)
        return f"trial {self.beliefs.incumbent} has the best forecast, {words}", self._worth(view)

    def explain(self, view: View, trial: TrialView) -> Sequence[str]:
        belief = self.beliefs.of.get(trial.id)
        if belief is None or trial.is_final:
            return ()
        lines = [f"forecast {self.beliefs.in_words(trial.id)}", self._worth(view)]
        if trial.id == self.beliefs.incumbent:
            return [*lines, "it has the best forecast of all"]
        if trial.is_live and self._scouts(view, trial):
            lines.append("one of the first trials, which run on for a while whatever their rank")
        return [*lines, f"an atom for it promises {self.beliefs.a_minute(belief.bid)} a minute"]

    def _worth(self, view: View) -> str:
        price = self._price(view, 0)
        new = f", a new configuration {self.beliefs.a_minute(self._new)}" if view.can_draw else ""
        return f"trial {self.beliefs.incumbent}'s atoms are worth {self.beliefs.a_minute(price)} a minute{new}"
