"""Carrying out decisions: from what a policy wants (atoms) to what an executor must do (devices).

Each function changes the state and appends commands to ``out``. A decision that no longer fits (the trial has ended,
the atoms are gone) is dropped: policies speak of intentions, and the world may have moved on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpusched.core.allocation import DeviceState
from gpusched.core.decisions import (
    AskForecast,
    Command,
    Complete,
    ConfirmRelease,
    Decision,
    Forecast,
    KeepBest,
    Kill,
    Launch,
    Pause,
    Resize,
    Resume,
    Save,
    Say,
    SetTimer,
    Start,
    Stop,
    WakeAt,
    Yield,
)
from gpusched.core.state import Best, State
from gpusched.core.trial import NEVER, After, Trial, TrialState

S = TrialState


def enact(state: State, decision: Decision, out: list[Command]) -> bool:
    """Carry out one decision; False if it did not fit any more."""
    match decision:
        case Start():
            return _start(state, decision, out)
        case Resume():
            return _resume(state, decision, out)
        case Resize():
            return _resize(state, decision, out)
        case Pause():
            return leave(state, decision.trial, After(S.PAUSED, decision.reason), out)
        case Stop():
            return leave(state, decision.trial, After(S.STOPPED, decision.reason), out)
        case Complete():
            return leave(state, decision.trial, After(S.COMPLETED, decision.reason), out)
        case WakeAt():
            set_timer(state, "wake", decision.at, out)
            return False
        case AskForecast():
            trial = state.trials[decision.trial]
            asked = Forecast(
                trial.id, trial.step, decision.curve, decision.horizon, decision.target
            )
            state.forecasts[trial.id, trial.step] = asked
            out.append(asked)
            return False
        case Say():
            state.say(None, decision.text)
            return False


def set_timer(state: State, timer: str, at: float, out: list[Command]) -> None:
    state.timers[timer] = at
    out.append(SetTimer(timer, at))


# ---------------------------------------------------------------- begin


def _start(state: State, decision: Start, out: list[Command]) -> bool:
    atoms = state.rules.fit(decision.atoms)
    if atoms > state.atoms_free or not state.can_draw:
        return False
    trial = state.draw(decision.tag)
    state.say(trial, decision.reason or "a new configuration")
    _begin(state, trial, atoms, "first launch", out)
    return True


def _resume(state: State, decision: Resume, out: list[Command]) -> bool:
    trial = state.trials[decision.trial]
    atoms = state.rules.fit(decision.atoms)
    if trial.state is not S.PAUSED or trial.held_by_user or atoms > state.atoms_free:
        return False
    state.say(trial, decision.reason or "resumed")
    _begin(state, trial, atoms, f"resumed at step {trial.step}", out)
    return True


def _begin(state: State, trial: Trial, atoms: int, why: str, out: list[Command]) -> None:
    trial.devices = state.devices.choose(atoms)
    state.devices.take(trial.devices, trial.id)
    trial.decided_at = state.now
    state.move(trial, S.STARTING, why)
    launch(state, trial, out)


def launch(state: State, trial: Trial, out: list[Command]) -> None:
    """Launch the next incarnation of a STARTING trial; all of its devices are clean."""
    trial.incarnation = trial.next_incarnation
    trial.steps_of_incarnation = 0
    trial.steps_since_resize = 0
    trial.launched_at = state.now
    trial.killed_because = trial.kill_grace_s = None
    trial.hung = False
    out.append(Launch(trial.id, trial.incarnation, trial.devices, trial.hparams))


def launch_if_ready(state: State, trial: Trial, out: list[Command]) -> None:
    """Launch a STARTING trial once all of its devices are clean; pause it if it has lost them all."""
    if trial.state is not S.STARTING or trial.has_processes:
        return
    if not trial.devices:
        state.move(trial, S.PAUSED, "no device is left for it")
        state.want(trial)
        return
    slots = state.devices.slots
    if all(slots[name].state is DeviceState.HELD for name in trial.devices):
        launch(state, trial, out)


def settle_for_less(state: State, trial: Trial) -> None:
    """A STARTING trial that waits has lost a device: keep an allowed size of what is left, give back the rest."""
    slots, count = state.devices.slots, len(trial.devices)
    atoms = state.rules.fit(count)
    # Those that are clean already come first: it need not wait for the others then.
    by_readiness = sorted(trial.devices, key=lambda name: slots[name].state is DeviceState.DRAINING)
    keep = by_readiness[: atoms if atoms <= count else 0]
    _let_go(state, [name for name in trial.devices if name not in keep])
    trial.devices = tuple(keep)


def _let_go(state: State, names: Sequence[str]) -> None:
    """Devices of a trial without processes: clean ones are free at once, the others when they are released."""
    state.devices.unawait(names)
    state.devices.give_back(names)


# ---------------------------------------------------------------- yield


def _resize(state: State, decision: Resize, out: list[Command]) -> bool:
    trial = state.trials[decision.trial]
    atoms = state.rules.fit(decision.atoms)
    more = atoms - trial.atoms
    if trial.state is not S.RUNNING or trial.is_doomed or more == 0 or more > state.atoms_free:
        return False
    if more > 0:
        trial.reserved = state.devices.choose(more, near=trial.devices)
        state.devices.take(trial.reserved, trial.id)
    trial.decided_at = state.now
    state.say(trial, decision.reason or f"resize to {atoms} atoms")
    _yield(state, trial, After(S.STARTING, decision.reason, atoms), out)
    return True


def leave(state: State, trial_id: int, after: After, out: list[Command]) -> bool:
    """Pause, stop or complete a trial; False if that changes nothing."""
    trial = state.trials[trial_id]
    if trial.state is S.PAUSED:
        if after.state is S.PAUSED:
            return False
        state.say(trial, after.reason)
        state.move(trial, after.state, after.reason)
        return True
    if trial.state is S.YIELDING and trial.after is not None:
        return _change_of_mind(state, trial, after)
    if trial.state is S.STARTING:
        return _leave_before_up(state, trial, after, out)
    if trial.state is not S.RUNNING:
        return False
    state.say(trial, after.reason)
    _yield(state, trial, after, out)
    return True


def _yield(state: State, trial: Trial, after: After, out: list[Command]) -> None:
    """It leaves at this step, with a checkpoint if it may go on or if this is the best model so far."""
    save = not after.state.is_final or is_new_best(state, trial)
    state.move(trial, S.YIELDING, after.reason)
    trial.after = replace(after, save=save)
    out.append(Yield(trial.id, trial.incarnation, save))


def _change_of_mind(state: State, trial: Trial, after: After) -> bool:
    """It is leaving already: only where to may change, and only to something more final."""
    assert trial.after is not None
    if trial.after.state.is_final or after.state is trial.after.state:
        return False
    state.say(trial, after.reason)
    trial.after = replace(after, save=trial.after.save)
    if after.state is not S.PAUSED:
        state.unwant(trial)
    return True


def _leave_before_up(state: State, trial: Trial, after: After, out: list[Command]) -> bool:
    """It has not reported yet, so it cannot be asked to yield; nothing is lost by killing it."""
    state.say(trial, after.reason)
    if not trial.has_processes:
        _let_go(state, trial.devices)
        trial.devices = ()
        state.move(trial, after.state, after.reason)
        return True
    kill(state, trial, out)
    state.move(trial, S.YIELDING, f"killed while starting: {after.reason}")
    trial.after = after
    return True


def kill(
    state: State,
    trial: Trial,
    out: list[Command],
    *,
    grace_s: float | None = None,
    why: str = "",
    stacks: bool = False,
) -> None:
    """End its incarnation. ``why``: it was to go on, and is relaunched. ``stacks``: its ranks say where they are."""
    trial.kill_grace_s = state.rules.kill_grace_s if grace_s is None else grace_s
    if why and trial.killed_because is None:
        trial.killed_because, trial.hung = why, stacks
        state.say(trial, why)
    out.append(Kill(trial.id, trial.incarnation, trial.kill_grace_s, stacks))


# ---------------------------------------------------------------- end


def drain(state: State, trial: Trial, keep: int, out: list[Command]) -> None:
    """The incarnation is gone: its devices drain; ``keep`` atoms come back to the trial once they are released.

    What was reserved for a resize has not been used: it is clean, and stays with the trial or is free at once. Where
    devices were lost the trial keeps the largest allowed size that is left, or nothing.
    """
    used = trial.devices
    kept, clean = _kept(state, trial, keep)
    state.devices.drain(kept, trial.id)
    state.devices.drain(used[len(kept) :], None)
    state.devices.give_back(trial.reserved[len(clean) :])
    trial.devices, trial.reserved = kept + clean, ()
    if used:
        out.append(ConfirmRelease(used))


def _kept(state: State, trial: Trial, keep: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What a trial keeps of the devices it used, and of those reserved for it, to go on with ``keep`` atoms."""
    used, reserved = trial.devices, trial.reserved
    if keep:
        left = len(used) + len(reserved)
        keep = state.rules.fit(min(keep, left))
        keep = keep if keep <= left else 0
    clean = reserved[:keep]
    return used[: keep - len(clean)], clean


