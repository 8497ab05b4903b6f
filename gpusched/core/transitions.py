"""From what a policy wants (atoms) and what happened to what must be done (devices).

``Transitions`` owns the state and the commands of the event that is being handled. A decision that no longer fits (the
trial has ended, the atoms are gone) is dropped: policies speak of intentions, and the world may have moved on.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from gpusched.core import exits
from gpusched.core.allocation import DeviceState
from gpusched.core.commands import Command, ConfirmRelease, Kill, Launch, Yield
from gpusched.core.decisions import (
    NO_STEP_FITS,
    Complete,
    Decision,
    LeaveFree,
    Pause,
    Resize,
    Resume,
    Start,
    Stop,
    WakeAt,
)
from gpusched.core.events import TrialExited
from gpusched.core.saving import Saves
from gpusched.core.state import LAST_CALL, WAKE, State
from gpusched.core.trial import NEVER, After, Doom, TrialRecord, TrialState

S = TrialState

#: Once the search is over: for a save that was under way, of the best model so far.
LAST_SAVE_S = 60.0
#: Beginning of the reason for the end of a search that a person, or a signal, stopped: it waits for the trials.
STOPPED = "stopped by "


class Transitions:
    """Changes the state and collects the commands that follow from an event."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.commands: list[Command] = []
        self.saves = Saves(state, self.commands)

    def enact(self, decision: Decision) -> bool:
        """Carry out one decision; False if no trial was moved by it."""
        match decision:
            case Start():
                return self._start(decision)
            case Resume():
                return self._resume(decision)
            case Resize():
                return self._resize(decision)
            case Pause():
                return self.leave(decision.trial, After(S.PAUSED, decision.reason))
            case Stop():
                if decision.reason.endswith(NO_STEP_FITS):
                    return self.cut(self._state.trials[decision.trial], S.STOPPED, decision.reason)
                return self.leave(decision.trial, After(S.STOPPED, decision.reason))
            case Complete():
                return self.leave(decision.trial, After(S.COMPLETED, decision.reason))
            case WakeAt():
                self._state.timers[WAKE] = decision.at
            case LeaveFree():
                self._state.declined = decision.why
        return False

    # ------------------------------------------------------------ begin

    def _start(self, decision: Start) -> bool:
        state = self._state
        atoms = exits.within_room(state, None, decision.atoms)
        if not atoms or not state.can_draw:
            return False
        trial = state.draw(decision.tag)
        self._begin(trial, atoms, decision.reason or "a new configuration", "first launch")
        return True

    def _resume(self, decision: Resume) -> bool:
        state = self._state
        trial = state.trials[decision.trial]
        atoms = exits.within_room(state, trial, decision.atoms)
        if not atoms or not trial.may_resume:
            return False
        self._begin(
            trial, atoms, decision.reason or "resumed", f"resumed from step {trial.saved_step}"
        )
        return True

    def _begin(self, trial: TrialRecord, atoms: int, reason: str, cause: str) -> None:
        state = self._state
        trial.tell(state.now, reason)
        trial.cut_atoms = None
        trial.devices = state.devices.choose(atoms)
        state.devices.take(trial.devices, trial.id)
        trial.decided_at = state.now
        state.move(trial, S.STARTING, cause)
        self._launch(trial)

    def _launch(self, trial: TrialRecord) -> None:
        """Launch the next incarnation of a STARTING trial; all of its devices are clean."""
        trial.incarnation += 1
        trial.steps_since_launch = 0
        trial.heard_at = self._state.now
        self.commands.append(Launch(trial.id, trial.incarnation, trial.devices, trial.hparams))

    def launch_if_ready(self, trial: TrialRecord) -> None:
        """Launch a STARTING trial once all of its devices are clean; pause one that has lost them all."""
        state = self._state
        if trial.state is not S.STARTING or trial.has_processes:
            return
        if not trial.devices:
            state.move(trial, S.PAUSED, "no device is left for it")
            state.want(trial)
            return
        slots = state.devices.slots
        if all(slots[name].state is DeviceState.HELD for name in trial.devices):
            self._launch(trial)

    # ------------------------------------------------------------ yield

    def _resize(self, decision: Resize) -> bool:
        state = self._state
        trial = state.trials[decision.trial]
        atoms, room = state.fit(trial, decision.atoms), state.devices.room(trial.devices)
        if atoms > trial.atoms + room and state.rules.islands_apart:
            atoms = max(trial.atoms, state.fit(trial, trial.atoms + room))
        more = atoms - trial.atoms
        if trial.state is not S.RUNNING or trial.doom or more == 0 or more > room:
            return False
        if state.why_all_fail:
            return False  # so would its next launch
        reserved: tuple[str, ...] = ()
        if more > 0:
            reserved = state.devices.choose(more, near=trial.devices)
            state.devices.take(reserved, trial.id)
        trial.decided_at = state.now
        reason = decision.reason or f"resize to {atoms} atoms"
        self._yield(trial, After(S.STARTING, reason, atoms, reserved=reserved))
        return True

    def leave(self, trial_id: int, after: After) -> bool:
        """Pause, stop or complete a trial; False if that changes nothing."""
        state = self._state
        trial = state.trials[trial_id]
        if trial.state is S.PAUSED:
            if after.state is S.PAUSED:
                return False
            state.move(trial, after.state, after.reason)
            trial.cut_atoms = None
            return True
        if trial.state is S.YIELDING and trial.after is not None:
            return self._change_of_mind(trial, trial.after, after)
        if trial.state is S.STARTING:
            self._leave_before_up(trial, after)
            return True
        if trial.state is not S.RUNNING:
            return False
        self._yield(trial, after)
        return True

    def cut(self, trial: TrialRecord, state: TrialState, reason: str) -> bool:
        """Have a trial leave as the search ends; it may continue with that. False if that changes nothing."""
        is_pausing = trial.after is not None and trial.after.state is S.PAUSED
        atoms = 0 if is_pausing else trial.atoms
        # The search may continue: a step that can be saved by the last call is.
        save = trial.state is S.RUNNING and trial.save_s <= self._last_call_s()
        if not self.leave(trial.id, After(state, reason, save=save)):
            return False
        trial.cut_atoms = atoms
        return True

    def end(self, reason: str) -> None:
        """Have every trial leave at its next report; the last call kills those that have not."""
        state = self._state
        if state.stopping is not None:
            return
        state.stopping, kept_score = reason, state.kept_score
        state.last_savers = {
            trial.id
            for trial in state.live.values()
            if trial.after is not None and trial.after.save and trial.best_score > kept_score
        }
        for trial in list(state.live.values()):
            self.cut(trial, S.STOPPED, reason)
        if state.live:
            state.timers[LAST_CALL] = state.now + self._last_call_s()

    def last_call(self) -> None:
        """Kill the trials that have not left; those that leave with the best model have longer to save it.

        So has one that has reported it, and may save it beside its training, or hold it: SIGTERM waits for that.
        """
        state = self._state
        last_save_s = max(LAST_SAVE_S, 2 * state.longest_save_s)
        savers, state.last_savers = state.last_savers & state.live.keys(), set()
        for trial in list(state.live.values()):
            if trial.id not in savers:
                has_best = trial.best_score > state.kept_score
                self.kill(trial, grace_s=last_save_s if has_best else None)
        if savers:
            state.timers[LAST_CALL] = state.now + last_save_s

    def _last_call_s(self) -> float:
        """Return the time from now, or from the search's end, to its last call.

        A person who stops a search before its deadline waits for each trial's next report and save. A first save is
        expected to take as long as the longest of any trial. While the search continues, the deadline will end it.
        """
        state = self._state
        last_call_s = state.rules.last_call_s
        if state.stopping is None:
            return last_call_s + state.time_left_s
        if not state.stopping.startswith(STOPPED):
            return last_call_s
        until_saved_s = max(
            (
                2 * trial.report_s + max(trial.save_s, state.longest_save_s)
                for trial in state.live.values()
                if trial.doom is None
            ),
            default=0.0,
        )
        return last_call_s + max(0.0, min(until_saved_s, state.time_left_s))

    def _yield(self, trial: TrialRecord, after: After) -> None:
        """Have a trial leave at this step, with a checkpoint if it may continue or is the best model so far."""
        state = self._state
        save = after.save or not after.state.is_final or trial.score > state.kept_score
        state.move(trial, S.YIELDING, after.reason)
        trial.after = replace(after, save=save)
        self.commands.append(Yield(trial.id, trial.incarnation, save))

    def _change_of_mind(self, trial: TrialRecord, told: After, after: After) -> bool:
        """Change where a trial that leaves already goes, and only to something more final."""
        state = self._state
        if told.state.is_final or after.state is told.state:
            return False
        trial.tell(state.now, after.reason)
        trial.after = replace(after, save=told.save, reserved=told.reserved)
        if after.state is not S.PAUSED:
            state.unwant(trial)
            trial.cut_atoms = None  # it does not come back with the search; ``cut`` takes that back
        return True

    def _leave_before_up(self, trial: TrialRecord, after: After) -> None:
        """Kill a trial that has not reported, so that it cannot be asked to yield and nothing is lost."""
        state = self._state
        if trial.has_processes:
            self.kill(trial)
            state.move(trial, S.YIELDING, f"killed while starting: {after.reason}")
            trial.after = after
            return
        state.devices.give_back(trial.devices)
        trial.devices = ()
        state.move(trial, after.state, after.reason)

    def kill(
        self,
        trial: TrialRecord,
        *,
        grace_s: float | None = None,
        why: str = "",
        stacks: bool = False,
    ) -> None:
        """End a trial's incarnation.

        ``why``: reason for an unplanned kill; the trial is relaunched. ``stacks``: its ranks write down where they are.
        """
        state = self._state
        grace_s = state.rules.kill_grace_s if grace_s is None else grace_s
        doom = trial.doom = trial.doom or Doom(state.now, grace_s)
        doom.grace_s = grace_s
        if why and not doom.why:
            doom.why, doom.hung = why, stacks
            trial.tell(state.now, why)
        self.commands.append(Kill(trial.id, trial.incarnation, grace_s, stacks))

    # ------------------------------------------------------------ exit

    def exited(self, trial: TrialRecord, event: TrialExited) -> None:
        """Move a trial to where it goes now that nothing of its incarnation is left."""
        state, told = self._state, trial.after
        if event.saved_step is not None:
            self.saves.committed(trial, event.saved_step, trial.save_s)
        if state.held_by == trial.id:
            state.held_score = NEVER  # the copy that the trial held is committed, or lost
        after = exits.after_exit(state, trial, event)
        trial.gone, trial.doom = trial.incarnation, None
        if after.is_resize or after.state is S.PAUSED:  # it may come back on others
            state.speed.resizes(trial)
        if used := exits.drain(state, trial, after.atoms if after.is_resize else 0):
            self.commands.append(ConfirmRelease(used))
        trial.after = None
        if after.state is not S.STOPPED and after != told:
            trial.cut_atoms = None  # the script came to an end of its own
        if after.state is S.FAILED:
            state.failures, state.failed_at = state.failures + 1, state.now
            state.last_errors.append(after.reason.partition("\n")[0])
        elif trial.steps_since_launch == trial.stride and event.outcome != "failed":
            state.last_errors.clear()
        state.move(trial, after.state, after.reason)
        self.launch_if_ready(trial)

    def lose(self, trial: TrialRecord, devices: Collection[str], reason: str) -> None:
        """Take devices that are out of use away from the trial that holds or awaits them; ``reason``: of the first."""
        used = [name for name in devices if name in trial.devices]
        trial.devices = tuple(name for name in trial.devices if name not in devices)
        if (after := trial.after) is not None:
            reserved = tuple(name for name in after.reserved if name not in devices)
            trial.after = replace(after, reserved=reserved)
        if not trial.has_processes:
            exits.settle_for_less(self._state, trial)
            self.launch_if_ready(trial)
        elif used:  # the incarnation cannot continue
            label = self._state.devices.named(used[:1])
            why = f"{label} was lost: {reason.removeprefix(f'{label}: ')}"
            self.kill(trial, grace_s=0.0, why=why)
