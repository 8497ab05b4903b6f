"""What a search will probably come to, and what more time or other atoms would buy.

    journal ──replay──▶ a copy of the experiment ──fork, several hundred times──▶ futures ──▶ best score, 80% interval

A future is the search's own core and policy, from where the journal ends, on a simulated machine (``midway``) that
trains curves resampled from this search's own (``continuing``). The journal is read and never written.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import json
import math
import os
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpusched import policies
from gpusched.core.decisions import Yield
from gpusched.core.events import (
    DeadlineMoved,
    DeviceQuarantined,
    DeviceReadmitted,
    ExperimentStarted,
)
from gpusched.core.experiment import Experiment
from gpusched.core.policy import NO_STEP_FITS, Policy, TrialView, View
from gpusched.core.state import State
from gpusched.driver.assemble import assemble, read_recipe
from gpusched.driver.forecaster import InlineForecaster
from gpusched.driver.loop import replay
from gpusched.errors import GpuschedError, InputError
from gpusched.folder.paths import ExperimentPaths
from gpusched.journal import log
from gpusched.journal.log import Entry
from gpusched.journal.timeline import timeline
from gpusched.sim.continuing import Curves, Future, Resampled, Seen
from gpusched.sim.midway import go_on
from gpusched.sim.physics import Delays
from gpusched.sim.setup import complete_options
from gpusched.sim.trace import Record
from gpusched.sim.workload import Workload

#: Futures of one question, and the seconds after which no more are begun.
FUTURES, LIMIT_S = 200, 60.0
#: Fewer curves than this, or fewer reports on the longest, say nothing about the rest.
LEAST_CURVES, LEAST_STEPS, LEAST_FUTURES = 3, 4, 20
#: Shares of the deadline that are tried to find out when more time stops paying.
LADDER = (0.125, 0.25, 0.5, 1.0, 2.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A change of the search from now on. ``atoms``, ``policy``: None for those it has."""

    add_s: float = 0.0
    atoms: int | None = None
    policy: str | None = None


NO_CHANGE = Question()


