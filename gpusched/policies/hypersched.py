"""``hypersched``: the best-trained model at the deadline (HyperSched, SoCC'19, sections 3.3 and 4, Algorithms 1 and 3).

Ten lines of Algorithm 3 and what answers them here; what is ours stands in ``docs/policies.md``:

    line 4      Ta, the measured time of a step (on the fewest atoms)  ``State.first_step_s``
    line 7      tf, the furthest trial's time                          ``State.longest_training_s``
    line 8, 9   entrance: min(R*Ta, eta*tf) < time left, atoms free    ``_may_enter``
    line 12     trial.iter > R: stop                                   ``base.ended``
    line 14-20  at *every* rung at or below the trial: keep or pause   ``_failed_rung``
    line 21     uniform allocation of N atoms over the live trials     ``_share``
    line 22-25  resize if it pays and the COOLDOWN is over             ``_grow``
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from gpusched.core.decisions import (
    NO_STEP_FITS,
    Decision,
    LeaveFree,
    Pause,
    Resize,
    Resume,
    Start,
    Stop,
    TrialView,
    View,
)
from gpusched.core.rung import Rung
from gpusched.policies import base
from gpusched.policies.asha import Asha, explain_rungs, promoted
from gpusched.text import count, ordinal, show_clock, show_metric

#: To, as a share of the deadline, up to which a comparison on one atom pays: each arrival costs a launch. Simulated on
#: Score(k) for 400 steps, without speculation is 0.05 ahead of Algorithm 3 at 2%, and 0.08 behind at 5% (20, 10 seeds).
LAUNCH_MOST = 0.03
#: The paper's cooldown, in steps; and the time trained, in launches, that is enough in its place.
COOLDOWN, WORTH = 5, 10
POWERS = tuple(1 << n for n in range(10))


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(base.HalvingOptions):
    """HyperSched's parameters; the deadline and the atoms are the experiment's."""

    #: COOLDOWN of Algorithm 3, in steps since the last launch; None: 5, or fewer where a step takes far longer than a
    #: launch, which it keeps from costing more than it brings.
    cooldown: int | None = None

    def problems(self) -> Iterator[base.BadOption]:
        yield from base.HalvingOptions.problems(self)
        if self.cooldown is not None and self.cooldown < 0:
            yield "cooldown", f"must be 0 or more steps, not {self.cooldown}"


@cache
def dealt(total: int, live: int, sizes: tuple[int, ...], most: int | None) -> tuple[int, ...]:
    """Line 21 where only some sizes are allowed: in turn, the best first, each goes up to the next size that is left.

    8 atoms and three trials are 4, 2, 2 with sizes 1, 2, 4, 8, and 3, 3, 2 with all sizes.
    """
    allowed = sorted(size for size in set(sizes) if most is None or size <= most) or [min(sizes)]
    places = [0] * live
    left, goes_up = total - live * allowed[0], True
    while goes_up:
        goes_up = False
        for rank, place in enumerate(places):
            if place + 1 < len(allowed) and (step := allowed[place + 1] - allowed[place]) <= left:
                places[rank], left, goes_up = place + 1, left - step, True
    return tuple(allowed[place] for place in places)


class HyperSched(Asha):
    """Deadline-aware successive halving with moving atoms."""

    options_type = Options
    options: Options

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        #: Trials that were woken because nothing else ran, and the step they had then: rungs up to there do not
        #: pause them again, or each of their steps would cost a launch.
        self._woken_at: dict[int, int] = {}
        self._entrance_closed_at: float | None = None
        #: The most steps of a complete trial, and of any.
        self._longest = self._furthest = 0
        #: Trials that have let a report pass because more atoms were coming, and the incarnation that did.
        self._waited: dict[int, int] = {}

    # ------------------------------------------------------------ Algorithm 3, schedule(trial)

    def on_report(self, view: View, trial: TrialView) -> Sequence[Decision]:
        self._furthest = max(self._furthest, trial.step)
        done = base.ended(trial, self.options.R)
        if done:
            return done
        rung = self._arrival(trial)
        speculates = self._speculates(view)
        failed: Rung | None = None
        if speculates:
            failed = self._failed_rung(trial)
        elif rung is not None and rung.rank(trial.id) >= rung.places:
            failed = rung  # Algorithm 2, lines 10 and 11
        if failed is not None:
            place = f"{ordinal(failed.rank(trial.id))} of {len(failed)} at rung {failed.milestone}"
            bar = f"cut-off {_cutoff(view, trial, failed)}" if speculates else promoted(failed)
            return (Pause(trial.id, f"pauses: {place}, {bar}"),)
        grown = self._grow(view, trial)
        if not self._fits(view, trial, grown[0].atoms if grown else trial.atoms):
            if self._fits(view, trial, view.fit(trial, view.atoms_total)):
                why = f"pauses at step {trial.step}: on {trial.size_in_words} {NO_STEP_FITS}"
                return (Pause(trial.id, why),)
            return (Stop(trial.id, f"leaves at step {trial.step}: {NO_STEP_FITS}"),)
        return grown

    def _speculates(self, view: View) -> bool:
        """Tell whether the first to arrive at a rung continues (Algorithm 3), and is judged again at every report."""
        if view.atoms_total >= 2 * view.rules.smallest:
            return True
        # The first launch alone says nothing: what scripts import is loaded in it. Of three the median is another's.
        pays = len(view.trials) < 3 or view.overhead_s <= LAUNCH_MOST * view.rules.deadline_s
        return not (pays and view.may_draw and self._may_enter(view))

    def _failed_rung(self, trial: TrialView) -> Rung | None:
        """Lines 14 to 20, at every report: the rungs at or below the trial's step, for early birds too."""
        above = self._woken_at.get(trial.id, 0)
        passed = (rung for rung in self.ladder.rungs if above < rung.milestone <= trial.step)
        return next((rung for rung in passed if rung.fails(trial.id)), None)

    def _fits(self, view: View, trial: TrialView, atoms: int) -> bool:
        """Tell whether another step ends before the deadline, on so many atoms, which may need a save and a launch."""
        needed_s = trial.stride * (view.step_s(trial) or 0.0) / view.speedup(atoms)
        if atoms != trial.atoms:
            needed_s += view.overhead_s + (trial.save_s if trial.is_live else 0.0)
        return needed_s <= view.time_left_s

    # ------------------------------------------------------------ lines 21 to 25: resize

    def _grow(self, view: View, trial: TrialView) -> Sequence[Resize]:
        free = view.devices.room(trial.devices)
        if not free or self._cooldown_s(view, trial) > 0:
            return ()
        held, share = trial.atoms, self._share(view, trial)
        atoms = view.fit(trial, min(share, held + free))
        if atoms <= held or self._waits_for_more(view, trial, share, atoms):
            return ()
        more = self._more_steps(view, trial, atoms)
        if more <= 0:
            return ()
        why = f"grows {held} -> {atoms}: {more:.0f} more steps before the deadline"
        return (Resize(trial.id, atoms, why),)

    def _cooldown_s(self, view: View, trial: TrialView) -> float:
        """Return the time until a trial may grow: the COOLDOWN's; ours is that ten times a launch's is enough."""
        cooldown, step_s = self.options.cooldown, trial.step_time_s or 1.0
        needed_s = ((COOLDOWN if cooldown is None else cooldown) + 1) * step_s
        if cooldown is None and view.overhead_s > 0:
            needed_s = min(needed_s, max((trial.stride + 1) * step_s, WORTH * view.overhead_s))
        return max(0.0, needed_s - trial.steps_since_launch * step_s)

    def _more_steps(self, view: View, trial: TrialView, atoms: int, in_s: float = 0.0) -> float:
        """Return how many steps more a growth ``in_s`` seconds from now brings before the deadline."""
        left_s = view.time_left_s - in_s
        grown_s = (left_s - view.overhead_s) * view.speedup(atoms)
        return (grown_s - left_s * view.speedup(trial.atoms)) / (view.step_s(trial) or 1.0)

    def _could_grow(self, view: View, trial: TrialView) -> bool:
        """Tell whether free atoms would help a live trial, now or when its cooldown is over."""
        held = trial.atoms
        room = view.devices.room(trial.devices)  # on its own node
        atoms = view.fit(trial, min(self._share(view, trial), held + room))
        in_s = self._cooldown_s(view, trial)
        return 0 < held < atoms and self._more_steps(view, trial, atoms, in_s) > 0

    def _waits_for_more(self, view: View, trial: TrialView, share: int, atoms: int) -> bool:
        """Tell whether to let this one report pass for atoms that are coming: one resize instead of two."""
        if self._waited.get(trial.id) == trial.incarnation:
            return False
        soon = trial.atoms + view.devices.room(trial.devices) + view.atoms_coming
        if view.fit(trial, min(share, soon)) <= atoms:
            return False
        self._waited[trial.id] = trial.incarnation
        return True

    def _share(self, view: View, trial: TrialView) -> int:
        """Line 21: live trials sorted by latest metric, one atom each in turn until all are given out."""
        total, live = view.atoms_total, max(1, len(view.live))
        rank = view.rank_among_live(trial)
        if sizes := POWERS if view.powers_alone else view.rules.sizes:
            return dealt(total, live, sizes, view.rules.max_atoms)[rank]
        return total // live + (rank < total % live)

    # ------------------------------------------------------------ Algorithm 1, start_next_trial; Algorithm 3, entrance

    def on_capacity(self, view: View) -> Sequence[Decision]:
        if view.is_too_late:
            return (LeaveFree("no step fits into the time that is left"),)
        if self._may_enter(view):
            declined = "no configuration is left to start, and no paused trial is good enough"
            self._entrance_closed_at = None
            for rung in reversed(self.ladder.rungs):
                for trial_id in rung.promotable(view.paused):
                    trial = view.trials[trial_id]
                    # Not one that its next report would pause for a lower rung, or that makes none in time.
                    stays = not self._speculates(view) or self._failed_rung(trial) is None
                    if trial.may_resume and stays and self._fits(view, trial, view.fit(trial, 1)):
                        return (Resume(trial_id, 1, f"promoted from rung {rung.milestone}"),)
            if view.can_draw:
                return (Start(1, "a new configuration enters"),)
            if view.awaits_configuration:
                return (LeaveFree("the sampler has not answered yet"),)
        else:
            declined = "a new trial could not catch up before the deadline"
            if self._entrance_closed_at is None:
                self._entrance_closed_at = view.now
        if any(self._could_grow(view, trial) for trial in view.live.values()):
            return (LeaveFree(declined),)
        return self._wake_the_best(view) or (LeaveFree(declined),)

    def on_exit(self, view: View, trial: TrialView) -> Sequence[Decision]:
        if trial.state.value == "completed":
            self._longest = max(self._longest, trial.step)
        return base.NOTHING

    def _may_enter(self, view: View) -> bool:
        """Lines 5 to 9; that atoms are free is why we are asked."""
        needed_s = self.options.eta * view.longest_training_s
        # Where no trial has come further than one whose script is over, that is the script's own length.
        R = self._longest if 0 < self._longest == self._furthest else self.options.R
        step_s = view.first_step_s
        if R is not None and step_s is not None:
            needed_s = min(R * step_s, needed_s)
        return needed_s < view.time_left_s

    def _wake_the_best(self, view: View) -> Sequence[Decision]:
        """Never idle: the best paused trial continues, whatever the entrance rule says."""
        best = next(iter(view.paused_by_score()), None)
        if best is None:
            # Nothing has been paused: a late start is still better than an idle machine.
            can_start = view.can_draw and not view.live
            return (Start(1, "nothing else to run"),) if can_start else base.NOTHING
        atoms = view.fit(best, view.atoms_free)
        if view.speedup(atoms) <= view.speedup(1):
            atoms = view.fit(best, 1)
        if (view.live or view.atoms_coming) and not self._fits(view, best, atoms):
            return base.NOTHING  # it waits for more
        self._woken_at[best.id] = best.step
        why = "no better trial can use the free atoms" if view.live else "nothing else runs"
        return (Resume(best.id, atoms, f"continues: {why}"),)

    # ------------------------------------------------------------ for people

    def notes(self, view: View) -> Sequence[str]:
        if self._entrance_closed_at is None:
            if view.may_draw:
                return ("exploring: new configurations may enter",)
            return ("every configuration has begun; paused trials may be promoted",)
        since, tried = show_clock(self._entrance_closed_at), len(view.trials)
        notes = [f"exploiting: no new configuration since {since}"]
        step_s = view.first_step_s
        if view.can_draw and step_s and tried < 2 * self.options.eta:
            steps = count(int(view.rules.deadline_s / step_s), "step")
            notes.append(f"only {tried} tried: the deadline is as long as {steps}")
        return notes

    def explain(self, view: View, trial: TrialView) -> Sequence[str]:
        lines = explain_rungs(self.ladder.rungs, trial, view.rules.sign)
        failed = None if trial.is_final else self._failed_rung(trial)
        if failed is not None and (self._speculates(view) or not trial.is_live):
            best = "the best" if failed.places == 1 else f"among the best {failed.places}"
            until = f"it is {best}" if failed.places else "more trials have come here"
            worse = f"behind the cut-off {_cutoff(view, trial, failed)} of rung {failed.milestone}"
            lines.append(f"{worse}: it pauses or stays paused until {until}")
        if trial.is_live:
            share = view.fit(trial, self._share(view, trial))
            lines.append(f"its share of {count(view.atoms_total, 'atom')} is {share}")
        return lines


def _cutoff(view: View, trial: TrialView, rung: Rung) -> str:
    bar = rung.cutoff()
    is_tied = bar == rung.score(trial.id)
    return show_metric(bar * view.rules.sign) + " (others had it before)" * is_tied
