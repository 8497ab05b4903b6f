"""The experiment: events in, commands out. ``Experiment.handle`` is the only mutator.

No clock, no I/O, no randomness of its own: the same events give the same commands, which is what replay relies on.
One report's way through: the fact is recorded in the trial (``_reported``), the policy answers with decisions,
``Transitions`` turns them into state changes and commands, and if atoms are free the policy is asked who is next
(``_fill``). Then the invariants that the event touched are checked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from gpusched.core import invariants
from gpusched.core.allocation import DeviceState, DeviceTable
from gpusched.core.configurations import Configurations, Draw
from gpusched.core.decisions import Command, Decision, Finish, Resume, Start, Suggest
from gpusched.core.events import (
    CheckpointSaved,
    DaemonResumed,
    DeadlineMoved,
    DeviceQuarantined,
    DeviceReadmitted,
    DevicesJoined,
    DevicesReleased,
    Event,
    ExperimentStarted,
    Forecasted,
    Reopened,
    Reported,
    StorageChanged,
    Suggested,
    TimerFired,
    TrialExited,
    TrialUp,
    Tried,
    UserAsked,
)
from gpusched.core.policy import Policy
from gpusched.core.rules import Rules
from gpusched.core.state import NOTHING_LEFT, State
from gpusched.core.transitions import WAKE, WATCH, Transitions
from gpusched.core.trial import NEVER, RUNNING, After, TrialRecord, TrialState
from gpusched.protocol import Report
from gpusched.text import show_duration, show_hparams

S = TrialState

DEADLINE, LAST_CALL = "deadline", "last call"


class Experiment:
    """One search: its state, its policy, and what follows from each event."""

    def __init__(self, rules: Rules, policy: Policy, draw: Draw | None) -> None:
        """``draw``: the sequence of configurations; None: a sampler with a memory is asked by ``Suggest``."""
        self.state = State(rules, draw)
        self.policy = policy
        self._asks_sampler = draw is None
        self._do = Transitions(self.state)
        self._touched: TrialRecord | None = None
        self._checks = invariants.Checks()
        self._handlers: dict[type[Event], Callable[[Any], None]] = {
            Reported: self._reported,
            TrialUp: self._up,
            CheckpointSaved: self._checkpoint_saved,
            TrialExited: self._exited,
            DevicesReleased: self._released,
            DeviceQuarantined: self._quarantined,
            DeviceReadmitted: self._readmitted,
            StorageChanged: self._storage_changed,
            TimerFired: self._timer_fired,
            Forecasted: self._forecasted,
            Suggested: self._suggested,
            UserAsked: self._user_asked,
            ExperimentStarted: self._started,
            DevicesJoined: self._joined,
            DaemonResumed: self._resumed,
            DeadlineMoved: self._deadline_moved,
            Reopened: self._reopened,
            Tried: self._tried,
        }

    @property
    def finished(self) -> bool:
        return self.state.finished

    def handle(self, event: Event) -> list[Command]:
        """Record a fact and return what must be done about it, in order.

        Raises InvalidTransition or AssertionError where the facts contradict each other; the state is then undefined.
        """
        state = self.state
        if state.finished and type(event) is not Reopened:
            self._after_the_end(event)
            return []
        if event.at > state.now:
            state.now = event.at
        self._touched = None
        self._handlers[type(event)](event)
        if state.rested:
            self._tell_of_rest()
        if state.devices.free and state.stopping is None and not state.storage_low:
            self._fill()
        if self._asks_sampler and state.stopping is None:
            self._ask_sampler(state.configurations)
        if not state.live:
            self._finish_if_over()
        self._checks.after_event(state, self._touched)
        return self._do.take()

    def _ask_sampler(self, of: Configurations) -> None:
        """Ask a sampler with a memory for the next configuration, if it is time."""
        if (n := of.to_suggest(self.state.starts_left)) is not None:
            of.asked_for = n
            self._do.add(Suggest(n))

    def _after_the_end(self, event: Event) -> None:
        """Follow the devices alone."""
        devices = self.state.devices
        match event:
            case DevicesReleased():
                devices.released(event.devices)
            case DeviceQuarantined() if event.device in devices.slots:
                devices.quarantine(event.device, event.reason, passing=event.passing)
            case _:
                pass

    def check(self) -> None:
        """Assert every invariant."""
        invariants.check(self.state)

    # ------------------------------------------------------------ facts about trials

    def _current(self, trial_id: int, incarnation: int) -> TrialRecord | None:
        """Return the trial, unless the event is about an incarnation that is over."""
        trial = self.state.trials.get(trial_id)
        if trial is None or trial.incarnation != incarnation or incarnation <= trial.gone:
            return None
        self._touched = trial
        return trial

    def _up(self, event: TrialUp) -> None:
        trial = self._current(event.trial, event.incarnation)
        if trial is not None and trial.state is S.STARTING and trial.up_at is None:
            self.state.set_up(trial)
            self.state.move(trial, S.RUNNING, f"up on {trial.size_in_words}")

    def _reported(self, event: Reported) -> None:
        report = event.report
        trial = self._current(event.trial, report.incarnation)
        if trial is None or report.seq <= trial.seq:
            return
        state = self.state
        if trial.up_at is None:
            state.set_up(trial)
            if trial.state is S.STARTING:
                state.move(trial, S.RUNNING, f"up on {trial.size_in_words}")
        rules, stride = state.rules, 1
        if rules.version >= 5:
            before = trial.step if trial.steps_of_incarnation else trial.saved_step
            trial.stride = stride = max(1, report.step - before)
        elif rules.version >= 3 and report.step > trial.step:
            stride = report.step - trial.step
        self._measure(trial, report.step_time_s, stride)
        self._record(trial, report, event.metric, stride)
        stays = event.stays and trial.is_resizing
        if (trial.state is RUNNING or stays) and trial.doom is None:
            decisions = self.policy.on_report(state.view, trial.view)
            if decisions:
                self._enact(decisions)
            if rules.target is not None and state.stopping is None:
                self._end_at_target(trial)
            limit_s = rules.trial_limit_s
            if limit_s is not None and trial.training_s(state.now) >= limit_s:
                why = f"complete: has trained for its limit of {show_duration(limit_s)}"
                self._do.leave(trial.id, After(S.COMPLETED, why))
        if stays:
            trial.decided_at = state.now  # the trial trained until now: no overhead
        if state.best is None or trial.score > state.best.score:
            self._do.save_if_better(trial, trains_on=stays and event.can_save)
        every_s = rules.save_every_s
        if every_s is not None and state.now - trial.last_saved_at >= every_s:
            self._do.save_if_due(trial)

    def _record(
        self, trial: TrialRecord, report: Report, metric: float | None, stride: int
    ) -> None:
        state, step = self.state, report.step
        if trial.steps_of_incarnation and trial.last_report_at is not None:
            trial.intervals_s.append(state.now - trial.last_report_at)
        trial.seq, trial.step, trial.report = report.seq, step, report
        trial.last_report_at = state.now
        trial.trained_atoms = len(trial.devices)
        trial.steps_since_resize += stride
        trial.steps_of_incarnation += 1
        if step > trial.furthest_step:
            trial.furthest_step, trial.infrastructure_faults = step, 0
        trial.metric = metric
        state.has_reports = True
        state.set_score(trial, NEVER if metric is None else metric * state.rules.sign)
        trial.curve.add(step, math.nan if metric is None else metric)

    def _end_at_target(self, trial: TrialRecord) -> None:
        """Save this step as its trial leaves and end the search, if the trial's last reports are good enough."""
        rules = self.state.rules
        if not rules.is_reached_by(trial.curve):
            return
        times = f" for {rules.target_for} reports" if rules.target_for > 1 else ""
        reached = f"reached the target {rules.target:g}{times}"
        self._do.cut(trial, S.COMPLETED, reached)
        self._stop_all(f"trial {trial.id} {reached}")

    def _measure(self, trial: TrialRecord, step_time_s: float | None, stride: int) -> None:
        """Learn the step time and, from an incarnation's first report, the overhead of its launch.

        ``stride``: steps since the trial's last report.
        """
        state = self.state
        if step_time_s is None:
            if trial.steps_of_incarnation == 0 or trial.last_report_at is None:
                return
            step_time_s = state.now - trial.last_report_at
        if trial.doom is not None or not step_time_s > 0:
            return  # its devices may be lost; several reports read at once have no time between them
        if trial.steps_of_incarnation == 0 and trial.decided_at is not None:
            state.speed.saw_overhead(state.now - trial.decided_at - step_time_s)
        elif trial.steps_of_incarnation == 1 and trial.step_time_before_s is not None:
            before, trial.step_time_before_s = trial.step_time_before_s, None
            state.speed.saw_resize(before[0], before[1], trial.atoms, step_time_s)
        state.speed.saw_step(len(trial.devices), step_time_s / stride)
        trial.step_time_s = step_time_s

    def _checkpoint_saved(self, event: CheckpointSaved) -> None:
        trial = self._current(event.trial, event.incarnation)
        if trial is None:
            return
        trial.save_s, trial.last_saved_at = event.save_s, self.state.now
        self.state.longest_save_s = max(self.state.longest_save_s, event.save_s)
        self._do.saved(trial, event.step)

    def _exited(self, event: TrialExited) -> None:
        trial = self._current(event.trial, event.incarnation)
        if trial is None:
            return
        if event.saved_step is not None:
            self._do.saved(trial, event.saved_step)
        self._do.exited(trial, event)
        self._give_up_if_hopeless()

    # ------------------------------------------------------------ facts about devices

    def _started(self, event: ExperimentStarted) -> None:
        self.state.devices = DeviceTable(
            event.devices, event.islands, apart=self.state.rules.islands_apart
        )
        for name, reason in event.unusable.items():
            self.state.devices.quarantine(name, reason, passing=True)
            self.state.say(None, f"{name} is quarantined: {reason}")
        self._do.set_timer(DEADLINE, self.state.rules.deadline_s)
        if self.state.rules.watch:
            self._do.watch()

    def _joined(self, event: DevicesJoined) -> None:
        self.state.devices.join(event.devices, event.islands)
        self.state.say(None, f"{', '.join(event.devices)} joined the search")

    def _released(self, event: DevicesReleased) -> None:
        for trial_id in sorted(self.state.devices.released(event.devices)):
            self._do.launch_if_ready(self.state.trials[trial_id])

    def _quarantined(self, event: DeviceQuarantined) -> None:
        state = self.state
        slot = state.devices.slots.get(event.device)
        if slot is None:
            return
        if slot.state is DeviceState.QUARANTINED:
            if slot.passing and slot.reason != event.reason:  # a stranger's GPU was lost as well
                state.devices.quarantine(event.device, event.reason, passing=event.passing)
                state.say(None, f"{event.device} stays quarantined: {event.reason}")
            return
        waiting, was_held = slot.awaited_by, slot.state is DeviceState.HELD
        holder = slot.trial if was_held else waiting
        state.devices.quarantine(event.device, event.reason, passing=event.passing)
        state.say(None, f"{event.device} is quarantined: {event.reason}")
        if holder is None:
            return
        trial = self._touched = state.trials[holder]
        used = event.device in trial.devices
        trial.devices = tuple(name for name in trial.devices if name != event.device)
        trial.reserved = tuple(name for name in trial.reserved if name != event.device)
        if not trial.has_processes:
            self._do.settle_for_less(trial)
            self._do.launch_if_ready(trial)
        elif used:
            # Ranks sit on a device that is lost: the incarnation cannot go on.
            why = f"{event.device} was lost: {event.reason}"
            self._do.kill(trial, grace_s=0.0, why=why)

    def _readmitted(self, event: DeviceReadmitted) -> None:
        self.state.devices.readmit(event.device)
        self.state.say(None, f"{event.device} is in use again")

    def _storage_changed(self, event: StorageChanged) -> None:
        """Begin nothing below the low mark, as it could not be saved; trials that run go on."""
        if event.low != self.state.storage_low:
            self.state.storage_low = event.low
            self.state.say(None, event.what)

    # ------------------------------------------------------------ time and people

    def _timer_fired(self, event: TimerFired) -> None:
        state = self.state
        due = state.timers.pop(event.timer, event.at)
        if event.timer == DEADLINE:
            self._stop_all("deadline")
        elif event.timer == LAST_CALL and state.stopping is not None:
            for trial in list(state.live.values()):
                self._do.kill(trial)
        elif event.timer == WAKE and state.stopping is None:
            self._enact(self.policy.on_wake(state.view))
        elif event.timer == WAKE:
            state.missed_wake_at = due
        elif event.timer == WATCH and state.stopping is None:
            self._do.kill_silent(due)

    def _stop_all(self, reason: str) -> None:
        """Have every trial leave at its next report; the last call kills those that have not."""
        state = self.state
        if state.stopping is not None:
            return
        state.stopping = reason
        for trial in list(state.live.values()):
            self._do.cut(trial, S.STOPPED, reason)
        if state.live:
            self._do.set_timer(LAST_CALL, state.now + state.rules.last_call_s)

    def _forecasted(self, event: Forecasted) -> None:
        trial = self.state.trials.get(event.trial)
        self.state.forecasts.pop((event.trial, event.step), None)
        if trial is not None and self.state.stopping is None:
            view = self.state.view
            self._enact(self.policy.on_forecast(view, trial.view, event.step, event.forecast))

    def _suggested(self, event: Suggested) -> None:
        of = self.state.configurations
        if event.n != of.asked_for:
            return  # asked again after a resume, and answered twice
        of.asked_for = None
        of.suggested[event.n] = event.hparams
        if event.why:
            self.state.say(None, f"configuration {event.n} is by {event.by}: {event.why}")

    def _user_asked(self, event: UserAsked) -> None:
        state = self.state
        trial = state.trials.get(event.trial) if event.trial is not None else None
        match event.verb:
            case "stop":
                self._stop_all("stopped by the user")
            case "cancel" | "kill":
                self._stop_all("cancelled by the user")
                grace_s = 0.0 if event.verb == "kill" else None
                for live in state.live.values():
                    self._do.kill(live, grace_s=grace_s)
            case "pause" if trial is not None and not trial.is_final:
                trial.held_by_user = True
                state.unwant(trial)
                self._do.leave(trial.id, After(S.PAUSED, "paused by the user"))
            case "unpause" if trial is not None:
                trial.held_by_user = False
                goes_to = trial.after.state if trial.after is not None else trial.state
                if goes_to is S.PAUSED:
                    state.want(trial)
            case "stop_trial" if trial is not None and not trial.is_final:
                self._do.leave(trial.id, After(S.STOPPED, "stopped by the user"))
            case _:
                pass

    def _tried(self, event: Tried) -> None:
        if self.state.stopping is None:
            self.state.configurations.given.append((event.hparams, event.seed))
            self.state.say(None, f"asked to try {show_hparams(event.hparams)}")

    def _deadline_moved(self, event: DeadlineMoved) -> None:
        state = self.state
        if state.stopping is None:
            state.move_deadline(event.deadline_s)
            self._do.set_timer(DEADLINE, state.rules.deadline_s)

    def _reopened(self, event: Reopened) -> None:
        """Go on after the end, or before it with other limits. Trials that only the end stopped are paused again."""
        state, was_over = self.state, self.state.finished
        if state.stopping is not None and not was_over:
            return  # trials are leaving still
        state.go_on(event.deadline_s, event.target, event.max_trials)
        self._do.set_timer(DEADLINE, state.rules.deadline_s)
        if not was_over:
            return
        state.timers.pop(LAST_CALL, None)
        if state.missed_wake_at is not None:
            self._do.set_timer(WAKE, state.missed_wake_at)
            state.missed_wake_at = None
        if state.rules.watch:
            self._do.watch()
        untold, state.untold = state.untold, {}
        for trial in list(state.trials.values()):
            step = event.checkpoints.get(str(trial.id), 0)
            if trial.cut_atoms is not None and (step or not trial.seq):
                self._do.reopen(trial, step)
                continue
            trial.cut_atoms = None
            if trial.id in untold:
                state.rested.append(trial)
        self._enact(self.policy.on_reopen(state.view))

    def _resumed(self, event: DaemonResumed) -> None:
        state = self.state
        state.watched_since = state.now
        for number, incarnation in event.launched.items():
            state.trials[int(number)].skip_to = incarnation
        state.say(None, f"daemon {event.epoch} took over")
        for trial in state.live.values():
            # A measurement under way spans the time without a daemon.
            trial.decided_at = None

    # ------------------------------------------------------------ what follows

    def _enact(self, decisions: Iterable[Decision]) -> bool:
        acted, view = False, self.state.view
        for decision in decisions:
            if self._do.enact(decision):
                acted = True
                if type(decision) is Start:
                    self.policy.on_start(view, view.trials[len(view.trials) - 1])
        return acted

    def _fill(self) -> None:
        """Give free atoms away until no trial wants them."""
        state = self.state
        for wanted in list(state.wanted):
            if state.kept_for is not None:
                return
            atoms = state.trials[wanted].cut_atoms or 1
            atoms = min(atoms, max(1, state.atoms_free))
            self._enact([Resume(wanted, atoms, "goes on as planned")])
        while state.configurations.given and state.devices.free:
            if not self._enact(self.policy.on_tried(state.view)):
                break
        while state.devices.free and self._enact(self.policy.on_capacity(state.view)):
            self._tell_of_rest()

    def _tell_of_rest(self) -> None:
        """Tell the policy of every trial that came to rest, for whatever reason."""
        state = self.state
        while state.rested:
            trial = state.rested.popleft()
            if state.stopping is None:
                self._enact(self.policy.on_exit(state.view, trial.view))
            else:
                state.untold[trial.id] = trial

    def _give_up_if_hopeless(self) -> None:
        state = self.state
        if (
            state.stopping is None
            and state.failures >= state.rules.max_failures
            and not state.has_reports
        ):
            self._stop_all(f"the first {state.failures} trials failed")

    def _finish_if_over(self) -> None:
        """End the experiment, which has no live trial, if it is stopping or nothing can bring one back."""
        state = self.state
        if state.devices.total == 0:
            return
        if state.stopping is None:
            if state.devices.draining or WAKE in state.timers or state.forecasts:
                return
            if state.configurations.asked_for is not None:
                return  # a configuration may come
            if state.storage_low:
                return  # there may be room again
            if state.atoms_total < state.rules.smallest:
                return  # devices may come back from quarantine
            if not state.trials and any(s.passing for s in state.devices.slots.values()):
                return  # the first trial may want more than can be used yet
            if any(trial.held_by_user for trial in state.paused.values()):
                return
            state.stopping = NOTHING_LEFT
        state.finished = True
        for trial in list(state.paused.values()):
            trial.cut_atoms = 0
            state.move(trial, S.STOPPED, state.stopping)
        self._tell_of_rest()
        self._do.add(Finish(state.stopping))
