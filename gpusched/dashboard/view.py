"""The standing of an experiment, for people: ``build`` reads the core's state and makes a ``Standing``.

Called once or twice a second in the daemon's loop, so it is cheap: at most ``LIMIT`` trials are described, each curve
by at most ``CURVE_POINTS`` numbers; the rest is counted. The dashboard draws views alone, so a live experiment, a
simulated one and the journal of a dead one look the same.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from gpusched.core.allocation import DeviceSlot, DeviceState
from gpusched.core.idle import RELEASING, IdleTime, idle_now
from gpusched.core.state import State
from gpusched.core.trial import TrialRecord, TrialState
from gpusched.dashboard.model import (
    AtomCounts,
    BestRow,
    DeviceRow,
    IdleRow,
    Standing,
    TrialRow,
    thinned,
)
from gpusched.text import clean, first_line

if TYPE_CHECKING:
    from gpusched.devices.base import Reading

#: Trials that are described; further ones are only counted.
LIMIT = 200
#: Of these at least so many of the last failures, so that an error can be looked at however many trials there are.
FAILURES = 20
CURVE_POINTS = 40
METRICS = 12


def build(
    state: State,
    *,
    name: str,
    policy: str,
    metric: str,
    folder: str = "",
    daemon_pid: int | None = None,
    now: float | None = None,
    notes: Sequence[str] = (),
    warnings: Sequence[str] = (),
    readings: Iterable[Reading] = (),
    idle: IdleTime | None = None,
) -> Standing:
    """Describe the standing at ``now`` (seconds since the experiment began; the last event's time if None)."""
    rules = state.rules
    now_s = state.now if now is None else max(now, state.now)
    if state.finished:
        now_s = state.now
    counts, by_id = state.devices.counts(), {reading.device: reading for reading in readings}
    slots = state.devices.slots.values()
    devices = {slot.id: _device(slot, by_id.get(slot.id)) for slot in slots}
    kinds, unsaved = Counter(trial.state for trial in state.trials.values()), state.best_unsaved
    return Standing(
        experiment=name,
        state=_standing(state, is_driven=daemon_pid is not None),
        ending=clean(state.stopping) if state.stopping else None,
        folder=folder,
        policy=policy,
        daemon_pid=daemon_pid,
        metric=clean(metric, 80),
        mode=rules.mode,
        now_s=round(now_s, 3),
        time_left_s=round(max(0.0, rules.deadline_s - now_s), 3),
        deadline_s=rules.deadline_s,
        best=_best(state),
        best_unsaved=None if unsaved is None else _trial(state, unsaved),
        atoms=AtomCounts(total=state.devices.total, **counts),
        devices=tuple(devices.values()),
        trials=tuple(_trial(state, trial) for trial in _relevant(state)),
        trial_counts={kind.value: number for kind, number in kinds.items()},
        notes=tuple(clean(note) for note in notes),
        warnings=tuple(clean(warning) for warning in warnings),
        idle=_idle(state, idle, devices, now_s) if idle is not None and not state.finished else (),
        idle_atom_s={} if idle is None else {why: round(s, 3) for why, s in idle.by_reason.items()},
    )


def _idle(
    state: State, idle: IdleTime, devices: Mapping[str, DeviceRow], now_s: float
) -> tuple[IdleRow, ...]:
    rows = []
    for row in idle_now(idle, state):
        reason, detail = row.reason, row.detail
        if reason == RELEASING:  # the device's own word names the processes that are still there
            reason, detail = devices[row.devices[0]].reason, ""
        idle_s = round(max(0.0, now_s - row.since), 3)
        rows.append(
            IdleRow(devices=row.devices, idle_s=idle_s, reason=clean(reason), detail=clean(detail))
        )
    return tuple(rows)


def _standing(state: State, *, is_driven: bool) -> str:
    if state.finished:
        return "finished"
    if not is_driven:
        return "interrupted"
    if state.stopping is not None:
        return "stopping"
    return "running" if state.devices.total else "starting"


def _best(state: State) -> BestRow | None:
    if (best := state.best) is None:
        return None
    return BestRow(
        trial=best.trial,
        step=best.step,
        metric=best.metric,
        atoms=best.atoms,
        at_s=round(best.at, 3),
        hparams=dict(state.trials[best.trial].hparams),
    )


# ---------------------------------------------------------------- devices


def _device(slot: DeviceSlot, reading: Reading | None) -> DeviceRow:
    read = {} if reading is None else dataclasses.asdict(reading)
    holders = ", ".join(read.pop("holders", ()))
    for told in ("device", "strangers"):  # by ``id``, and among the notes
        read.pop(told, None)
    read["notes"] = tuple(map(clean, read.get("notes", ())))
    return DeviceRow(
        id=slot.id,
        label=slot.label,
        state=slot.state.value,
        trial=slot.trial,
        reason=clean(_reason(slot, holders)),
        **read,
    )


def _reason(slot: DeviceSlot, holders: str) -> str:
    """Word why a device is draining or quarantined."""
    if slot.state is DeviceState.QUARANTINED:
        return slot.reason or "no reason was given"
    if slot.state is not DeviceState.DRAINING:
        return ""
    left = "" if slot.trial is None else f"trial {slot.trial}"
    if holders:
        why = f"still held by {holders}" + (f" after {left} left" if left else "")
    else:
        why = (f"{left} has left, " if left else "") + "its release is being confirmed"
    return why if slot.awaited_by is None else f"{why}; trial {slot.awaited_by} is next"


# ---------------------------------------------------------------- trials


def every_trial(state: State) -> Iterator[TrialRow]:
    """Describe each trial, however many there are, in the order of their numbers."""
    return (_trial(state, trial) for trial in state.trials.values())


def _relevant(state: State) -> list[TrialRecord]:
    """Choose at most LIMIT trials, the best first: live ones, the best, the first and last failures, good others."""
    trials = state.trials
    if len(trials) <= LIMIT:
        return sorted(trials.values(), key=_place)
    chosen = dict(list(state.live.items())[:LIMIT])
    if state.best is not None:
        chosen.setdefault(state.best.trial, trials[state.best.trial])
    failed = [trial for trial in trials.values() if trial.state is TrialState.FAILED]
    chosen |= {trial.id: trial for trial in (*failed[:1], *failed[-FAILURES:])}
    room = LIMIT - len(chosen)
    rest = (one for one in trials.values() if not one.is_live and one.id not in chosen)
    for trial in heapq.nsmallest(room, rest, key=_place):
        chosen[trial.id] = trial
    return sorted(chosen.values(), key=_place)


def _place(trial: TrialRecord) -> tuple[float, bool, int]:
    """Sort key: the best report first; without one, failures last; then by age."""
    return -trial.best_score, trial.state is TrialState.FAILED, trial.id


def _trial(state: State, trial: TrialRecord) -> TrialRow:
    return TrialRow(
        id=trial.id,
        state=trial.state.value,
        step=trial.step,
        metric=_finite(trial.metric),
        best_metric=_finite(trial.best_score * state.rules.sign),
        best_step=trial.best_step,
        atoms=trial.atoms,
        incarnation=trial.incarnation,
        held_by_user=trial.held_by_user,
        hparams=dict(trial.hparams),
        metrics={clean(name, 60): told for name, told in islice(trial.metrics.items(), METRICS)},
        first_step=trial.curve[0][0] if trial.curve else 0,
        curve=tuple(_finite(value) for _, value in thinned(trial.curve, CURVE_POINTS)),
        error=first_line(trial.error) if trial.error else None,
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
