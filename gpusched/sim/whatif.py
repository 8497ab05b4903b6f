"""Forecast of what a search will probably come to, and what more time would buy.

    journal ──replay──▶ a copy of the experiment ──fork, twenty times──▶ futures ──▶ best score, 80% interval

A future is the search's own core and policy, from where the journal ends, on a simulated machine that trains curves
resampled from this search's own (both: ``continuing``). The journal is read and never written.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import json
import math
import multiprocessing
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.random import default_rng

from gpusched.core.state import State
from gpusched.errors import GpuschedError, InputError
from gpusched.folder.find import has_daemon
from gpusched.folder.paths import ExperimentPaths
from gpusched.sim.continuing import Array, Future, Recorded, SeenTrial, TrialCurves
from gpusched.sim.physics import Workload
from gpusched.text import count

#: A future is a copy of this process, with all that has been read and replayed.
FORK = multiprocessing.get_context("fork")
#: Most futures of one question.
FUTURES = 20
#: Fewer curves than this, or fewer reports on the longest, say nothing about the rest.
LEAST_CURVES, LEAST_STEPS, LEAST_FUTURES = 3, 4, 3
#: How far gains come out otherwise than a future has them: the deviation of their ratio's logarithm, the most, and how
#: often that is drawn for each future. Of 210 recorded searches 76% ended within their interval; with 0.6 and 1.5, 71%.
SCATTER, MOST, DRAWS = 1.0, 2.0, 10
#: A word of the name of a metric that is a share: where it is above 1 it is in percent, and 100 at most.
SHARES = r"(?<![a-z])(acc|accuracy|auc|f1|m?iou|map|precision|recall|top[15])(?![a-z])"
#: Share of the range of scores that is added to gains before they are scattered, so that small ones are, too.
LEAST = 0.001


@dataclass(frozen=True, slots=True)
class Interval:
    """Median, and the ends of the shortest interval that holds 80%: where most futures are alike it begins there."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Array) -> Interval:
        ordered = np.sort(values, axis=None)
        count = math.ceil(0.8 * len(ordered))
        lows, highs = ordered[: len(ordered) - count + 1], ordered[count - 1 :]
        place = int(np.argmin(highs - lows))
        return cls(float(np.median(ordered)), float(lows[place]), float(highs[place]))


@dataclass(frozen=True, slots=True)
class WhatifAnswer:
    """``best``: metric ``add_s`` after the deadline; ``gain``: against no change, future by future; more is better."""

    add_s: float
    futures: int
    best: Interval
    gain: Interval


class AskedSearch:
    """A recorded search, up to an instant before its end."""

    def __init__(self, recorded: Recorded) -> None:
        """Raises InputError where too little is known."""
        self.recorded, self.recipe, self.state = recorded, recorded.recipe, recorded.state
        seen = list(_seen(self.state))
        fine = [one for one in seen if any(map(math.isfinite, one.curve.values()))]
        longest = max((len(one.curve) for one in fine), default=0)
        if len(fine) < LEAST_CURVES or longest < LEAST_STEPS:
            raise InputError(
                f"{self.recorded.paths.root.name}: a forecast needs {LEAST_CURVES} trials and one with {LEAST_STEPS} "
                f"reports; there are {count(len(fine), 'trial')} with finite reports, {longest} at most"
            )
        is_share = re.search(SHARES, self.recipe.metric.lower()) is not None
        self.curves = TrialCurves(seen, is_share=is_share)

    # ------------------------------------------------------------ futures

    def ask(
        self, more_s: Sequence[float], *, futures: int = FUTURES, until: float = math.inf
    ) -> list[WhatifAnswer]:
        """Answer for the search as it is, then for so many seconds more each, by the same futures.

        As many futures as there is time for. ``until``: of the monotonic clock. Raises InputError for too few.
        """
        if self.state.best is None:
            raise InputError(
                f"{self.recorded.paths.root.name}: no checkpoint has been saved yet, so no score can be forecast; ask "
                "again after the first save"
            )
        asked, began_s = [0.0, *more_s], time.monotonic()
        raw = self._raw(asked, futures, until)
        if len(raw) < min(futures, LEAST_FUTURES):
            spent_s = time.monotonic() - began_s
            need_s = math.ceil(1.5 * LEAST_FUTURES * spent_s / max(1, len(raw)))
            hint = f"give about --limit {need_s}s" if raw else "give a longer --limit"
            raise InputError(
                f"{self.recorded.paths.root.name}: a forecast needs {LEAST_FUTURES} futures, and the limit was "
                f"enough for {len(raw)}; {hint}"
            )
        values = [self._scattered(one) for one in np.array(raw, dtype=float).T]
        gains = [Interval.of((one - values[0]) * self.state.rules.sign) for one in values]
        bests = map(Interval.of, values)
        return [
            WhatifAnswer(*one) for one in zip(asked, map(len, values), bests, gains, strict=True)
        ]

    def _scattered(self, raw: Array) -> Array:
        """Return the best metric of each future (a row), its gain scattered by draws of how wrong forecasts are."""
        curves, sign = self.curves, self.state.rules.sign
        range_, now = curves.model.range, curves.counted(self.state.kept_score)
        drawn = default_rng([self.recipe.seed, 1]).standard_normal((len(raw), DRAWS))
        gain = np.maximum(0.0, curves.counted(raw[:, None] * sign) - now) / range_
        rise = np.exp(np.minimum(MOST, SCATTER * drawn)) * (gain + LEAST) - LEAST
        score = np.minimum(curves.model.bound, now + range_ * np.maximum(0.0, rise))
        metrics: Array = curves.score(score) * sign + 0.0  # not -0
        return metrics

    def _raw(self, asked: Sequence[float], most: int, until: float) -> list[list[float]]:
        """Return for each future the best metric with each of these times more, until the time is over."""
        gc.collect()
        gc.freeze()
        found: list[list[float]] = []
        try:
            for number in range(most):
                futures = [functools.partial(self._future, add_s, number) for add_s in asked]
                found.append([_forked(one, until - time.monotonic()) for one in futures])
        except Late:
            pass
        finally:
            gc.unfreeze()
        return found

    def under(self, workload: Workload, add_s: float = 0.0) -> float:
        """Return the best metric at the deadline where the trials train this workload from now on."""
        return float(_forked(functools.partial(self._end_of, workload, add_s)))

    def _future(self, add_s: float, number: int) -> float:
        of = self.recipe
        return self._end_of(Future(self.curves, [of.seed, number], of.metric, of.mode), add_s)

    def _end_of(self, workload: Workload, add_s: float) -> float:
        gc.disable()
        self.recorded.finish(workload, add_s)
        best = self.state.best
        return math.nan if best is None else best.metric


