"""``pop``: promising, opportunistic, poor (HyperDrive, Middleware'17, sections 3 and 5.3).

    every b-th step: below the kill threshold it is poor and stops             ``on_report``        (5.3)
    its curve is extrapolated over the M = (Tmax - Tpass) / Epoch steps left   ``_outlook``         (3.1.1)
        p   chance to reach the target within Tmax; below 0.05 it is poor      ``_judge``           (1), (2); 5.3
        ERT expected remaining time = x * Epoch                                                     (3)
    S_desired(p) = trials with that much confidence, S_deserved(p) = S * p,    ``split``            (3.2)
        p_threshold maximises S_effective(p) = min(both)
    promising trials (the first S_effective by p) keep their atoms; the other trials take turns: after b steps an
        opportunistic trial is suspended and the next one in line runs         ``on_capacity``      (3.2, 5.3)

A *slot* is the least number of atoms of a trial. New configurations come before suspended trials (5.3); without
``max_trials`` the suspended get every other slot. Without a target in the recipe one rises (section 9): ``RAISE_BY`` of
the way from the best metric so far to the best possible one. Ours: the trial with the best metric is never poor; M ends
at ``R``; curves are extrapolated by the shapes of ``foresight`` (``extrapolation.py``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from gpusched.core.decisions import Decision, Pause, Resume, Start, Stop, TrialView, View
from gpusched.core.rules import Rules
from gpusched.core.trial import NEVER, TrialState
from gpusched.policies import base
from gpusched.policies.extrapolation import CurvePredictor, ShapesPredictor, extrapolate

#: Below this chance to reach the target a trial is poor (5.3).
P_POOR = 0.05
#: Distance of a rising target beyond the best metric, as a share of what is still possible.
RAISE_BY = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(base.BoundedOptions):
    """``R`` most steps of a trial; ``b`` steps between two judgements."""

    #: A metric above that of a trial which has not learnt anything, or has unlearnt it.
    kill_threshold: float | None = None


@dataclass(frozen=True, slots=True)
class Known:
    """Expectation for a trial: p, the remaining time, and the step at which it was said."""

    p: float
    ert_s: float
    step: int


def split(known: Mapping[int, Known], slots: int) -> list[int]:
    """Return the promising trials, the one with the highest p first (3.2): one a slot of the largest S_effective(p).

    That is min(S_desired(p), S_deserved(p)). With trials ordered by p, the i-th has S_desired = i and S_deserved =
    slots * p_i.
    """
    order = sorted(known, key=lambda n: (-known[n].p, known[n].ert_s, n))
    effective = (min(place, slots * known[number].p) for place, number in enumerate(order, 1))
    return order[: int(max(effective, default=0.0) + 1e-9)]


class Pop(base.Policy):
    """Confidence decides who keeps its atoms, who waits for a turn, and who goes."""

    options_type = Options
    options: Options
    predictor: ClassVar[CurvePredictor] = ShapesPredictor()

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        #: Expectations for the trials that are under way; the promising ones.
        self.known: dict[int, Known] = {}
        self.promising: list[int] = []
        self._best = NEVER
        self._best_trial: int | None = None
        #: The rising target, for a recipe without one.
        self._rising = 0.0
        #: Whether the last slot went to a new configuration: the next one is for a suspended trial.
        self._gave_to_new = False
        #: Suspended trials, in the order of their turns.
        self._line: deque[int] = deque()
        #: Promising trials that are suspended: they come first, and others make room for them.
        self._urgent: list[int] = []

    # ------------------------------------------------------------ reports

    def on_report(self, view: View, trial: TrialView) -> Sequence[Decision]:
        self._note_metric(view, trial)
        if view.rules.is_reached_by(trial.metric):
            return base.NOTHING  # the search ends here
        done = base.ended(trial, self.options.R)
        if done:
            return done
        if trial.has_passed(self.options.b):
            return self._judge(view, trial)
        urgent = self._urgent
        if urgent and trial.id not in self.promising and self._must_make_room(view, len(urgent)):
            return (Pause(trial.id, "gives its atoms to a promising trial"),)
        return base.NOTHING

    def _judge(self, view: View, trial: TrialView) -> Sequence[Decision]:
        """5.3, OnIterationFinish on an evaluation boundary."""
        threshold = self.options.kill_threshold
        if threshold is not None and trial.score < threshold * view.rules.sign:
            why = f"poor: not past {threshold:g} after {trial.step} steps"
            return (Stop(trial.id, why),)
        known = self._outlook(view, trial) if trial.metric is not None else None
        if known is not None:
            self.known[trial.id] = known
            if known.p < P_POOR and trial.id != self._best_trial:
                return (Stop(trial.id, f"poor: reaches the target with p = {known.p:.2g}"),)
            self._classify(view)
        return self._take_turns(view, trial)

    def _outlook(self, view: View, trial: TrialView) -> Known | None:
        """3.1.1: M = (Tmax - Tpass) / Epoch, with the measured average duration of a step."""
        step_s = trial.training_s(view.now) / trial.step or trial.step_time_s or 0.0
        if step_s <= 0:
            return None
        left = int(view.time_left_s / step_s)
        if self.options.R is not None:
            left = min(left, self.options.R - trial.step)
        if left < 1:
            return None
        curve, stride = base.curve_of(trial, self.options.scale(view.rules.sign))
        horizon, seed = len(curve) + max(1, round(left / stride)), (trial.id, trial.step)
        found = extrapolate(curve, horizon, self._target(view), predictor=self.predictor, seed=seed)
        if found is None:
            return None
        # Equation 3, and "set ERT = Tmax - Tpass" where it would be more.
        ert_s = min(found.remaining_steps * stride * step_s, view.time_left_s)
        return Known(found.reached_by_end, ert_s, trial.step)

    # ------------------------------------------------------------ the target

    def _note_metric(self, view: View, trial: TrialView) -> None:
        if trial.metric is None or trial.score <= self._best:
            return
        self._best, self._best_trial = trial.score, trial.id
        best = self.options.scale(view.rules.sign).of_score(self._best)
        if best >= self._rising:
            self._rising = best + RAISE_BY * (1.0 - best)

    def _target(self, view: View) -> float:
        given = view.rules.target
        scale = self.options.scale(view.rules.sign)
        return self._rising if given is None else scale.of_metric(given)

    # ------------------------------------------------------------ turns

    def _classify(self, view: View) -> None:
        """3.2: how many trials are promising, and which of them wait for atoms."""
        slots = max(1, view.atoms_total // view.rules.smallest)
        self.promising = split(self.known, slots)
        self._urgent = [trial for trial in self.promising if view.trials[trial].may_resume]

    def _take_turns(self, view: View, trial: TrialView) -> Sequence[Decision]:
        """5.3: "if the job is opportunistic we suspend it and start a new job", if there is one."""
        if trial.state is not TrialState.RUNNING or trial.id in self.promising:
            return base.NOTHING
        if not self._must_make_room(view, self._waiting(view)):
            return base.NOTHING
        return (Pause(trial.id, f"opportunistic: it was its turn until step {trial.step}"),)

    def _must_make_room(self, view: View, waiting: float) -> bool:
        """Tell whether one of so many that wait gets no slot, free or coming, unless another trial leaves."""
        slot = view.rules.smallest
        if view.atoms_free >= slot:
            return False
        return waiting > (view.atoms_free + view.atoms_coming) // slot

    def _waiting(self, view: View) -> float:
        """Return how many trials and new configurations would take a slot."""
        suspended = sum(trial.may_resume for trial in view.paused.values())
        return view.draws_left + max(suspended, len(self._urgent))

    # ------------------------------------------------------------ atoms

    def on_capacity(self, view: View) -> Sequence[Decision]:
        while self._urgent:
            trial = self._urgent.pop(0)
            if view.trials[trial].may_resume:
                p = self.known[trial].p
                return (Resume(trial, 1, f"promising: p = {p:.2f}"),)
        alternates = view.rules.max_trials is None
        is_turn_of_new = view.can_draw and not (self._gave_to_new and alternates)
        suspended = None if is_turn_of_new else self._next_in_line(view)
        self._gave_to_new = view.can_draw and suspended is None
        if suspended is not None:
            self._line.popleft()
            return (Resume(suspended, 1, "its turn again"),)
        return (Start(1, "a new configuration"),) if view.can_draw else base.NOTHING

    def _next_in_line(self, view: View) -> int | None:
        """The suspended trial whose turn is next; brought to the head of the line."""
        for _ in range(len(self._line)):
            trial = self._line[0]
            if view.trials[trial].may_resume:
                return trial
            self._line.popleft()
            if trial in view.paused:  # a person holds it
                self._line.append(trial)
        return None

    def on_exit(self, view: View, trial: TrialView) -> Sequence[Decision]:
        if trial.is_final:
            self.known.pop(trial.id, None)
        elif trial.id not in self._line:
            if not self._line:
                self._gave_to_new = False  # one that has just had its turn makes way for a new one
            self._line.append(trial.id)
        if self.known:
            self._classify(view)
        return base.NOTHING

    # ------------------------------------------------------------ for people

    def problems(self, rules: Rules, atoms: int) -> Iterator[base.BadOption]:
        low, high, target = self.options.metric_min, self.options.metric_max, rules.target
        if None not in (low, high, target) and not low <= target <= high:  # type: ignore[operator]
            why = f"the target {target:g} must lie within the metric's bounds, {low:g} to {high:g}"
            yield "metric_max", why

    def notes(self, view: View) -> Sequence[str]:
        if self._best == NEVER:
            return ()
        target = self.options.scale(view.rules.sign).metric(self._target(view))
        aim = f"target {target:.4g}" + (" (rising)" if view.rules.target is None else "")
        return (aim, *self.options.doubts(self._best * view.rules.sign))

    def explain(self, view: View, trial: TrialView) -> Sequence[str]:
        known = self.known.get(trial.id)
        if known is None:
            return ()
        kind = "promising" if trial.id in self.promising else "opportunistic"
        promising = ", ".join(map(str, self.promising)) or "none"
        return (
            f"{kind}: at step {known.step} it was to reach the target with p = {known.p:.2f}, "
            f"in {known.ert_s:.0f} s; promising now: {promising}",
        )
