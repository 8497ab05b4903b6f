"""Simulated experiments whose daemon dies at a chosen instant and is resumed: for tests of the driver and the journal.

``Fragile*`` stand between the driver and the real parts and count every step of an effect; at the armed one the daemon
"dies": what was not committed is gone, what was polled and not journaled is lost, and the simulated machine goes on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from gpusched import samplers
from gpusched.core.commands import Command, Suggest
from gpusched.core.events import Event, LimitsMoved, QuarantineChanged, Reported
from gpusched.core.experiment import Experiment
from gpusched.driver.loop import Driver, replay
from gpusched.driver.suggester import Answer, ChildSuggester, Process
from gpusched.executors.base import LiveTrial
from gpusched.journal.log import Journal
from gpusched.recipe.recipe import Recipe
from gpusched.sim.executor import SimExecutor
from gpusched.sim.setup import Setup, experiment, recipe
from gpusched.sim.study import start
from gpusched.space.space import parse_space
from tests.helpers import replayed, rungs_of, snapshot
from tests.journal_samples import read


class Crash(Exception):
    """The daemon is gone."""


@dataclass
class Failpoints:
    """Counts instants; dies at each of the armed ones."""

    armed: set[int] = field(default_factory=set)
    count: int = 0
    last: str = ""

    def pass_by(self, name: str) -> None:
        self.count += 1
        self.last = name
        if self.count in self.armed:
            raise Crash(f"at instant {self.count}: {name}")


class FragileJournal:
    def __init__(self, journal: Journal, points: Failpoints) -> None:
        self._journal = journal
        self._points = points

    def append(self, event: Event, commands: Sequence[Command]) -> None:
        self._points.pass_by("before append")
        self._journal.append(event, commands)

    def commit(self) -> None:
        self._points.pass_by("before commit")
        self._journal.commit()
        self._points.pass_by("after commit")


@dataclass
class Facts:
    """Facts that a new daemon finds out beside the trials: which devices are out of order."""

    quarantined: dict[str, QuarantineChanged] = field(default_factory=dict)

    def note(self, event: Event) -> None:
        if isinstance(event, QuarantineChanged) and event.reason:
            self.quarantined[event.device] = event
        elif isinstance(event, QuarantineChanged):
            self.quarantined.pop(event.device, None)


class FragileExecutor:
    def __init__(self, executor: SimExecutor, points: Failpoints, facts: Facts) -> None:
        self._executor = executor
        self._points = points
        self._facts = facts
        self.now = executor.now
        self.inventory = executor.inventory
        self.close = executor.close

    def execute(self, command: Command) -> None:
        name = type(command).__name__
        self._points.pass_by(f"before {name}")
        self._executor.execute(command)
        self._points.pass_by(f"after {name}")

    def acknowledge(self, report: Reported) -> None:
        self._points.pass_by("before answer")
        self._executor.acknowledge(report)
        self._points.pass_by("after answer")

    def poll(self, until: float) -> Sequence[Event]:
        events = self._executor.poll(until)
        for event in events:
            self._facts.note(event)
        if events:
            self._points.pass_by("after poll")
        return events

    def reconcile(self, live: Sequence[LiveTrial]) -> Sequence[Event]:
        broken = [replace(event, at=self.now()) for event in self._facts.quarantined.values()]
        found = self._executor.reconcile(live)
        self._points.pass_by("after reconcile")
        return [*broken, *found]


class InProcess(Process):
    """The child process of a sampler, in this one: deaths are cheap, and the sampler is the real one."""

    def __init__(self, of: Recipe) -> None:
        super().__init__("")
        kind = samplers.load(of.sampler_name)
        options = {k: value for k, value in of.sampler_options.items() if k != "startup"}
        self._sampler = kind(parse_space(of.space), **options)
        self._answer: Answer | None = None

    def ask(self, question: Mapping[str, object]) -> None:
        told = json.loads(json.dumps(question))
        self._answer = samplers.answer(self._sampler, told)

    def answer(self) -> Answer | None:
        return self._answer


class FragileSuggester:
    def __init__(self, search: Experiment, of: Recipe, points: Failpoints) -> None:
        self._points = points
        self._suggester = ChildSuggester(of, search.state.trials, is_patient=True)
        self._suggester._process = InProcess(of)

    def execute(self, command: Suggest) -> None:
        self._points.pass_by("before Suggest")
        self._suggester.execute(command)
        self._points.pass_by("after Suggest")

    def poll(self, now: float) -> Sequence[Event]:
        events = self._suggester.poll(now)
        if events:
            self._points.pass_by("after Suggested")
        return events

    def close(self) -> None:
        pass


def check_journal(path: Path, search: Experiment, setup: Setup) -> None:
    again = replayed(experiment(recipe(setup)), read(path))
    assert snapshot(again) == snapshot(search)


class Daemons:
    """One experiment on one simulated machine, served by one daemon after the other."""

    def __init__(
        self, setup: Setup, path: Path, points: Failpoints, *, reopenings: int = 0
    ) -> None:
        """``reopenings``: how often a person has it go on after its end."""
        self.setup = setup
        self.reopenings = reopenings
        self.path = path
        self.points = points
        self.machine = setup.machine()
        self.facts = Facts()
        self.epoch = 1
        self.experiment = self.fresh()
        Journal.create(path, {}).close()

    def fresh(self) -> Experiment:
        return experiment(recipe(self.setup))

    def run(self) -> None:
        """Daemon after daemon, until the experiment is over."""
        for self.epoch in range(1, 1000):
            journal = Journal.open(self.path)
            try:
                self._serve(journal)
                journal.commit()
                return
            except Crash:
                pass
            finally:
                journal.abandon()
        raise AssertionError("a thousand daemons")

    def _serve(self, journal: Journal) -> None:
        self.experiment = self.fresh()
        entries = [*journal.entries()]
        reopened = sum(type(entry.event) is LimitsMoved for entry in entries)
        known = replay(self.experiment, iter(entries))
        driver = self._driver(journal, FragileExecutor(self.machine, self.points, self.facts))
        if known == 0:
            start(driver, self.machine)
        else:
            driver.resume(self.epoch)
        driver.run()
        for _ in range(reopened, self.reopenings):
            driver.reopen(self._reopened())
            driver.run()

    def _driver(self, journal: Journal, executor: FragileExecutor) -> Driver:
        of = recipe(self.setup)
        made = FragileSuggester(self.experiment, of, self.points) if of.has_memory else None
        fragile = FragileJournal(journal, self.points)
        return Driver(self.experiment, executor, fragile, suggester=made, check=True)

    def _reopened(self) -> LimitsMoved:
        now, saved = self.machine.now(), self.machine.stories.items()
        return LimitsMoved(
            at=now,
            deadline_s=max(now, self.experiment.state.rules.deadline_s) + self.setup.deadline_s,
            max_trials=self.experiment.state.rules.max_trials,
            checkpoints={str(n): story.saved_step for n, story in saved if story.saved_step},
        )

    # ------------------------------------------------------------ what must be true afterwards

    def check(self) -> None:
        """Nothing acknowledged is lost, nothing is applied twice, and the rungs hold what was reported."""
        state = self.experiment.state
        assert state.finished
        self.experiment.check()
        for trial in state.trials.values():
            assert trial.is_final
            story = self.machine.stories.get(trial.id)
            reported = story.seq if story is not None else 0
            assert trial.seq == len(trial.curve), f"trial {trial.id}: applied twice, or lost"
            assert trial.seq == reported, f"trial {trial.id}: {trial.seq} of {reported} reports"
        self._check_rungs()
        check_journal(self.path, self.experiment, self.setup)
        if state.best is not None:
            kept = self.machine.kept
            assert (kept.trial, kept.step) == (state.best.trial, state.best.step)

    def _check_rungs(self) -> None:
        """The same facts, the same scores, as without any crash."""
        state = self.experiment.state
        for rung in rungs_of(self.experiment.policy):
            for trial in rung._entries:
                curve = self.machine.stories[trial].curve
                assert rung.score(trial) == curve.metric(rung.milestone) * state.rules.sign
