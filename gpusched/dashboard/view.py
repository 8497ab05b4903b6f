"""The standing of an experiment, for people: ``build`` reads the core's state and makes a ``View``.

Called once or twice a second in the daemon's loop, so it is cheap: at most ``LIMIT`` trials are described, each curve
by at most ``CURVE_POINTS`` numbers; the rest is counted. It changes nothing. The dashboard draws views and nothing
else, so a live experiment, a simulated one and the journal of a dead one look the same.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from gpusched.core.allocation import DeviceSlot, DeviceState
from gpusched.core.rung import Rung
from gpusched.core.state import State
from gpusched.core.trial import Trial, TrialState
from gpusched.dashboard.model import (
    AtomsView,
    BestView,
    DecisionView,
    DeviceView,
    RungView,
    TrialView,
    UnsavedView,
    View,
    from_json,
    thinned,
    to_json,
)
from gpusched.text import clean, count, first_line

if TYPE_CHECKING:
    from gpusched.devices.base import Reading

__all__ = ["View", "build", "from_json", "to_json"]

#: Trials that are described; those beyond are only counted.
LIMIT = 200
#: Of these at least so many of the last failures, so that an error can be looked at however many trials there are.
FAILURES = 20
CURVE_POINTS = 40
DECISIONS = 40
METRICS = 12


def build(
    state: State,
    *,
    name: str,
    policy: str,
    metric: str,
    folder: str = "",
    daemon_pid: int | None = None,
    alive: bool | None = None,
    now: float | None = None,
    rungs: Sequence[Rung] = (),
    eta: float | None = None,
    notes: Sequence[str] = (),
    warnings: Sequence[str] = (),
    readings: Iterable[Reading] = (),
) -> View:
    """Describe the standing at ``now`` (seconds since the experiment began; the last event's time if None).

    ``alive``: whether somebody drives the experiment; a daemon's pid says so, a simulation says it here. ``eta``: the
    policy's, for the rungs' cut-offs.
    """
    rules = state.rules
    now_s = state.now if now is None else max(now, state.now)
    if state.finished:
        now_s = state.now
    alive = daemon_pid is not None if alive is None else alive
    counts = state.devices.counts()
    return View(
        experiment=name,
        state=_standing(state, alive),
        ending=clean(state.ending) if state.ending else None,
        folder=folder,
        policy=policy,
        daemon_pid=daemon_pid,
        metric=clean(metric, 80),
        mode=rules.mode,
        now_s=round(now_s, 3),
        time_left_s=round(max(0.0, rules.deadline_s - now_s), 3),
        deadline_s=rules.deadline_s,
        best=_best(state),
        best_unsaved=_best_unsaved(state),
        atoms=AtomsView(total=state.devices.total, **counts),
        devices=_devices(state, readings),
        trials=tuple(_trial(state, trial, now_s) for trial in _relevant(state)),
        trial_counts=_counts(state),
        rungs=_rungs(state, rungs, eta),
        decisions=_decisions(state),
        notes=tuple(clean(note) for note in notes),
        warnings=tuple(clean(warning) for warning in warnings),
        speed=_speed(state),
    )


def _speed(state: State) -> dict[int, float]:
    """Return s(a) at powers of two, up to all atoms."""
    total = state.devices.total
    sizes = {1 << n for n in range(total.bit_length())} | {total} if total else set()
    return {size: round(state.speed.s(size), 4) for size in sorted(sizes)}


def _standing(state: State, alive: bool) -> str:
    if state.finished:
        return "finished"
    if not alive:
        return "interrupted"
    if state.stopping is not None:
        return "stopping"
    return "running" if state.devices.total else "starting"


def _best(state: State) -> BestView | None:
    best = state.best
    if best is None:
        return None
    return BestView(
        trial=best.trial,
        step=best.step,
        metric=best.metric,
        atoms=best.atoms,
        at_s=round(best.at, 3),
        hparams=dict(state.trials[best.trial].hparams),
    )


def _best_unsaved(state: State) -> UnsavedView | None:
    trial = state.best_unsaved
    if trial is None:
        return None
    return UnsavedView(
        trial=trial.id,
        step=trial.best_step,
        metric=trial.best_score * state.rules.sign,
        why=trial.why_unsaved,
    )


# ---------------------------------------------------------------- devices


def _devices(state: State, readings: Iterable[Reading]) -> tuple[DeviceView, ...]:
    by_id = {reading.device: reading for reading in readings}
    return tuple(_device(slot, by_id.get(slot.id)) for slot in state.devices.slots.values())


def _device(slot: DeviceSlot, reading: Reading | None) -> DeviceView:
    holders = ", ".join(reading.holders) if reading is not None else ""
    known: dict[str, Any] = {}
    if reading is not None:
        known = {
            "label": clean(reading.label, 80),
            "utilisation": _finite(reading.utilisation),
            "memory_used_bytes": reading.memory_used_bytes,
            "memory_total_bytes": reading.memory_total_bytes,
            "temperature_c": _finite(reading.temperature_c),
            "power_w": _finite(reading.power_w),
            "notes": tuple(clean(note, 200) for note in reading.notes),
            "history": tuple(_finite(load) for load in reading.history),
        }
    return DeviceView(
        id=slot.id,
        state=slot.state.value,
        trial=slot.trial,
        awaited_by=slot.awaited_by,
        reason=clean(_reason(slot, holders)),
        stuck=slot.state is DeviceState.DRAINING and bool(holders),
        **known,
    )


def _reason(slot: DeviceSlot, holders: str) -> str:
    """Word why a device is draining or quarantined."""
    if slot.state is DeviceState.QUARANTINED:
        return slot.reason or "no reason was given"
    if slot.state is not DeviceState.DRAINING:
        return ""
    why = "its release is being confirmed"
    if holders:
        why = f"still held by {holders}" + (
            f" after trial {slot.trial} left" if slot.trial is not None else ""
        )
    elif slot.trial is not None:
        why = f"trial {slot.trial} has left, {why}"
    if slot.awaited_by is not None:
        why += f"; trial {slot.awaited_by} is next"
    return why


# ---------------------------------------------------------------- trials


def _relevant(state: State) -> list[Trial]:
    """Choose at most LIMIT trials, the best first: live ones, the best, the last failures, good others."""
    trials = state.trials
    if len(trials) <= LIMIT:
        return sorted(trials.values(), key=_place)
    chosen = dict(list(state.live.items())[:LIMIT])
    if state.best is not None:
        chosen.setdefault(state.best.trial, trials[state.best.trial])
    failed = (trial for trial in reversed(trials.values()) if trial.state is TrialState.FAILED)
    for _, trial in zip(range(FAILURES), failed, strict=False):
        chosen.setdefault(trial.id, trial)
    room = LIMIT - len(chosen)
    paused = (trial for trial in state.paused_by_score() if trial.id not in chosen)
    final = (trial for trial in trials.values() if trial.is_final and trial.id not in chosen)
    others = [*islice(paused, room), *heapq.nsmallest(room, final, key=_place)]
    for trial in heapq.nsmallest(room, others, key=_place):
        chosen[trial.id] = trial
    return sorted(chosen.values(), key=_place)


def _place(trial: Trial) -> tuple[float, bool, int]:
    """Sort key: the best latest score first; without one, failures last; then by age."""
    return -trial.score, trial.state is TrialState.FAILED, trial.id


def _counts(state: State) -> dict[str, int]:
    found = Counter(trial.state for trial in state.trials.values())
    return {state.value: count for state, count in found.items()}


def _trial(state: State, trial: Trial, now_s: float) -> TrialView:
    best = trial.best_score * state.rules.sign
    return TrialView(
        id=trial.id,
        state=trial.state.value,
        step=trial.step,
        metric=_finite(trial.metric),
        best_metric=_finite(best),
        best_step=trial.best_step,
        atoms=trial.atoms,
        incarnation=trial.incarnation,
        step_time_s=_finite(trial.step_time_s),
        training_s=round(trial.training_s(now_s), 3),
        saved_step=trial.saved_step,
        saved_age_s=trial.saved_age_s(now_s),
        held_by_user=trial.held_by_user,
        after=clean(trial.after.reason, 200) if trial.after is not None else "",
        hparams=dict(trial.hparams),
        metrics=_metrics(trial.report.metrics),
        curve=tuple(_finite(value) for _, value in thinned(trial.curve, CURVE_POINTS)),
        error=first_line(trial.error) if trial.error else None,
    )


def _metrics(metrics: Mapping[str, float | str]) -> dict[str, float | str]:
    """Return a few of the reported metrics; values that are not finite arrive as texts and stay so."""
    found: dict[str, float | str] = {}
    for name, value in metrics.items():
        if len(found) == METRICS:
            break
        found[clean(name, 60)] = _number(value)
    return found


def _number(value: float | str) -> float | str:
    if isinstance(value, str):
        return clean(value, 20)
    try:
        number = float(value)
    except OverflowError:
        return "huge"
    return value if math.isfinite(number) else str(number)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


# ---------------------------------------------------------------- rungs and decisions


def _rungs(state: State, rungs: Sequence[Rung], eta: float | None) -> tuple[RungView, ...]:
    """Lowest first. A paused trial waits at the highest rung that recorded it."""
    waiting = [0] * len(rungs)
    from_the_top = [(place, rungs[place]) for place in reversed(range(len(rungs)))]
    for trial in state.paused:
        for place, rung in from_the_top:
            if trial in rung:
                waiting[place] += 1
                break
    sign = state.rules.sign
    return tuple(
        RungView(
            milestone=rung.milestone,
            count=len(rung),
            waiting=waiting[place],
            cutoff=_finite(rung.cutoff(eta) * sign) if eta and len(rung) else None,
        )
        for place, rung in enumerate(rungs)
    )


def _decisions(state: State) -> tuple[DecisionView, ...]:
    """List decisions, the newest last. One that is told at a report and again when the trial has left counts once.

    The end of the search is told to every trial, and is one decision.
    """
    ends = [decision for decision in state.decisions if decision[2] == state.stopping]
    ended = {trial for _, trial, _ in ends}
    decisions = list(state.decisions)
    if len(ended) > 1:
        at, _, why = ends[0]
        decisions[decisions.index(ends[0])] = (
            at,
            None,
            f"{count(len(ended), 'trial')} are ended: {why}",
        )
        decisions = [decision for decision in decisions if decision[2] != why]
    said: set[tuple[int | None, str]] = set()
    found: list[DecisionView] = []
    for at, trial, text in decisions[-DECISIONS:]:
        if (trial, text) not in said:
            said.add((trial, text))
            found.append(DecisionView(at=round(at, 3), trial=trial, text=clean(text)))
    return tuple(found)
