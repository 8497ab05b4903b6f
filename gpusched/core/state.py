"""The state of a search: all that is true of it now, and the questions a policy may ask of it.

Policies get this object as their ``View`` and must not change it; ``Experiment`` alone does.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from gpusched.core.allocation import DeviceTable
from gpusched.core.rules import Configurations, Draw, Rules
from gpusched.core.speed import Speed
from gpusched.core.trial import NEVER, BestCheckpoint, TrialRecord, TrialState

#: Names of timers: the end of the search and of its last trials, a policy's wake, the watch for silent trials.
DEADLINE, LAST_CALL, WAKE, WATCH = "deadline", "last call", "wake", "watch"
#: Reason for the end of a search in which no trial can continue and none can start.
NOTHING_LEFT = "nothing left to run"
#: The same where something is left, and no step of it would end in time.
TOO_LATE = "no step would end before the deadline"
#: After so many trials that fail alike, one after the other, none is begun for a while: half of the configurations may
#: be too large for a GPU, and a script that was edited may be mended.
MOST_ALIKE, ALIKE_PAUSE_S = 20, 600.0


class State:
    """The standing of one search."""

    def __init__(self, rules: Rules, draw: Draw | None) -> None:
        self.rules = rules
        self.now = 0.0
        self.devices = DeviceTable(apart=rules.islands_apart)
        self.speed = Speed(rules.scaling)
        self.trials: dict[int, TrialRecord] = {}
        self.live: dict[int, TrialRecord] = {}
        self.paused: dict[int, TrialRecord] = {}
        #: Reason for which the policy left atoms free when it was last asked.
        self.declined = ""
        self.best: BestCheckpoint | None = None
        #: When a trial was last asked to save because it had become the best.
        self.best_asked_at = NEVER
        #: When each trial was last asked to save a checkpoint and train on.
        self.save_asked_at: dict[int, float] = {}
        #: Trial that was last asked to hold a copy of the best model, and its score.
        self.held_by, self.held_score = -1, NEVER
        #: The longest that a checkpoint of any trial took, and the largest one.
        self.longest_save_s, self.largest_save_bytes = 0.0, 0
        #: Trials that were saving the best model so far when the search came to its end.
        self.last_savers: set[int] = set()
        self.failures, self.failed_at = 0, NEVER
        #: Whether a trial has failed on a number of atoms that is no power of two, before a report from there: where
        #: the recipe names no sizes, trials have powers of two then.
        self.powers_alone = False
        #: Errors of the last trials that failed, since a launch came to its second report, or left in order after one.
        self.last_errors: deque[str] = deque(maxlen=MOST_ALIKE)
        #: Trials that continue as soon as atoms are free, whatever the policy thinks, in the order asked: a person
        #: unpaused them, they lost their devices while they were to train, or the search continues after its end.
        self.wanted: list[int] = []
        #: Trials that came to rest (paused or final) and of which the policy has not been told yet.
        self.rested: deque[TrialRecord] = deque()
        #: Trials that came to rest while the search was ending: the policy is told of them if the search continues.
        self.untold: dict[int, TrialRecord] = {}
        self.configurations = Configurations(draw)
        #: Reason why the search is ending; None while it continues.
        self.stopping: str | None = None
        #: The disk has too little room for checkpoints: nothing is begun.
        self.storage_low = False
        self.finished = False
        #: Times at which ``TimerFired`` is due; a timer that is set again moves.
        self.timers: dict[str, float] = {}
        #: Sentences about the search as a whole, of the event that was handled last.
        self.said: list[str] = []
        self._longest_past_s = 0.0

    # ------------------------------------------------------------ questions of a policy

    @property
    def time_left_s(self) -> float:
        """Seconds until the deadline."""
        return self.rules.deadline_s - self.now

    @property
    def atoms_total(self) -> int:
        """Atoms that can be used at all (those in quarantine are not counted)."""
        return self.devices.total - len(self.devices.quarantined)

    @property
    def atoms_free(self) -> int:
        """Atoms that can be given to a trial now."""
        return len(self.devices.free)

    @property
    def atoms_coming(self) -> int:
        """Atoms that come free as soon as their trial has left, or their release is confirmed."""
        coming = 0
        for trial in self.live.values():
            if trial.after is not None:
                coming += max(0, trial.atoms + len(trial.reserved) - trial.after.atoms)
        slots = self.devices.slots
        return coming + sum(slots[name].awaited_by is None for name in self.devices.draining)

    @property
    def awaits_configuration(self) -> bool:
        """Whether the sampler has been asked for a configuration and has not answered."""
        return self.configurations.asked_for is not None

    @property
    def wake_at(self) -> float | None:
        """The time of the policy's next wake, in seconds since the search began; None: none is awaited."""
        return self.timers.get(WAKE)

    @property
    def overhead_s(self) -> float:
        """Median seconds that a launch or a resize costs (To of HyperSched, 4.3); 0 before the first was measured."""
        return self.speed.overhead_s or 0.0

    @property
    def first_step_s(self) -> float | None:
        """Median seconds of a step on the fewest atoms of a trial (Ta of Algorithm 3); None before one was measured."""
        step_s = self.speed.step_on_one_atom_s
        return None if step_s is None else step_s / self.speedup(self.rules.smallest)

    def step_s(self, trial: TrialRecord | None = None) -> float | None:
        """Return the time of a step on one atom: this trial's where it is known, else the median."""
        if trial is None or trial.step_time_s is None:
            return self.speed.step_on_one_atom_s
        return trial.step_time_s * self.speedup(max(1, trial.trained_atoms))

    @property
    def is_too_late(self) -> bool:
        """Whether not even a step of a quarter of the usual time would end before the deadline, behind a launch."""
        step_s = self.first_step_s
        return step_s is not None and self.overhead_s + step_s / 4 > self.time_left_s

    def speedup(self, atoms: int) -> float:
        """Return s(a): the throughput on ``atoms`` atoms relative to one, as given or learnt."""
        return self.speed.s(atoms)

    def fit(self, trial: TrialRecord | None, atoms: int) -> int:
        """Return the largest size of at most ``atoms`` that may do for this trial, or a new one, by what has failed."""
        cap = None if trial is None else trial.cap
        size = self.rules.fit(atoms if cap is None else min(atoms, cap.atoms))
        return 1 << (size.bit_length() - 1) if self.powers_alone else size

    @property
    def can_draw(self) -> bool:
        """Whether there is another configuration to start."""
        return self.configurations.has_next(self.rules.max_trials)

    @property
    def may_draw(self) -> bool:
        """Whether there is one, or the sampler may answer with one."""
        return self.can_draw or self.awaits_configuration

    @property
    def draws_left(self) -> float:
        """Number of configurations that can still be started, as far as is known; infinite without a limit."""
        return self.configurations.left(self.rules.max_trials)

    @property
    def kept_score(self) -> float:
        """Score of the best checkpoint so far."""
        return self.best.score if self.best is not None else NEVER

    def rank_among_live(self, trial: TrialRecord) -> int:
        """Return 0 for the live trial with the best latest score; equal scores by age."""
        mine = (-trial.score, trial.id)
        return sum((-other.score, other.id) < mine for other in self.live.values())

    def paused_by_score(self) -> list[TrialRecord]:
        """Return the paused trials that may resume, the best latest score first; of equal ones the first."""
        able = (trial for trial in self.paused.values() if trial.may_resume)
        return sorted(able, key=lambda trial: (-trial.score, trial.id))

    @property
    def longest_training_s(self) -> float:
        """Seconds that the trial trained longest has trained (Algorithm 3, line 7: the furthest trial's time)."""
        live_s = (trial.training_s(self.now) for trial in self.live.values())
        return max(self._longest_past_s, *live_s, 0.0)

    @property
    def why_all_fail(self) -> str:
        """Error of the last trials, which have all failed by it: the script was edited, say, or its data are gone."""
        errors = self.last_errors
        if len(errors) < MOST_ALIKE or len(set(errors)) > 1:
            return ""
        return f"the last {MOST_ALIKE} trials failed alike: {errors[0]}"

    @property
    def may_go_on(self) -> bool:
        """Whether something may yet start a trial of a search in which none is live."""
        if self.devices.draining or WAKE in self.timers:
            return True
        return bool(self.may_draw or self.paused) and bool(
            self.awaits_configuration
            or self.storage_low  # there may be room again
            or self.atoms_total < self.rules.smallest  # devices may come back from quarantine
            # The first trial may want more than can be used yet.
            or (self.devices.quarantined and not self.trials)
            or any(trial.held_by_user for trial in self.paused.values())
        )

    # ------------------------------------------------------------ changes, for Experiment alone

    def draw(self, tag: Any = None) -> TrialRecord:
        """Make the next trial. The caller has asked ``can_draw``."""
        assert self.can_draw, "no configuration left to draw"
        trial = TrialRecord(len(self.trials), self.configurations.take(), tag)
        self.trials[trial.id] = trial
        return trial

    def move(self, trial: TrialRecord, to: TrialState, why: str) -> None:
        """Change a trial's state and the indices with it."""
        trial.go(to, self.now, why)
        is_down = to is TrialState.STARTING or not to.is_live
        if is_down and trial.up_at is not None:
            trial.past_training_s, trial.up_at = trial.training_s(self.now), None
            self._longest_past_s = max(self._longest_past_s, trial.past_training_s)
        if to.is_live:
            self.live[trial.id] = trial
        else:
            self.live.pop(trial.id, None)
            self.rested.append(trial)
        if to is TrialState.PAUSED:
            self.paused[trial.id] = trial
        else:
            self.paused.pop(trial.id, None)
            self.unwant(trial)

    def want(self, trial: TrialRecord) -> None:
        """Have the trial continue as soon as atoms are free."""
        if trial.id not in self.wanted:
            self.wanted.append(trial.id)

    def unwant(self, trial: TrialRecord) -> None:
        if trial.id in self.wanted:
            self.wanted.remove(trial.id)

    @property
    def best_unsaved(self) -> TrialRecord | None:
        """The trial that has reported more than the best checkpoint scores; None where the best has a checkpoint."""
        ahead = [trial for trial in self.trials.values() if trial.best_score > self.kept_score]
        return max(ahead, key=lambda trial: trial.best_score, default=None)
