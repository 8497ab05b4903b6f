"""One plain line for each event that is news, for output without a terminal; and the same as JSON objects.

``records`` tells an event and the commands it caused as flat objects: ``{"at", "what", "text", "trial", ..}``.
``text`` is a whole sentence; further keys depend on ``what``. Called after
``Experiment.handle``, so the state is the one after the event. A report that changes nothing gives nothing: hundreds a
second are not news.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gpusched.core.commands import Command, KeepBest, Kill, Launch, Yield
from gpusched.core.events import (
    DaemonResumed,
    DevicesJoined,
    Event,
    LimitsMoved,
    QuarantineChanged,
    Reported,
    StorageChanged,
    TimerFired,
    TrialExited,
    UserAsked,
)
from gpusched.core.state import DEADLINE, State
from gpusched.core.trial import TrialRecord, TrialState
from gpusched.text import (
    clean,
    count,
    first_line,
    sentence,
    show_at,
    show_duration,
    show_hparams,
    show_metric,
)

Record = dict[str, Any]


def line(record: Record) -> str:
    """Word a record as one line of plain text."""
    return f"{show_at(record['at'])}  {record['text']}"


def records(
    event: Event,
    commands: Sequence[Command],
    state: State,
    metric: str = "",
    *,
    is_end: bool = False,
) -> list[Record]:
    """Tell an event as flat objects, in the order in which things followed; ``is_end``: the search is over by it."""
    if type(event) is Reported and not commands and not state.said and not is_end:
        return []  # nearly all events are such, and a busy daemon has thousands a second
    at = round(state.now, 3)
    told = [*_of_event(event, commands, state)]
    told += [_record("said", clean(text)) for text in state.said]
    told += _of_commands(event, commands, state, metric)
    if is_end:
        ending = clean(state.stopping or "")
        told.append(_record("over", _over(state, ending), reason=ending))
    return [{"at": at, **record} for record in told]


def remark(at: float, text: str) -> Record:
    """Tell a remark, which changes nothing, as a flat object."""
    return {"at": round(at, 3), **_record("remark", clean(text))}


# ---------------------------------------------------------------- events


def _of_event(event: Event, commands: Sequence[Command], state: State) -> Iterator[Record]:
    match event:
        case DevicesJoined(devices=devices) if len(devices) < state.devices.total:
            text = f"{state.devices.named(devices)} joined the search"
            yield _record("joined", text, devices=list(devices))
        case DevicesJoined(devices=devices, unusable=unusable):
            usable, left = len(devices) - len(unusable), show_duration(state.time_left_s)
            text = f"the search begins on {count(usable, 'atom')}; deadline in {left}"
            yield _record("began", text, atoms=usable)
        case Reported(trial=number):
            if any(isinstance(command, Yield) and command.trial == number for command in commands):
                yield from _decided(state.trials[number])
        case TrialExited():
            yield from _exited(event, state)
        case QuarantineChanged(device=device, reason=""):
            text = f"{state.devices.named([device])} is in use again"
            yield _record("readmitted", text, device=device)
        case QuarantineChanged(device=device, reason=reason):
            yield _quarantined(state, device, reason)
        case StorageChanged(low=low, what=what):
            yield _record("storage", clean(what), low=low)
        case DaemonResumed(epoch=epoch):
            yield _record("daemon", f"daemon {epoch} took over", epoch=epoch)
        case UserAsked(verb=verb, trial=asked) if verb != "try":
            what = verb.replace("_trial", "")
            target = "the search" if asked is None else f"trial {asked}"
            yield _record("asked", f"asked to {what} {target}", asked, verb=verb)
        case LimitsMoved(checkpoints=checkpoints) if state.stopping is None:
            left_s = state.time_left_s
            what, text = "moved", f"the limits are moved: {show_duration(left_s)} left"
            if checkpoints is not None:
                what, text = "reopened", f"the search continues: {show_duration(left_s)} left"
            yield _record(what, text, left_s=left_s)
        case TimerFired(timer="deadline"):
            yield _record("deadline", "the deadline: every trial leaves at its next step")
        case _:
            pass
    if isinstance(event, DevicesJoined | DaemonResumed):
        for device, why in event.unusable.items():
            yield _quarantined(state, device, why)


def _quarantined(state: State, device: str, why: str) -> Record:
    reason, name = clean(why), state.devices.named([device])
    text = f"{name} is quarantined: {reason.removeprefix(f'{name}: ')}"
    return _record("quarantined", text, device=device, reason=reason)


def _decided(trial: TrialRecord) -> Iterator[Record]:
    if trial.after is None:
        return
    after, reason = trial.after, clean(trial.after.reason)
    then = {"then": "resize" if after.is_resize else after.state.value, "step": trial.step}
    more = {"atoms": after.atoms} if after.is_resize else {}
    yield _record("decided", sentence(trial.id, reason), trial.id, reason=reason, **then, **more)


def _exited(event: TrialExited, state: State) -> Iterator[Record]:
    """Tell an exit that is news: a trial that leaves as it was told to is not."""
    trial = state.trials.get(event.trial)
    if trial is None or not trial.story:
        return
    at, last = trial.story[-1]
    before, _, reason = last.partition(": ")
    is_current = trial.incarnation in (event.incarnation, event.incarnation + 1)
    if not is_current or at != state.now or " -> " not in before:
        return  # An event of an old incarnation, which changed nothing.
    error = first_line(reason)
    facts = {"step": trial.step, "reason": clean(reason)}
    is_lost = trial.state is TrialState.STARTING and event.outcome in ("lost", "killed", "failed")
    match trial.state:
        case TrialState.FAILED:
            text = f"trial {trial.id} failed at step {trial.step}: {error}"
            yield _record("failed", text, trial.id, step=trial.step, error=error)
        case _ if is_lost or reason in trial.retries.values():
            yield _record("lost", f"trial {trial.id}: {error}", trial.id, **facts)
        case TrialState.COMPLETED | TrialState.STOPPED | TrialState.PAUSED:
            if not before.startswith("yielding"):
                text = f"trial {trial.id} {trial.state.value}: {error or 'left on its own'}"
                yield _record(trial.state.value, text, trial.id, **facts)
        case _:
            pass


# ---------------------------------------------------------------- commands


def _of_commands(
    event: Event, commands: Sequence[Command], state: State, metric: str
) -> Iterator[Record]:
    yield from _kills(event, commands, state)
    for command in commands:
        match command:
            case Launch():
                yield _launch(command, state)
            case KeepBest(trial=number, step=step, metric=value):
                name = f"{clean(metric, 60)} " if metric else ""
                text = f"new best: {name}{show_metric(value)}, trial {number} at step {step}"
                yield _record("best", text, number, step=step, metric=value)
            case _:
                pass


def _kills(event: Event, commands: Sequence[Command], state: State) -> Iterator[Record]:
    """Tell which trials are told to die, each once however often it is told."""
    is_late = isinstance(event, TimerFired) and event.timer != DEADLINE
    for number in dict.fromkeys(one.trial for one in commands if isinstance(one, Kill)):
        doom = state.trials[number].doom
        if doom is not None and doom.at == state.now:
            why = doom.why or ("did not leave in time" if is_late else state.stopping) or ""
            because = f": {clean(why)}" if why else ""
            yield _record("killed", f"trial {number} is killed{because}", number, reason=why)


def _launch(command: Launch, state: State) -> Record:
    step, atoms = state.trials[command.trial].saved_step, len(command.devices)
    on = count(atoms, "atom")
    facts = {"incarnation": command.incarnation, "atoms": atoms, "devices": list(command.devices)}
    if command.incarnation == 1:
        text = f"trial {command.trial} starts on {on}: {show_hparams(command.hparams)}"
        return _record("starts", text, command.trial, **facts, hparams=dict(command.hparams))
    text = (
        f"trial {command.trial} continues from step {step} on {on} (launch {command.incarnation})"
    )
    return _record("goes_on", text, command.trial, **facts, step=step)


def _over(state: State, reason: str) -> str:
    trials = count(len(state.trials), "trial")
    best = state.best
    if best is None:
        return f"over ({reason}): {trials}, no model"
    return f"over ({reason}): {trials}, best {show_metric(best.metric)} by trial {best.trial}"


def _record(what: str, text: str, trial: int | None = None, **facts: Any) -> Record:
    target = {} if trial is None else {"trial": trial}
    return {"what": what, "text": text, **target, **facts}