def _seen(state: State) -> Iterator[SeenTrial]:
    """Yield the curves so far, and the trials that failed without a report."""
    sign = state.rules.sign
    for trial in state.trials.values():
        is_own = trial.state.value == "completed" and "finished at step" in trial.reason
        ending: Any = "failed" if trial.state.value == "failed" else "finished" if is_own else None
        curve = dict(trial.curve)
        if not curve and ending is None:
            continue
        scores = {step: curve[step] * sign for step in sorted(curve)}
        yield SeenTrial(trial.id, scores, state.step_s(trial) or 1.0, ending)


# ---------------------------------------------------------------- one command's worth


def answer(paths: ExperimentPaths, more_s: Sequence[float], limit_s: float) -> dict[str, Any]:
    """Answer within ``limit_s``, as JSON: the search as it is, and with more time.

    Raises InputError where too little is known, DamagedState.
    """
    until = time.monotonic() + 0.9 * limit_s  # what is left is for the answer itself
    search = AskedSearch(Recorded(paths))
    asked = search.ask(more_s, until=until)
    state, recorded = search.state, search.recorded
    return {
        "experiment": recorded.paths.root.name,
        "metric": search.recipe.metric,
        "mode": search.recipe.mode,
        "at_s": state.now,
        "deadline_s": state.rules.deadline_s,
        "over": recorded.is_over,
        "interrupted": not recorded.is_over and not has_daemon(paths),
        "best": None if recorded.best is None else recorded.best.metric,
        "answers": [dataclasses.asdict(one) for one in asked],
    }


class Late(GpuschedError):
    """The time is over."""


def _forked(work: Callable[[], Any], patience_s: float = math.inf) -> Any:
    """Return what ``work`` returns, as JSON, in a copy of this process; the copy and its own end with it.

    Raises Late where the copy is not done in time, GpuschedError where it fails.
    """
    reader, writer = FORK.Pipe(duplex=False)
    copy = FORK.Process(target=_tell, args=(writer, work))
    copy.start()
    writer.close()
    is_late = not reader.poll(max(0.0, patience_s) if patience_s < math.inf else None)
    if is_late:
        copy.kill()
    told = b""
    with reader, contextlib.suppress(EOFError):
        told = reader.recv_bytes()
    copy.join()
    if is_late:
        raise Late("a future of the search took too long")
    if not told:
        raise GpuschedError(f"a future of the search ended with status {copy.exitcode}")
    return json.loads(told)


def _tell(writer: Connection, work: Callable[[], Any]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C is for the whole group, and worded once
    os.nice(10)
    try:
        writer.send_bytes(json.dumps(work()).encode())
    except InputError as error:  # a policy of the user's own may fail later on
        sys.exit(str(error))
