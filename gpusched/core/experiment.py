"""The search: events in, commands out. ``Experiment.handle`` is the only mutator.

No clock, no I/O, no randomness of its own: the same events give the same commands, which is what replay relies on.
One report's way through: the fact is recorded in the trial (``_reported``), the policy answers with decisions,
``Transitions`` turns them into state changes and commands, and if atoms are free the policy is asked who is next
(``_fill``). Then the invariants that the event touched are checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from gpusched.core import events, exits, invariants, requests, silence
from gpusched.core.allocation import DeviceState
from gpusched.core.commands import Command, Suggest
from gpusched.core.decisions import Decision, Options, Policy, Resize, Resume, Start
from gpusched.core.idle import IdleTime
from gpusched.core.rules import Draw, Rules
from gpusched.core.state import ALIKE_PAUSE_S, DEADLINE, LAST_CALL, WAKE, WATCH, State
from gpusched.core.transitions import Transitions
from gpusched.core.trial import RUNNING, After, Cap, TrialRecord, TrialState

S = TrialState

#: More than the low mark of a disk, unless a checkpoint is larger.
MUCH_BYTES = 1 << 30
#: Facts about devices and the room on the disk: all that is followed after the end.
OUTSIDE = (
    events.DaemonResumed,
    events.DevicesJoined,
    events.DevicesReleased,
    events.QuarantineChanged,
    events.StorageChanged,
)


class Experiment:
    """One search: its state, its policy, and what follows from each event."""

    def __init__(self, rules: Rules, policy: Policy, draw: Draw | None) -> None:
        """``draw``: the sequence of configurations; None: a sampler with a memory is asked by ``Suggest``."""
        self.state = State(rules, draw)
        self.policy = policy
        self.idle = IdleTime(self.state)
        self._do = Transitions(self.state)
        self._touched: TrialRecord | None = None
        self._handlers: dict[type[events.Event], Callable[[Any], None]] = {
            events.Reported: self._reported,
            events.TrialUp: self._up,
            events.CheckpointSaved: self._checkpoint_saved,
            events.TrialExited: self._exited,
            events.DevicesReleased: self._released,
            events.QuarantineChanged: self._quarantine_changed,
            events.StorageChanged: self._storage_changed,
            events.TimerFired: self._timer_fired,
            events.Suggested: self._suggested,
            events.UserAsked: partial(requests.asked, self.state, self._do),
            events.DevicesJoined: self._joined,
            events.DaemonResumed: self._resumed,
            events.LimitsMoved: self._limits_moved,
        }

    def handle(self, event: events.Event) -> list[Command]:
        """Record a fact and return what must be done about it, in order.

        Raises InvalidTransition or AssertionError where the facts contradict each other; the state is then undefined.
        """
        state = self.state
        state.said.clear()
        if state.finished and not events.is_reopened(event):
            if type(event) in OUTSIDE:  # the search may continue
                self._handlers[type(event)](event)
            return []
        if event.at > state.now:
            self.idle.count_to(event.at)
            state.now = event.at
        self._handlers[type(event)](event)
        if state.rested:
            self._tell_of_rest()
        if state.stopping is None:
            self._ask_sampler()  # first: a policy must know that a configuration is coming
            if state.devices.free and not state.storage_low:
                self._fill()
        if not state.live:
            self._finish_if_over()
        touched, self._touched = self._touched, None
        if touched is not None:
            invariants.check_trial(state, touched)
        commands = self._do.commands[:]
        self._do.commands.clear()
        return commands

    def _ask_sampler(self) -> None:
        """Ask a sampler with a memory for the next configuration, if it is time."""
        of = self.state.configurations
        if of.learns and (n := of.to_suggest(self.state.rules.max_trials)) is not None:
            of.asked_for = n
            self._do.commands.append(Suggest(n))

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

    def _up(self, event: events.TrialUp) -> None:
        if (trial := self._current(event.trial, event.incarnation)) is not None:
            if trial.decided_at is not None:
                trial.decided_at += event.waited_s
            self._set_up(trial)

    def _set_up(self, trial: TrialRecord) -> None:
        """Note that the ranks of an incarnation run, where that is news."""
        if trial.up_at is None:
            trial.up_at = self.state.now
            if trial.state is S.STARTING:
                self.state.move(trial, S.RUNNING, f"up on {trial.size_in_words}")

    def _reported(self, event: events.Reported) -> None:
        report = event.report
        trial = self._current(event.trial, report.incarnation)
        if trial is None or report.seq <= trial.seq:
            return
        self._set_up(trial)
        state = self.state
        rules = state.rules
        before = trial.step if trial.steps_since_launch else trial.saved_step
        if trial.steps_since_launch == trial.stride:  # the second report of this launch
            state.last_errors.clear()
        stride = max(1, report.step - before)
        if report.length is not None and isinstance(
            options := getattr(self.policy, "options", None), Options
        ):
            self.policy.options = replace(options, R=max(report.length, options.R or 0))
        back = state.speed.learn(trial, report.step_time_s, stride, state.now)
        trial.record(report, event.metric, rules.sign, stride, state.now)
        if trial.state is RUNNING and trial.doom is None:
            if back:
                self._take_back(trial, back)
            decisions = self.policy.on_report(state, trial)
            if decisions:
                self._enact(decisions)
            self._make_room(trial)
        if not (state.stopping or trial.doom) and rules.is_reached_by(event.metric):
            reached = f"reached the target {rules.target:g}"
            self._do.cut(trial, S.COMPLETED, reached)  # this step is saved, which is good enough
            self._do.end(f"trial {trial.id} {reached}")
        if event.metric is None:
            self._give_up_if_hopeless()
        if trial.score > state.kept_score:
            self._do.saves.ask_for_best(trial)
        every_s = rules.save_every_s
        if every_s is not None and state.now - trial.saved_at >= every_s:
            self._do.saves.ask_if_due(trial, every_s)

    def _make_room(self, trial: TrialRecord) -> None:
        """Have a trial continue on fewer atoms where others are to start and no atom comes free for them."""
        state, smallest = self.state, self.state.rules.smallest
        others = len(state.wanted) + len(state.configurations.given)
        is_full = state.atoms_free + state.atoms_coming < smallest and not state.storage_low
        if others and is_full:
            fewer = trial.atoms - others * smallest
            self._do.enact(Resize(trial.id, fewer, "makes room for a trial that is to start"))

    def _take_back(self, trial: TrialRecord, atoms: int) -> None:
        """Have a trial go back to fewer atoms, for good: the growth to these has made its steps longer."""
        why = f"its steps take longer on {trial.size_in_words}: goes back to {atoms} and grows no more"
        trial.cap = Cap(atoms, why)
        self._do.enact(Resize(trial.id, atoms, why))

    def _checkpoint_saved(self, event: events.CheckpointSaved) -> None:
        if (trial := self._current(event.trial, event.incarnation)) is not None:
            self._do.saves.committed(trial, event.step, event.save_s)
            self.state.largest_save_bytes = max(self.state.largest_save_bytes, event.size_bytes)

    def _exited(self, event: events.TrialExited) -> None:
        if (trial := self._current(event.trial, event.incarnation)) is not None:
            self._do.exited(trial, event)
            self._give_up_if_hopeless()

    # ------------------------------------------------------------ facts about devices

    def _joined(self, event: events.DevicesJoined) -> None:
        state = self.state
        is_first = not state.devices.slots
        state.devices.join(event.devices, event.islands, event.labels)
        for name, reason in event.unusable.items():
            state.devices.quarantine(name, reason)
        if not is_first:
            return
        state.timers[DEADLINE] = state.rules.deadline_s
        silence.watch(state)

    def _released(self, event: events.DevicesReleased) -> None:
        for trial_id in sorted(self.state.devices.released(event.devices)):
            self._do.launch_if_ready(self.state.trials[trial_id])

    def _quarantine_changed(self, event: events.QuarantineChanged) -> None:
        if event.reason:
            self._quarantine({event.device: event.reason})
        elif event.device in self.state.devices.slots:
            self.state.devices.readmit(event.device)

    def _quarantine(self, reasons: Mapping[str, str]) -> None:
        """Take devices out of use: all of them before a trial that had some begins on what is left."""
        devices, lost = self.state.devices, dict[int, list[str]]()
        for name in sorted(reasons.keys() & devices.slots.keys()):
            slot = devices.slots[name]
            holder = slot.trial if slot.state is DeviceState.HELD else slot.awaited_by
            devices.quarantine(name, reasons[name])
            if holder is not None:
                lost.setdefault(holder, []).append(name)
        for holder, names in lost.items():
            trial = self._touched = self.state.trials[holder]
            self._do.lose(trial, names, reasons[names[0]])

    def _storage_changed(self, event: events.StorageChanged) -> None:
        """Begin nothing below the low mark, as it could not be saved; trials that run continue.

        Where checkpoints of paused trials take the room, the worse half of these trials makes some.
        """
        state = self.state
        state.storage_low, worse = event.low, state.paused_by_score()[len(state.paused) // 2 :]
        gives = len(worse) > 1 and len(worse) * state.largest_save_bytes >= MUCH_BYTES
        for trial in worse if event.low and gives else ():
            why = "stops: the disk has no room for the checkpoints of all that are paused"
            self._do.leave(trial.id, After(S.STOPPED, why))

    # ------------------------------------------------------------ time and people

    def _timer_fired(self, event: events.TimerFired) -> None:
        state = self.state
        due = state.timers.get(event.timer)
        if due is None or event.at < due:
            return  # moved meanwhile, and the disk is too full for that to have been carried out
        del state.timers[event.timer]
        if event.timer == DEADLINE:
            self._do.end("deadline")
        elif event.timer == LAST_CALL and state.stopping is not None:
            self._do.last_call()
        elif event.timer == WAKE and state.stopping is None:
            self._enact(self.policy.on_wake(state))
        elif event.timer == WATCH and state.stopping is None:
            for trial, why in silence.silent(state, due):
                self._do.kill(trial, why=why, stacks=True)
            silence.watch(state)

    def _suggested(self, event: events.Suggested) -> None:
        configurations = self.state.configurations
        if event.n != configurations.asked_for:
            return  # asked again after a resume, and answered twice
        configurations.asked_for = None
        configurations.suggested[event.n] = event.hparams
        if event.why:
            self.state.said.append(f"configuration {event.n} is drawn at random: {event.why}")

    def _limits_moved(self, event: events.LimitsMoved) -> None:
        if requests.move_limits(self.state, self._do, event):
            self._enact(self.policy.on_wake(self.state))

    def _resumed(self, event: events.DaemonResumed) -> None:
        state = self.state
        silence.leave_out(state, state.timers.get(WATCH, state.now))
        silence.watch(state)
        self._quarantine(event.unusable)

    # ------------------------------------------------------------ what follows

    def _enact(self, decisions: Iterable[Decision]) -> bool:
        acted = False
        for decision in decisions:
            if self._do.enact(decision):
                acted = True
                if type(decision) is Start:
                    self._ask_sampler()
        return acted

    def _fill(self) -> None:
        """Give free atoms away until no trial wants them."""
        state = self.state
        for wanted in list(state.wanted):
            atoms = state.trials[wanted].cut_atoms or 1
            atoms = min(atoms, max(1, state.atoms_free))
            self._enact([Resume(wanted, atoms, "continues as planned")])
        while state.configurations.given and state.devices.free:
            if not self._enact([Start(state.rules.smallest, "the user asked for it")]):
                break
        state.declined = state.why_all_fail
        if state.declined and state.now < state.failed_at + ALIKE_PAUSE_S:
            return
        while state.atoms_free >= state.rules.smallest:
            if not self._enact(self.policy.on_capacity(state)):
                break
            self._tell_of_rest()

    def _tell_of_rest(self) -> None:
        """Tell the policy of every trial that came to rest, for whatever reason."""
        state = self.state
        while state.rested:
            trial = state.rested.popleft()
            if state.stopping is None:
                self._enact(self.policy.on_exit(state, trial))
            else:
                state.untold[trial.id] = trial

    def _give_up_if_hopeless(self) -> None:
        if self.state.stopping is None and (why := exits.why_hopeless(self.state)):
            self._do.end(why)

    def _finish_if_over(self) -> None:
        """End the search, which has no live trial, if it is stopping or nothing can bring one back."""
        state = self.state
        if state.devices.total == 0:
            return
        state.stopping = state.stopping or exits.why_over(state) or None
        if state.stopping is None:
            return
        state.finished = True
        for trial in list(state.paused.values()):
            trial.cut_atoms = 0
            state.move(trial, S.STOPPED, state.stopping)
        self._tell_of_rest()