@dataclass(frozen=True, slots=True)
class Interval:
    """Median, and the ends of the 80% interval."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        low, median, high = np.quantile(np.array(values), [0.1, 0.5, 0.9])
        return cls(float(median), float(low), float(high))


@dataclass(frozen=True, slots=True)
class Answer:
    """``best``: the metric at the deadline; ``gain``: against no change, future by future, more is better."""

    question: Question
    futures: int
    best: Interval
    gain: Interval


class Search:
    """A recorded search, up to an instant before its end."""

    def __init__(self, paths: ExperimentPaths, until_s: float | None = None) -> None:
        """``until_s``: seconds since its beginning; None: all that is recorded. Raises DamagedState, InputError."""
        self.paths, self.recipe = paths, read_recipe(paths)
        self._rules = log.read_meta(paths.journal).get("rules")
        entries = list(log.read(paths.journal))
        if until_s is not None:
            entries = [entry for entry in entries if entry.event.at <= until_s]
        self._entries = entries[: self._end(entries)]
        self.is_over = len(self._entries) < len(entries)
        self.state = self._replayed().state
        record = Record(self.recipe, timeline(self._entries))
        self.delays: Delays = record.delays
        self.curves = self._curves()

    def _end(self, entries: Sequence[Entry]) -> int:
        """Return the number of events before the end began: before trials left because no time was left."""
        search = assemble(self.recipe, self.paths, self._rules).experiment
        state, end, was_ending = search.state, None, False
        for place, entry in enumerate(entries):
            replay(search, iter([entry]))
            if was_ending and state.stopping is None:
                end = None  # it was over, and goes on
            was_ending = state.stopping is not None
            if end is None and (was_ending or _leaves_for_want_of_time(state, entry)):
                end = place
        self.best = state.best
        return len(entries) if end is None or not was_ending else end

    def _replayed(self, question: Question = NO_CHANGE) -> Experiment:
        """Return the experiment at the end of what is recorded, with the devices and the policy of the question."""
        search = assemble(self.recipe, self.paths, self._rules).experiment
        own = search.policy
        other = None
        if question.policy is not None:
            options = complete_options(question.policy, self.recipe.policy_options)
            other = policies.make(question.policy, options)
            self._require(other, question)
            search.policy = _Watched(own, other)
        replay(search, self._with_spares(question.atoms))
        search.policy = other or own
        return search

    def _require(self, other: Policy, question: Question) -> None:
        """Raise InputError if the recipe's options do not suit the other policy."""
        rules, atoms = self.state.rules, question.atoms or self.state.atoms_total
        found = [*other.options.problems(), *other.problems(rules, atoms)]
        if found:
            told = "; ".join(f"{option} {message}" for option, message in found)
            raise InputError(f"--policy {question.policy}: {told}")

    def _with_spares(self, atoms: int | None) -> Iterator[Entry]:
        """Yield the entries; where more atoms are asked for than there were, those exist from the start, unusable."""
        for entry in self._entries:
            event = entry.event
            if atoms is not None and isinstance(event, ExperimentStarted):
                spares = [f"spare:{n}" for n in range(atoms - len(event.devices))]
                event = dataclasses.replace(
                    event,
                    devices=(*event.devices, *spares),
                    unusable={**event.unusable, **dict.fromkeys(spares, "not there yet")},
                )
                entry = dataclasses.replace(entry, event=event)
            yield entry

    def _curves(self) -> Curves:
        seen = list(_seen(self.state))
        fine = [one for one in seen if np.isfinite(one.scores).any()]
        if not fine:
            raise InputError(
                f"{self.paths.root.name}: no trial has reported yet, so nothing can be said about the rest; "
                "ask again after the first reports"
            )
        longest = max(len(one.steps) for one in fine)
        if len(fine) < LEAST_CURVES or longest < LEAST_STEPS:
            raise InputError(
                f"{self.paths.root.name}: {len(fine)} trials have reported, {longest} steps at most; a forecast needs "
                f"{LEAST_CURVES} trials and a curve of {LEAST_STEPS} steps; ask again later"
            )
        options, sign = self.recipe.policy_options, self.state.rules.sign
        best = options.get("metric_max" if sign > 0 else "metric_min")
        curves = Curves(seen, None if best is None else float(best) * sign)
        curves.widen(self.recipe.seed)
        return curves

    # ------------------------------------------------------------ futures

    def ask(
        self, questions: Sequence[Question], *, futures: int = FUTURES, limit_s: float = LIMIT_S
    ) -> list[Answer]:
        """Answer questions by the same futures each, as many as there is time for."""
        asked = [NO_CHANGE, *(question for question in questions if question != NO_CHANGE)]
        found: list[list[float]] = []
        for question in asked:
            until = time.monotonic() + limit_s / len(asked)
            found.append(self._futures(question, futures, until))
        least = min(map(len, found))
        sign = self.state.rules.sign
        answers = []
        for question, values in zip(asked, found, strict=True):
            gains = [(a - b) * sign for a, b in zip(values[:least], found[0], strict=False)]
            answers.append(Answer(question, len(values), Interval.of(values), Interval.of(gains)))
        return answers

    def stops_paying(self, futures: int, limit_s: float) -> dict[str, float | None]:
        """Return the added time beyond which more buys less than ``worth``; None: not within twice the deadline.

        ``worth``: a hundredth of the distance between the best trial and the usual one.
        """
        scores = sorted(trial.best_score for trial in self.state.trials.values())
        scores = [score for score in scores if math.isfinite(score)]
        worth = max(1e-12, (scores[-1] - scores[len(scores) // 2]) / 100)
        added = [0.0, *(share * self.state.rules.deadline_s for share in LADDER)]
        asked = [Question(add_s=add_s) for add_s in added[1:]]
        gains = [one.gain.median for one in self.ask(asked, futures=futures, limit_s=limit_s)]
        stops = None
        for n in range(len(added) - 1, 0, -1):
            if gains[n] - gains[n - 1] >= worth:
                break
            stops = added[n - 1]
        return {"worth": worth, "add_s": stops}

    def _futures(self, question: Question, most: int, until: float) -> list[float]:
        search = self._changed(question)
        gc.collect()
        gc.freeze()
        found: list[float] = []
        try:
            while len(found) < most and (len(found) < LEAST_FUTURES or time.monotonic() < until):
                found.append(_forked(functools.partial(self._future, search, len(found))))
        finally:
            gc.unfreeze()
        return found

    def _changed(self, question: Question) -> Experiment:
        """Return the experiment where the record ends, with the change made."""
        search = self._replayed(question)
        state = search.state
        if question.add_s:
            to_s = state.rules.deadline_s + question.add_s
            search.handle(DeadlineMoved(at=state.now, deadline_s=to_s))
        if question.atoms is not None:
            slots = state.devices.slots.values()
            for slot in list(slots):
                if slot.id.startswith("spare:"):
                    search.handle(DeviceReadmitted(at=state.now, device=slot.id))
            while state.devices.usable > question.atoms:
                taken = min(
                    (slot for slot in slots if slot.state.value != "quarantined"),
                    key=lambda slot: _worth(
                        state, slot.trial if slot.state.value != "free" else None
                    ),
                )
                search.handle(DeviceQuarantined(at=state.now, device=taken.id, reason="taken away"))
        return search

    def under(self, workload: Workload, question: Question) -> float:
        """Return the best metric at the deadline where the trials train this workload from now on."""
        return float(_forked(lambda: self._end_of(self._changed(question), workload)))

    def _future(self, search: Experiment, number: int) -> float:
        future = Future(self.curves, [self.recipe.seed, number])
        workload = Resampled(self.recipe.metric, self.recipe.mode, future)
        return self._end_of(search, workload)

    def _end_of(self, search: Experiment, workload: Workload) -> float:
        predicts = getattr(search.policy.options, "predictor", None)
        forecaster = InlineForecaster("least_squares") if predicts else None
        gc.disable()
        go_on(search, workload, self.delays, forecaster)
        best = search.state.best
        return math.nan if best is None else best.metric


class _Watched(Policy):
    """The recorded policy; another one sees what it sees, to take over later. What the other decides is dropped."""

    def __init__(self, own: Policy, other: Policy) -> None:
        super().__init__(own.options)
        self._own, self._other = own, other

    def on_report(self, view: View, trial: TrialView) -> Any:
        self._show(self._other.on_report, view, trial)
        return self._own.on_report(view, trial)

    def on_capacity(self, view: View) -> Any:
        return self._own.on_capacity(view)

    def on_start(self, view: View, trial: TrialView) -> None:
        self._show(self._other.on_start, view, trial)
        self._own.on_start(view, trial)

    def on_exit(self, view: View, trial: TrialView) -> Any:
        self._show(self._other.on_exit, view, trial)
        return self._own.on_exit(view, trial)

    def _show(self, method: Callable[[View, TrialView], Any], view: View, trial: TrialView) -> None:
        try:
            method(view, trial)
        except Exception as error:
            raise InputError(
                f"--policy {self._other.name}: plans a search from its beginning and cannot take over one that "
                f"{self._own.name} began ({type(error).__name__})"
            ) from error

    def on_wake(self, view: View) -> Any:
        return self._own.on_wake(view)

    def on_forecast(
        self, view: View, trial: TrialView, step: int, forecast: Mapping[str, float]
    ) -> Any:
        return self._own.on_forecast(view, trial, step, forecast)


def _leaves_for_want_of_time(state: State, entry: Entry) -> bool:
    leaving = [state.trials[c.trial].after for c in entry.commands if isinstance(c, Yield)]
    return any(after is not None and after.reason.endswith(NO_STEP_FITS) for after in leaving)


def _worth(state: State, trial: int | None) -> float:
    return -float("inf") if trial is None else state.trials[trial].score


def _seen(state: State) -> Iterator[Seen]:
    """Yield the curves so far, and the trials that failed without a report."""
    sign, usual_s = state.rules.sign, state.speed.step_on_one_atom_s or 1.0
    for trial in state.trials.values():
        ending = _ending(state, trial.id)
        curve = dict(trial.curve)
        if not curve and ending is None:
            continue
        step_s = usual_s
        if trial.step_time_s is not None:
            step_s = trial.step_time_s * state.speed.s(trial.trained_atoms or trial.atoms or 1)
        steps = sorted(curve)
        scores = np.array([curve[step] * sign for step in steps], dtype=float)
        yield Seen(trial.id, np.array(steps, dtype=float), scores, step_s, ending)


def _ending(state: State, number: int) -> Any:
    trial = state.trials[number]
    if trial.state.value == "failed":
        return "failed"
    is_own = (
        trial.state.value == "completed"
        and trial.story
        and "finished at step" in trial.story[-1][1]
    )
    return "finished" if is_own else None


# ---------------------------------------------------------------- one command's worth


def answer(
    paths: ExperimentPaths,
    questions: Sequence[Question],
    *,
    futures: int = FUTURES,
    limit_s: float = LIMIT_S,
) -> dict[str, Any]:
    """Answer in a child of low priority, as JSON: the search as it goes on, the questions, and when time stops paying.

    Raises InputError where too little is known, DamagedState.
    """
    found: dict[str, Any] = _forked(functools.partial(_answer, paths, questions, futures, limit_s))
    if "refused" in found:
        error = GpuschedError(found["refused"])
        error.exit_code = found["exit_code"]
        raise error
    return found


def _answer(
    paths: ExperimentPaths, questions: Sequence[Question], futures: int, limit_s: float
) -> dict[str, Any]:
    os.nice(10)
    try:
        search = Search(paths)
        asked = search.ask(questions, futures=futures, limit_s=limit_s)
        stops = search.stops_paying(futures // 4, limit_s / 2) if limit_s > 1 else None
    except GpuschedError as error:
        return {"refused": str(error), "exit_code": error.exit_code}
    state = search.state
    return {
        "experiment": paths.root.name,
        "metric": search.recipe.metric,
        "mode": search.recipe.mode,
        "at_s": state.now,
        "deadline_s": state.rules.deadline_s,
        "over": search.is_over,
        "best": None if search.best is None else search.best.metric,
        "answers": [dataclasses.asdict(one) for one in asked],
        "stops_paying": stops,
    }


def _forked(work: Callable[[], Any]) -> Any:
    """Return what ``work`` returns, as JSON, in a copy of this process; the copy ends with it."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reader)
            with os.fdopen(writer, "wb") as pipe:
                pipe.write(json.dumps(work()).encode())
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        told = pipe.read()
    _, status = os.waitpid(child, 0)
    if status:
        raise GpuschedError(f"a future of the search ended with status {status}")
    return json.loads(told)
