"""``foresight``: every atom-second goes to whatever promises most for the deadline.

forecast   the level of each trial at the deadline, had it all atoms from now on    ``foresight_curves``
leader     the trial with the best forecast M; it never rests. Its size: what its gain is worth   ``_wanted``
bids       another trial: E[(X - M)+] for what finding out costs                    ``_bid_of``
           a new configuration: the mean of what the latest trials promise now      ``_bid_of_new``
rule       at a report a trial keeps its atoms while no bid elsewhere is higher; free atoms go to the highest
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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
from gpusched.policies.foresight_curves import Belief, Curves, expected_excess
from gpusched.text import show_metric

#: Forecasts are made again after this share of the deadline.
REFRESH = 0.01
#: A newcomer is judged after it has trained this share of what its launch took.
LOOK = 0.25
#: Steps after a launch before the leader is resized: its speed is known by then.
COOLDOWN = 3
#: Share of the time left that is kept back when it is asked how far a trial can come.
MARGIN = 0.05


class Foresight(base.Policy):
    """Forecasts of the deadline, and an auction of atom-seconds."""

    options: base.Options

    def __init__(self, options: base.Options) -> None:
        super().__init__(options)
        self.curves = Curves()
        #: The forecast of each trial when it was last made, and its bid.
        self.beliefs: dict[int, Belief] = {}
        #: The trial with the best forecast, the forecast to beat, and the best score of a trial that is over.
        self.leader: int | None = None
        self.to_beat = self._over = NEVER
        #: The leader's prospects by atoms: its score at the deadline, and the atom-seconds until then.
        self._on: dict[int, tuple[float, float]] = {}
        #: The bid of a new configuration, and paused trials by bid, the highest first.
        self._new, self._queue = math.inf, list[int]()
        #: When forecasts were last made, and whether something has called for others since.
        self._refreshed_at, self._is_stale = -math.inf, False

    # ------------------------------------------------------------ forecasts

    def _step_s(self, view: View, trial: TrialView | None = None) -> float:
        return view.step_s(trial) or 1.0

    def _reach(self, view: View, trial: TrialView | None, atoms: int) -> float:
        """Return the step that a trial, or a new one, comes to on so many atoms from now on.

        Some time is kept back: a growth takes effect some reports later.
        """
        left_s = view.time_left_s * (1 - MARGIN) - 3 * self._step_s(view)
        if trial is None:
            left_s -= 2 * view.overhead_s  # it starts on one atom, and grows
        elif not trial.is_live or atoms != trial.atoms:
            left_s -= view.overhead_s
        steps = view.speedup(atoms) * max(0.0, left_s) / self._step_s(view, trial)
        steps += 0 if trial is None else trial.step
        return steps if self.options.R is None else min(steps, self.options.R)

    def _horizon(self, view: View, trial: TrialView | None = None) -> float:
        """Return the step that a trial, or a new one, comes to on all atoms."""
        return self._reach(view, trial, view.fit(trial, view.atoms_total))

    def _refresh(self, view: View) -> None:
        """Believe and bid anew where something may have changed."""
        is_due = view.now - self._refreshed_at >= REFRESH * view.rules.deadline_s
        if not is_due and not self._is_stale:
            return
        self._refreshed_at, self._is_stale = view.now, False
        self.curves.rescale(view.trials)
        among = (*view.live, *(i for i, trial in view.paused.items() if trial.may_resume))
        fresh = self.curves.believe({i: self._horizon(view, view.trials[i]) for i in among})
        self.beliefs.update(fresh)
        self._choose_leader(view, list(fresh))
        for i in fresh:
            self.beliefs[i].bid = self._bid_of(view, view.trials[i], self.beliefs[i])
        self._queue = [i for i in fresh if i in view.paused and i != self.leader]
        self._queue.sort(key=self._by_bid)
        self._new = self._bid_of_new(view)

    def _by_bid(self, trial: int) -> tuple[float, float, int]:
        belief = self.beliefs[trial]
        return -belief.bid, -belief.mean, trial

    def _choose_leader(self, view: View, among: Sequence[int]) -> None:
        """Take the best forecast, less half its deviation where a launch or atoms of the present leader are lost."""
        held = view.trials[self.leader].atoms if self.leader in view.live else 0

        def merit(i: int) -> tuple[float, int]:
            trial, belief = view.trials[i], self.beliefs[i]
            is_dear = not trial.is_live or trial.atoms < held
            return belief.mean - (0.5 * belief.deviation if is_dear else 0.0), -i

        self.leader = max(among, key=merit, default=None)
        self.to_beat, self._on = self._over, {}
        if self.leader is not None:
            self.to_beat = max(self._over, self.beliefs[self.leader].mean)
            self._on = self._prospects(view, view.trials[self.leader])

    def _prospects(self, view: View, trial: TrialView) -> dict[int, tuple[float, float]]:
        """Return what the leader comes to at rest (0), on the atoms it has, and on more."""
        top = view.fit(trial, view.atoms_total)
        held = trial.atoms if trial.is_live else 0
        allowed = (size for size in range(held + 1, top) if size == view.fit(trial, size))
        sizes = sorted({held, top, *allowed} - {0})
        ends = [self._reach(view, trial, size) for size in sizes]
        found = {0: (max(self._over, self.curves.seen[trial.id].level), 0.0)}
        beliefs = self.curves.forecast([self.curves.seen[trial.id]] * len(sizes), ends)
        for size, end, then in zip(sizes, ends, beliefs, strict=True):
            seconds = (end - trial.step) * self._step_s(view, trial) / view.speedup(size)
            seconds += 0.0 if size == held else view.overhead_s
            found[size] = max(self._over, then.mean), size * seconds
        return found

    # ------------------------------------------------------------ bids, in levels an atom-second

    def _bid_of(self, view: View, trial: TrialView | None, belief: Belief) -> float:
        """Return by how much a trial, or one that would begin like it (None), may beat M, for what that costs."""
        if trial is not None and trial.id == self.leader:
            return math.inf
        steps, launch_s = belief.steps, 0.0 if trial and trial.is_live else view.overhead_s
        steps += belief.step if trial is None else 0.0
        excess = expected_excess(belief.mean, belief.deviation, self.to_beat)
        return excess / (steps * self._step_s(view, trial) + launch_s)

    def _first_look(self, view: View) -> int:
        """Return the steps after which a newcomer is judged."""
        return max(2, round(LOOK * view.overhead_s / self._step_s(view)))

    def _bid_of_new(self, view: View) -> float:
        """Return the mean of what the latest trials promise now, refuted ones too, had they still to be paid for."""
        look_s = self._first_look(view) * self._step_s(view)
        if not view.may_draw or view.time_left_s <= view.overhead_s + look_s:
            return -1.0
        bids = [self._bid_of(view, None, b) for b in self.curves.newcomers(self._horizon(view))]
        return sum(bids) / len(bids) if bids else math.inf

    def _wanted(self, view: View, against: float, most: float = math.inf) -> int:
        """Return the atoms for the leader if an atom-second is worth ``against`` elsewhere.

        0, it rests, only where nothing else could train beside it.
        """
        least = 0 if _is_alone(view) else 1
        sizes = [size for size in self._on if least <= size <= most]
        if against == math.inf or not sizes:
            return min(sizes, default=0)
        worth = max(0.0, against)
        return max(sizes, key=lambda size: (self._on[size][0] - worth * self._on[size][1], -size))

    def _waiting(self, view: View, served: int = 0) -> tuple[float, int | None]:
        """Return the highest bid of a paused trial, but for so many that have atoms coming."""
        able = (i for i in self._queue if view.trials[i].may_resume)
        who = next(islice(able, served, None), None)
        return (-1.0, None) if who is None else (self.beliefs[who].bid, who)

    # ------------------------------------------------------------ reports

    def on_report(self, view: View, trial: TrialView) -> Sequence[Decision]:
        looked = self.curves.look(trial, view.rules.sign)
        done = base.ended(trial, self.options.R)
        if done:
            return done
        if trial.step_time_s is not None and trial.step_time_s * trial.stride > view.time_left_s:
            return (Stop(trial.id, NO_STEP_FITS),)
        if looked:
            found = self.curves.believe({trial.id: self._horizon(view, trial)})
            if not found:
                return base.NOTHING
            belief = self.beliefs[trial.id] = found[trial.id]
            self._is_stale |= trial.id == self.leader or belief.mean > self.to_beat
            belief.bid = self._bid_of(view, trial, belief)
        self._refresh(view)
        if trial.id == self.leader:
            return self._lead(view, trial)
        if trial.id not in self.beliefs or trial.step < self._first_look(view):
            return base.NOTHING
        return self._leave(view, trial)

    def _lead(self, view: View, trial: TrialView) -> Sequence[Decision]:
        """Rest, or grow into free atoms, as far as that pays."""
        elsewhere = max(self._new, self._waiting(view)[0])
        if not self._wanted(view, elsewhere) and elsewhere > 0:
            return (Pause(trial.id, "pauses: its gain is worth less than a look elsewhere"),)
        if not _may_grow(view, trial):
            return base.NOTHING
        atoms = self._wanted(view, elsewhere, trial.atoms + view.atoms_free)
        if atoms <= trial.atoms:
            return base.NOTHING
        return (Resize(trial.id, atoms, f"grows {trial.atoms} -> {atoms}: the best forecast"),)

    def _leave(self, view: View, trial: TrialView) -> Sequence[Decision]:
        """Pause the trial if its atoms are worth more elsewhere."""
        waiting, who = self._waiting(view, view.atoms_free + view.atoms_coming)
        if max(waiting, self._new) <= self.beliefs[trial.id].bid:
            return base.NOTHING
        better = f"trial {who}" if waiting > self._new else "a new configuration"
        return (Pause(trial.id, f"pauses: {better} promises more"),)

    # ------------------------------------------------------------ free atoms

    def on_exit(self, view: View, trial: TrialView) -> Sequence[Decision]:
        if trial.is_final:
            self._over = max(self._over, trial.best_score)
        if trial.is_final or trial.id == self.leader:
            self._is_stale = True
        elif trial.id in view.paused and trial.id in self.beliefs:
            self._queue.append(trial.id)
            self._queue.sort(key=self._by_bid)
        return base.NOTHING

    def on_capacity(self, view: View) -> Sequence[Decision]:
        if view.is_too_late:
            return base.NOTHING
        self._refresh(view)
        waiting, who = self._waiting(view)
        elsewhere = max(self._new, waiting)
        best = None if self.leader is None else view.trials[self.leader]
        is_ready = best is not None and best.may_resume
        if best and is_ready and (atoms := self._wanted(view, elsewhere, view.atoms_free)):
            return (Resume(best.id, atoms, "the best forecast continues"),)
        if best and _may_grow(view, best):
            most = best.atoms + view.devices.room(best.devices) + view.atoms_coming
            if self._wanted(view, elsewhere, most) > best.atoms:
                return base.NOTHING  # kept for its next report
        # Where one trial fits at a time the best of those that wait would always be ahead of the mean of all.
        is_ahead = waiting > self._new and not _is_alone(view)
        if who is not None and (is_ahead or not view.may_draw):
            return (Resume(who, 1, "the most promising of those that wait"),)
        if view.can_draw:
            return (Start(1, "a new configuration"),)
        if best and is_ready and not view.may_draw:
            return (Resume(best.id, view.atoms_free, "nothing else is left to do"),)
        return base.NOTHING

    # ------------------------------------------------------------ for people

    def notes(self, view: View) -> Sequence[str]:
        if self.leader is None:
            return ("no trial leads: none that may train has come to its first look",)
        return (f"trial {self.leader} has the best forecast, {self._in_words(self.leader)}",)

    def explain(self, view: View, trial: TrialView) -> Sequence[str]:
        if trial.id not in self.beliefs or trial.is_final:
            return ()
        leads = ("it has the best forecast of all",) if trial.id == self.leader else ()
        return (f"forecast {self._in_words(trial.id)}", *leads)

    def _in_words(self, trial: int) -> str:
        belief = self.beliefs[trial]
        return f"{show_metric(belief.mean * self.curves.sign)} +- {belief.deviation:.2g} at the deadline"


def _is_alone(view: View) -> bool:
    """Tell whether one trial fits at a time."""
    return view.atoms_total < 2 * view.rules.smallest


def _may_grow(view: View, leader: TrialView) -> bool:
    is_running = leader.state is TrialState.RUNNING and not leader.is_resizing
    has_room = view.devices.room(leader.devices) > 0
    return is_running and has_room and leader.steps_since_launch >= COOLDOWN
