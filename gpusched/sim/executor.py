"""``executors.base.Executor`` in virtual time: the whole simulated machine, a heap of what will happen next.

* Time jumps from one happening to the next; what happens at one moment comes in one batch, in the order it was caused.
* A trial trains a step, reports, and stands still until it is acknowledged, as in the live system; the answer is
  "go on" unless ``Yield`` or ``Save`` was executed for it meanwhile.
* The machine is strict: a launch on a device that is in use or not yet clean is an AssertionError here, where a real
  one would run out of memory.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from gpusched.core import speed
from gpusched.core.commands import (
    Command,
    ConfirmRelease,
    KeepBest,
    Kill,
    Launch,
    Save,
    Suggest,
    Yield,
)
from gpusched.core.events import (
    CheckpointSaved,
    DevicesReleased,
    Event,
    Outcome,
    Reported,
    TrialExited,
    TrialUp,
)
from gpusched.core.speed import Scaling
from gpusched.devices.base import Device
from gpusched.executors.base import FOREVER, LiveTrial
from gpusched.protocol import Report, as_metric
from gpusched.sim.physics import Delays, Pool, Run, Story, Workload

Other = Literal["up", "saved", "exit", "release"]
Kind = Literal["report"] | Other


class Stalled(Exception):
    """The search waits, and nothing will ever happen again."""


class SimExecutor:
    """A machine of these devices, or of so many, that trains ``workload``."""

    def __init__(
        self,
        workload: Workload,
        devices: int | Sequence[Device],
        *,
        scaling: Scaling = speed.NAMED["linear"],
        delays: Delays | None = None,
        seed: int = 0,
    ) -> None:
        self.workload = workload
        self.reports = 0
        self.launches = 0
        #: (at, metric) each time a report was better than all before it.
        self.improvements: list[tuple[float, float]] = []
        #: The content of ``best/``.
        self.kept: KeepBest | None = None
        self._delays = delays or Delays()
        self._seed = seed
        self._sign = 1.0 if workload.mode == "max" else -1.0
        self._best_score = -math.inf
        self._scaling = scaling
        self._speedup: dict[int, float] = {}
        self._now = 0.0
        self._heap: list[tuple[float, int, Kind, Any]] = []
        self._count = 0
        #: Of each trial that was ever launched.
        self.stories: dict[int, Story] = {}
        if isinstance(devices, int):
            devices = [Device(f"sim:{n}", f"simulated atom {n}") for n in range(devices)]
        self._pool = Pool(devices, self._delays.release_s)

    @property
    def device_s(self) -> float:
        """Device-seconds used by launches that are over."""
        return self._pool.used_s

    # ------------------------------------------------------------ the seam

    def now(self) -> float:
        return self._now

    def inventory(self) -> tuple[Device, ...]:
        return self._pool.devices

    def execute(self, command: Command) -> None:
        match command:
            case Save(hold=True):
                pass  # simulated memory keeps nothing: a model that is not saved is lost
            case Save() | Yield():
                run = self._run(command.trial, command.incarnation)
                if run is not None:
                    run.save = run.save or isinstance(command, Save) or command.save
                    run.leave = run.leave or isinstance(command, Yield)
            case Launch():
                self._launch(command)
            case Kill():
                run = self._run(command.trial, command.incarnation)
                if run is not None:
                    self._cut(run, "killed", None)
            case ConfirmRelease():
                at = max(self._now, self._pool.clean_at(command.devices))
                self._push(at, "release", command.devices)
            case KeepBest():
                saved = self.stories[command.trial].saved
                is_there = command == self.kept or command.step in saved
                assert is_there, f"{command}: only {saved} are saved"
                self.kept = command
            case Suggest():
                pass  # a sampler is not of the machine

    def acknowledge(self, report: Reported) -> None:
        made = report.report
        run = self._run(report.trial, made.incarnation)
        if run is not None and run.waiting and run.story.seq == made.seq:
            self._answer(run)

    def poll(self, until: float) -> Sequence[Event]:
        heap = self._heap
        events: list[Event] = []
        while heap:
            at = heap[0][0]
            if at > until or (events and at > self._now):
                break
            _, _, kind, what = heapq.heappop(heap)
            if at > self._now:
                self._now = at
            if kind == "report":
                event = self._step_ended(what)
                if event is not None:
                    events.append(event)
            else:
                events += self._happen(kind, what)
        if not events:
            if until == FOREVER:
                raise Stalled("no trial trains and no timer is set, but the search is not over")
            self._now = max(self._now, until)
        return events

    def reconcile(self, live: Sequence[LiveTrial]) -> Sequence[Event]:
        """Return nothing: the driver has heard of all that happened here."""
        return ()

    def close(self) -> None:
        """Do nothing: no process or file is held."""

    # ------------------------------------------------------------ trials

    def _run(self, trial: int, incarnation: int) -> Run | None:
        """Return the incarnation, unless its end is decided."""
        story = self.stories.get(trial)
        run = story.run if story is not None else None
        if run is None or run.leaving or run.incarnation != incarnation:
            return None
        return run

    def _launch(self, command: Launch) -> None:
        story = self.stories.get(command.trial)
        if story is None:
            curve = self.workload.curve(command.trial, command.hparams, self._seed)
            story = self.stories[command.trial] = Story(command.trial, curve)
        if story.run is not None and story.run.incarnation >= command.incarnation:
            return
        atoms = len(command.devices)
        speedup = self._speedup.setdefault(atoms, self._scaling(atoms))
        run = Run(story, command.incarnation, command.devices, self._now, speedup)
        self._pool.occupy(run, self._now)
        story.run = run
        self.launches += 1
        up_at = self._now + self._delays.launch(command.incarnation, atoms)
        self._push(up_at, "up", run)
        self._go_on(run, up_at)

    def _go_on(self, run: Run, since: float) -> None:
        """Train the next step, unless that was the last."""
        curve = run.story.curve
        run.waiting = False
        if curve.length is not None and run.step >= curve.length:
            self._leave(run, curve.ending, since)
            return
        run.step_time_s = curve.step_time_s(run.step + 1) / run.speedup
        self._push(since + curve.stride_at(run.step) * run.step_time_s, "report", run)

    def _step_ended(self, run: Run) -> Reported | None:
        """Return the report of a step, unless something happened instead."""
        if run.leaving:
            return None
        run.step = step = run.step + run.story.curve.stride_at(run.step)
        story, now, name = run.story, self._now, self.workload.metric
        story.seq += 1
        metrics = {name: as_metric(story.curve.metric(step))}
        report = Report(run.incarnation, story.seq, step, run.step_time_s, metrics)
        metric = report.metric(name)
        if metric is not None and metric * self._sign > self._best_score:
            self._best_score = metric * self._sign
            self.improvements.append((now, metric))
        run.waiting = True
        self.reports += 1
        return Reported(at=now, trial=story.trial, report=report, metric=metric)

    def _answer(self, run: Run) -> None:
        """Continue, save, or leave, as the report is acknowledged."""
        save, run.save = run.save, False
        if not save and not run.leave:
            self._go_on(run, self._now)
            return
        ready_at = self._now + (self._delays.save_s if save else 0.0)
        if save:
            self._push(ready_at, "saved", (run, run.step))
        if run.leave:
            self._leave(run, "yielded", ready_at, saved=save)
        else:
            self._go_on(run, ready_at)

    # ------------------------------------------------------------ ends

    def _leave(self, run: Run, outcome: Outcome, at: float, *, saved: bool = False) -> None:
        """Have the run leave by itself, when it is done at ``at``."""
        run.leaving, run.waiting = True, False
        saved_step = run.step if saved else None
        error = "simulated: its record ends so" if outcome == "failed" else None
        self._push(at + self._delays.exit_s, "exit", (run, outcome, saved_step, error))

    def _cut(self, run: Run, outcome: Outcome, error: str | None, after_s: float = 0.0) -> None:
        """Have the run end by force or by accident."""
        run.leaving, run.waiting, run.cut = True, False, True
        exit_at = self._now + after_s + self._delays.exit_s
        self._push(exit_at, "exit", (run, outcome, None, error))

    def _exited(
        self, run: Run, outcome: Outcome, saved_step: int | None, error: str | None
    ) -> TrialExited:
        self._pool.vacate(run, self._now)
        return TrialExited(
            at=self._now,
            trial=run.story.trial,
            incarnation=run.incarnation,
            outcome=outcome,
            saved_step=saved_step,
            error=error,
        )

    # ------------------------------------------------------------ what happens

    def _push(self, at: float, kind: Kind, what: Any) -> None:
        self._count += 1
        heapq.heappush(self._heap, (at, self._count, kind, what))

    def _happen(self, kind: Other, what: Any) -> Iterator[Event]:
        now = self._now
        match kind:
            case "up":
                if not what.cut:
                    yield TrialUp(at=now, trial=what.story.trial, incarnation=what.incarnation)
            case "saved":
                yield from self._saved(*what)
            case "exit":
                yield self._exited(*what)
            case "release":
                yield from self._released(what)

    def _saved(self, run: Run, step: int) -> Iterator[Event]:
        """Commit a checkpoint, unless its writer was cut off."""
        if run.cut:
            return
        run.story.save(step)
        yield CheckpointSaved(
            at=self._now,
            trial=run.story.trial,
            incarnation=run.incarnation,
            step=step,
            save_s=self._delays.save_s,
        )

    def _released(self, names: tuple[str, ...]) -> Iterator[Event]:
        if free := tuple(name for name in names if self._pool.is_clean(name, self._now)):
            yield DevicesReleased(at=self._now, devices=free)