def expected_launch(state: State, trial: Trial) -> Launch | None:
    """The launch that ends the resize a trial is in, if nothing comes between; None if it is in none."""
    if state.stopping is not None:
        return None
    if trial.is_resizing and trial.after is not None:
        kept, clean = _kept(state, trial, trial.after.atoms)
        devices = kept + clean
    elif trial.state is S.STARTING and not trial.has_processes:
        devices = trial.devices
    else:
        return None
    if not devices:
        return None
    return Launch(trial.id, trial.next_incarnation, devices, trial.hparams)


def is_new_best(state: State, trial: Trial) -> bool:
    """Whether the trial's latest step is better than every checkpoint kept so far."""
    return trial.score > NEVER and (state.best is None or trial.score > state.best.score)


def save_if_better(
    state: State, trial: Trial, out: list[Command], *, trains_on: bool = False
) -> None:
    """Have a checkpoint saved if this step would be the new best, unless saving eats too much training time.

    A trial that leaves saves in any case; ``trains_on``: this one leaves later, and may end by itself before that.
    Otherwise a search in which every step is a new best would do nothing but save: so not more often than
    ``best_every_s``, and not more than ``save_share`` of the trial's time.
    """
    if not is_new_best(state, trial):
        return
    rules = state.rules
    why = "the trial was to save it as it left"
    if trial.after is not None and not trains_on:
        if not trial.after.save:
            trial.after = replace(trial.after, save=True)
            out.append(Save(trial.id, trial.incarnation))
    elif state.now - trial.last_saved_at < trial.save_s / rules.save_share:
        why = f"saving may take {rules.save_share:.0%} of a trial's time, and it had just saved"
    elif state.best is not None and state.now - state.best_asked_at < rules.best_every_s:
        why = f"the best model is replaced every {rules.best_every_s:g} s at most"
    else:
        why = "the trial was asked to save it, and has not committed it"
        state.best_asked_at = state.now
        out.append(Save(trial.id, trial.incarnation))
    if trial.best_step == trial.step:
        trial.why_unsaved = why


def saved(state: State, trial: Trial, step: int, out: list[Command]) -> None:
    """A checkpoint of ``step`` is on disk: it may be the best model there is."""
    trial.saved_step = step
    metric = next((value for at, value in reversed(trial.curve) if at == step), None)
    if metric is None or metric != metric:
        return
    score = metric * state.rules.sign
    if state.best is None or score > state.best.score:
        state.best = Best(trial.id, step, score, metric, trial.atoms, state.now)
        out.append(KeepBest(trial.id, step, metric))
