"""A recorded search up to an instant, and continued: what its trials, and trials like them, may do next, and where.

``foresight``'s forecaster (``policies/foresight_curves.py``) says which shapes a curve may have, where it starts and
how high it rises, and how sure that is. A future draws for each trial one shape, start and height. A new configuration
is one seen, its whole curve moved a little: as far as its neighbours in rank were apart. Reports are scattered as they
were. ``Midway`` has running what the recorded search had.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.random import Generator, default_rng
from numpy.typing import NDArray

from gpusched.core.allocation import DeviceState
from gpusched.core.events import LimitsMoved
from gpusched.core.experiment import Experiment
from gpusched.core.state import WATCH, State
from gpusched.core.trial import TrialRecord, TrialState
from gpusched.devices.base import Device
from gpusched.driver.assemble import assemble, recorded_recipe
from gpusched.driver.loop import Driver, replay
from gpusched.folder.paths import ExperimentPaths
from gpusched.journal import rows
from gpusched.journal.rows import Entry
from gpusched.journal.timeline import Timeline, timeline
from gpusched.policies import foresight_curves
from gpusched.policies.foresight_curves import FINE, TABLE
from gpusched.sim.executor import SimExecutor
from gpusched.sim.physics import Delays, Run, SimulatedCurve, Story, Workload

Array = NDArray[np.float64]


class Recorded:
    """A recorded search. A search that is over is taken as of just before its end."""

    def __init__(self, paths: ExperimentPaths, entries: Sequence[Entry] | None = None) -> None:
        """``entries``: of the journal; None: all. Raises DamagedState."""
        self.paths, self.recipe = paths, recorded_recipe(paths)
        self._rules = rows.read_meta(paths.journal).get("rules")
        found = list(rows.read(paths.journal)) if entries is None else entries
        self.search, end = self._fresh(), 0
        for place, entry in enumerate(found, 1):
            replay(self.search, iter([entry]))
            if self.search.state.stopping is None:  # a search may continue after an end
                end = place
        self.best = self.search.state.best
        self.entries = found[:end]
        self.is_over = end < len(found)
        if self.is_over:
            self.search = self._fresh()
            replay(self.search, iter(self.entries))
        self.state = self.search.state
        self.delays: Delays = measured_delays(timeline(self.entries))

    def until(self, at_s: float) -> Recorded:
        """Return the search as it was then, seconds since its beginning."""
        return Recorded(self.paths, [entry for entry in self.entries if entry.event.at <= at_s])

    def _fresh(self) -> Experiment:
        return assemble(self.recipe, self.paths, self._rules).experiment

    def finish(self, workload: Workload, add_s: float = 0.0) -> None:
        """Run the search from where the record ends to its end, with so much more time. Once: in a copy."""
        state = self.state
        if add_s:
            moved = LimitsMoved(at=state.now, deadline_s=state.rules.deadline_s + add_s)
            self.search.handle(moved)
        state.timers.pop(WATCH, None)  # no trial hangs here
        if state.configurations.learns:
            state.configurations.draw_from(self.recipe.configurations().sample)
        driver = Driver(self.search, Midway(state, workload, self.delays))
        driver.resume(epoch=0)
        driver.run()


def measured_delays(told: Timeline) -> Delays:
    """Return the medians of what launches, saves and releases took; 0 for what never happened."""
    first_s, later_s, exits_s = list[float](), list[float](), list[float]()
    for trial in told.trials.values():
        before = 0
        for incarnation in trial.incarnations:
            steps = incarnation.steps
            # The first step of a launch takes longer than the next: the rest of it is of the launch.
            steps_s = [one.report.step_time_s for one in steps[:2]]
            if steps_s:
                launches_s = first_s if incarnation.number == 1 else later_s
                stride = max(1, steps[0].report.step - before)
                launches_s.append(steps[0].at - incarnation.launched_at - stride * min(steps_s))
            if steps and incarnation.outcome == "yielded" and incarnation.exited_at is not None:
                waited_s = incarnation.exited_at - steps[-1].at
                exits_s.append(waited_s - incarnation.saved_since_report_s)
            before = steps[-1].report.step if steps else before
    return Delays(
        launch_s=_median(first_s),
        resize_s=_median(later_s or first_s),
        save_s=_median(told.saves_s),
        exit_s=_median(exits_s),
        release_s=_median(told.releases_s),
    )


def _median(values_s: list[float]) -> float:
    return max(0.0, statistics.median(values_s)) if values_s else 0.0


@dataclass(frozen=True, slots=True)
class SeenTrial:
    """One trial so far. ``curve``: scores by step, in order; more is better, NaN where the metric was not finite.

    ``step_s``: on one atom.
    """

    trial: int
    curve: Mapping[int, float]
    step_s: float
    ending: Literal["finished", "failed"] | None = None

    @property
    def last_step(self) -> int:
        return max(self.curve, default=0)

    @property
    def stride(self) -> int:
        """Steps that a report usually stands for."""
        strides = [b - a for a, b in pairwise((0, *self.curve))]
        return int(statistics.median(strides or [1]))

    @property
    def diverged(self) -> bool:
        """Whether the last metric was not finite."""
        return not math.isfinite(self.curve.get(self.last_step, math.nan))

    def score_from(self, step: int) -> float:
        """Return the score of the first report from ``step`` on; NaN without one."""
        later = (score for reported, score in self.curve.items() if reported >= step)
        return self.curve[step] if step in self.curve else next(later, math.nan)


class TrialCurves:
    """The curves of one search, as they count: percents as shares of 1, losses that fall tenfold by their logarithms.

    Forecasts are as fine as the way from a usual first score: a perplexity that came from 1e6 to 20 is lost in that.
    """

    def __init__(self, seen: Sequence[SeenTrial], *, is_share: bool = False) -> None:
        """``is_share``: the metric is a share, of 1 or of 100."""
        curves = [[y for y in one.curve.values() if math.isfinite(y)] for one in seen]
        scores = [y for one in curves for y in one]
        first = statistics.median(one[0] for one in curves if one)
        best, self._unit, self._is_log = max(scores), 1.0, False
        if best < 0 and first < 10 * min(best, -1.0):
            # A perplexity is at least 1; what has come near that is another loss, which may fall on.
            self._unit, self._is_log = 1.0 if best < -3 else -first, True
        elif is_share and min(scores) >= 0 and 1 < best <= 100:
            self._unit = 100.0
        seen = [replace(t, curve={n: self.counted(y) for n, y in t.curve.items()}) for t in seen]
        self.seen = {one.trial: one for one in seen}
        #: The longest that the script has trained a trial before it ended by itself; None: it has not.
        self.length = max((t.last_step for t in seen if t.ending == "finished"), default=None)
        self.model = foresight_curves.Curves()
        self.model.read({one.trial: list(one.curve.items()) for one in seen})
        self.fits = {trial: known for trial, known in self.model.seen.items() if known.is_fitted}

    def counted(self, score: Any) -> Any:
        """Return a score, or an array of scores, as it counts."""
        return -np.log(-score / self._unit) if self._is_log else score / self._unit

    def score(self, counted: Any) -> Any:
        """Return the score that counts as this."""
        return (-np.exp(np.minimum(700.0, -counted)) if self._is_log else counted) * self._unit


class Future:
    """One way in which the curves may continue, as a workload. Scores are turned back into metrics."""

    space: Mapping[str, Any] = {}
    defaults: Mapping[str, Any] = {}

    def __init__(
        self,
        curves: TrialCurves,
        key: Sequence[int],
        metric: str = "score",
        mode: Literal["max", "min"] = "max",
    ) -> None:
        """``key``: the seed of all that is drawn."""
        self.curves, self._key = curves, key
        self.metric, self.mode = metric, mode

    def curve(
        self, trial: int, hparams: Mapping[str, Any] | None = None, seed: int = 0
    ) -> SimulatedCurve:
        """Return the curve of a trial: continued, or for one not seen yet that of a new configuration.

        It is drawn from the key and the trial alone, so that two questions meet the same curves.
        """
        seen = self.curves.seen
        random = default_rng([*self._key, trial])
        donor, shift = seen.get(trial), 0.0
        if donor is None:
            donor = list(seen.values())[int(random.integers(len(seen)))]
            shift = self._shift(donor, random)
        ending, length = donor.ending or "finished", self.curves.length
        if donor.ending:
            length = donor.last_step
        elif length is not None and length < donor.last_step:
            length = None
        path, sign = _Path(self.curves, donor, shift, random), 1.0 if self.mode == "max" else -1.0
        score = path.score if donor.trial in self.curves.fits else lambda step: math.nan
        return SimulatedCurve(
            lambda step: sign * float(self.curves.score(score(step))),
            lambda step: donor.step_s,
            *(length, ending, donor.stride),
        )

    def _shift(self, donor: SeenTrial, random: Generator) -> float:
        """Return by how much a newcomer's scores differ from its donor's: a part of the way to the nearest other."""
        if donor.trial not in self.curves.fits or donor.diverged:
            return 0.0
        last = donor.last_step
        others = (one.score_from(last) for one in self.curves.seen.values() if one is not donor)
        apart = [abs(score - donor.curve[last]) for score in others if math.isfinite(score)]
        return float(random.uniform(-1.0, 1.0)) * min(filter(None, apart), default=0.0)


class _Path:
    """One curve in one future, made step by step; its shape is drawn at the first step that was not seen."""

    def __init__(
        self, curves: TrialCurves, donor: SeenTrial, shift: float, random: Generator
    ) -> None:
        self._curves, self._donor = curves, donor
        self._bound, self._noise = curves.model.bound, math.sqrt(curves.model.noise_var)
        self._random, self._shift, self._end = random, shift, donor.last_step
        self._known, self._diverged = donor.curve, donor.diverged
        self._drawn: dict[int, float] = {}

    @functools.cached_property
    def _course(self) -> tuple[int, float, float]:
        """The shape of the curve, where it starts, and how high it rises."""
        fit, random = self._curves.fits[self._donor.trial].fit, self._random
        logs = fit[5] + foresight_curves.LIKELY
        up_to = np.cumsum(np.exp(logs - logs.max()))
        shape = int(up_to.searchsorted(random.random() * up_to[-1], side="right"))
        start, height, start_var, height_var, cov, _ = fit[:, shape].tolist()
        of_start = math.sqrt(start_var)
        one, other = random.standard_normal(2).tolist()
        along = cov / of_start if of_start else 0.0
        rest = math.sqrt(max(0.0, height_var - along * along))
        return shape, start + of_start * one, height + along * one + rest * other

    def _smooth(self, step: int) -> float:
        shape, start, height = self._course
        reports = max(1.0, step / self._curves.model.stride)
        place = min(math.log2(reports) * FINE, len(TABLE) - 1.001)
        below = int(place)
        low, high = float(TABLE[below, shape]), float(TABLE[below + 1, shape])
        return start + height * (low + (place - below) * (high - low))

    @functools.cached_property
    def _off(self) -> float:
        """How far the curve was off its shape at the last look; the distance fades as steps double."""
        return float(self._curves.fits[self._donor.trial].level - self._smooth(self._end))

    def score(self, step: int) -> float:
        """Return the score of a step; one that was seen, as it was."""
        known = self._known.get(step)
        if known is not None:
            return min(known + self._shift, self._bound)  # NaN stays NaN in this order alone
        if self._diverged and step > self._end:
            return math.nan
        if step not in self._drawn:
            value = self._smooth(step) + self._shift
            value += 0.0 if self._diverged else self._off * min(1.0, self._end / step)
            self._drawn[step] = value + self._noise * float(self._random.standard_normal())
        return min(self._bound, self._drawn[step])


class Midway(SimExecutor):
    """The machine that the state describes. A trial that trains is as far on its way to a report as time has passed."""

    def __init__(self, state: State, workload: Workload, delays: Delays) -> None:
        slots = state.devices.slots.values()
        devices = [Device(slot.id, slot.id, slot.island) for slot in slots]
        super().__init__(workload, devices, scaling=state.speed.s, delays=delays)
        self._now = state.now
        draining = [slot.id for slot in slots if slot.state is DeviceState.DRAINING]
        self._pool.soil(draining, self._now + delays.release_s)
        if state.best is not None:
            self.kept = state.best.command
        for trial in state.trials.values():
            self._take_over(trial)

    def _take_over(self, trial: TrialRecord) -> None:
        curve = self.workload.curve(trial.id, trial.hparams, self._seed)
        story = self.stories[trial.id] = Story(trial.id, curve)
        story.seq, story.saved = trial.seq, (trial.saved_step,)
        self._best_score = max(self._best_score, trial.best_score)
        if not trial.has_processes:
            return
        atoms = max(1, trial.atoms)  # one that has lost its devices is told to die
        speedup = self._speedup.setdefault(atoms, self._scaling(atoms))
        run = story.run = Run(story, trial.incarnation, trial.devices, self._now, speedup)
        self._pool.occupy(run, self._now)
        if not trial.steps_since_launch:
            up_at = trial.heard_at + self._delays.launch(trial.incarnation, trial.atoms)
            up_at = max(self._now, up_at)
            if trial.up_at is None:
                self._push(up_at, "up", run)
            self._go_on(run, up_at)
            return
        run.step = trial.step
        if trial.state is TrialState.YIELDING and trial.after is not None:
            run.save, run.leave = trial.after.save, True
            self._answer(run)
            return
        report_s = curve.stride * curve.step_time_s(run.step + 1) / speedup
        self._go_on(run, max(trial.heard_at, self._now - report_s))
