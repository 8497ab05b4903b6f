"""Searches drawn at random and played through the daemon's own parts, with a fake disk and a simulated machine.

Drawn are the policy, the sampler (a sequence, or one that learns), faults of trials and devices, wishes, a disk that
fills up and has room again, a journal that cannot be written, devices that are missing at a resume and back at
another, time without a daemon, and going on after the end by each limit. A daemon dies between two turns, and the next
one must know exactly what it knew; or at any instant of an effect, and nothing is lost or applied twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import msgspec

from gpusched.core.events import (
    CheckpointSaved,
    Event,
    LimitsMoved,
    TrialExited,
    TrialUp,
    UserAsked,
)
from gpusched.daemon import resuming
from gpusched.daemon.storage import Storage
from gpusched.driver.assemble import Assembled
from gpusched.driver.loop import Driver, replay
from gpusched.errors import InputError
from gpusched.folder.files import Room
from gpusched.folder.paths import ExperimentPaths
from gpusched.journal.log import DiskFull, Journal
from gpusched.sim.physics import Delays
from gpusched.sim.setup import recipe
from gpusched.sim.study import start
from tests.crashes import Daemons, Failpoints, FragileExecutor
from tests.driver.test_crashes import SAMPLER
from tests.faults import Faults, FaultySetup, Incident
from tests.helpers import difference, snapshot
from tests.policies.contract import VARIANTS

GIB = 1 << 30
LOW, CLEAR = Room(GIB // 4, GIB // 2), Room(50 * GIB, GIB // 2)
TWICE = (TrialUp, CheckpointSaved, TrialExited)


def drawn(seed: int, folder: Path) -> FaultySetup:
    """The situation of one search."""
    rng = Random(f"setup {seed}")
    policy = rng.choice(sorted(VARIANTS))
    atoms = rng.randint(1, 5)
    incidents = []
    for _ in range(rng.randint(0, 2)):
        device, at = f"sim:{rng.randrange(atoms)}", rng.uniform(0.2, 1.5)
        incidents.append(Incident(at=at, kind="quarantine", device=device))
        incidents.append(Incident(at=at + 0.5, kind="readmit", device=device))
    learns: dict[str, Any] = {}
    if rng.random() < 0.4:
        (folder / "sampler.py").write_text(SAMPLER)
        learns = {"sampler": f"{folder}/sampler.py:Near", "sampler_options": {"startup": 2}}

    def up_to(most: float) -> float:
        return rng.choice([0.0, most / 2, most])

    return FaultySetup(
        policy=policy,
        options=rng.choice(VARIANTS[policy]),
        atoms=atoms,
        deadline_s=rng.choice([1.0, 2.0]),
        scaling=rng.choice(["linear", "sqrt", "none"]),
        sizes=rng.choice([(), (), (1, 2), (1, 2, 4)]),
        max_atoms=rng.choice([None, None, 2]),
        delays=Delays(
            launch_s=up_to(0.1),
            resize_s=up_to(0.1),
            save_s=up_to(0.02),
            exit_s=up_to(0.03),
            release_s=up_to(0.1),
        ),
        faults=Faults(
            lost=up_to(0.05),
            crash=up_to(0.03),
            hang=up_to(0.002),
            quarantine=up_to(0.05),
            readmit_s=0.4,
        ),
        incidents=tuple(incidents),
        max_trials=rng.choice([None, None, 6, 12]),
        target=rng.choice([None, None, None, 0.8]),
        assumed=rng.choice(["auto", None]),
        seed=seed,
        **learns,
    )


class Machine(FragileExecutor):
    """The simulated machine as a daemon has it; every second trial that fails has run out of memory.

    News of trials may come twice, and late.
    """

    rng: Random
    told: list[Event]

    def poll(self, until: float) -> Sequence[Event]:
        events = list(super().poll(until))
        self.told += [event for event in events if isinstance(event, TWICE)]
        if events and self.told and self.rng.random() < 0.1:
            again = self.rng.choice(self.told[-20:])
            events.append(msgspec.structs.replace(again, at=self.now()))
        return events


class Search(Daemons):
    """One search, served by one daemon after the other."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.rng = Random(f"life {seed}")
        deaths = self.rng.choice([0, 0, 1, 2, 4])
        points = Failpoints({self.rng.randint(1, 300) for _ in range(deaths)})
        super().__init__(drawn(seed, folder), folder / "journal.db", points)
        self.room = CLEAR
        self.missing: set[str] = set()
        #: What the last daemon knew when it died between two turns.
        self.known: Any = None
        self.reopened, self.asked = 0, 0
        self.disk = ExperimentPaths(folder / "search")

    # ------------------------------------------------------------ daemons

    def _serve(self, journal: Journal) -> None:
        self.experiment = self.fresh()
        count = replay(self.experiment, journal.entries())
        if self.known is not None:
            now = snapshot(self.experiment)
            assert now == self.known, f"another state: {difference(self.known, now)}"
        self.known = None
        executor = Machine(self.machine, self.points, self.facts)
        executor.rng, executor.told = self.rng, []
        storage = Storage(self.disk)
        storage._room, storage._beside = lambda _: self.room, lambda work: work()
        driver = self._driver(journal, executor)
        assembled = Assembled(self.experiment, recipe(self.setup), self._paths())
        if count == 0:
            start(driver, self.machine)
        else:
            self._resume(driver, assembled)
        self._live(driver, storage, journal)

    def _paths(self) -> Any:
        """The folder of the search, of which only the newest checkpoints are asked for."""

        def trial(number: int) -> Any:
            story = self.machine.stories.get(number)
            newest = story.saved_step if story is not None else 0
            return SimpleNamespace(newest_checkpoint=lambda: newest)

        return SimpleNamespace(root=Path("search"), trial=trial)

    def _resume(self, driver: Driver, assembled: Assembled) -> None:
        state, now, was_missing = self.experiment.state, self.machine.now(), self.missing
        names = [device.id for device in self.machine.inventory()]
        self.missing = {name for name in names if self.rng.random() < 0.15}
        for name in self.missing:
            self.machine._broken.add(name)
        for name, slot in state.devices.slots.items():
            if slot.reason and name not in self.missing:  # whoever keeps it out lets it in again
                self.machine._broken.add(name)
                self.machine._push(now + 0.05, "readmit", name)
            elif name in was_missing - self.missing:
                self.machine._broken.discard(name)
        there = [one for one in self.machine.inventory() if one.id not in self.missing]
        unusable = resuming.unusable(state, there)
        driver.resume(self.epoch, unusable=unusable)
        wish = self.rng.choice([{}, {}, {"add_s": 0.5}, {"max_trials": None, "add_s": 0.5}])
        if state.finished:
            wish = {**wish, "add_s": 1.0, "target": None}
            try:
                driver.reopen(resuming.reopened(assembled, wish))
            except InputError:
                return  # it died at its very end, and has nothing left
            self.reopened += 1
        elif wish and state.stopping is None:
            driver.handle([resuming.changed(assembled, wish, now)])

    def _live(self, driver: Driver, storage: Storage, journal: Journal) -> None:
        """Serve until the search is over for good, or the daemon dies: then raise Crash."""
        state = self.experiment.state
        while not (state.finished and driver.stalled is None):
            now = self.machine.now()
            driver.turn(min(now + self.rng.choice([0.01, 0.05, 0.2]), max(now, storage.next_at)))
            change = storage.look(self.machine.now(), state)
            storage.next_at = min(storage.next_at, self.machine.now() + 0.1)  # a search takes 2 s
            events = [change] if change is not None else []
            driver.handle([*events, *self._asked()])
            self._outside(journal)
            if self.rng.random() < 0.03 and driver.stalled is None:
                self._die(journal)
        if self.reopened < 2 and self.rng.random() < 0.5:
            assembled = Assembled(self.experiment, recipe(self.setup), self._paths())
            wish = {"add_s": 1.0, "target": None}
            try:
                resuming.require_reopenable(assembled, wish)
            except InputError:
                return
            self._die(journal)

    def _die(self, journal: Journal) -> None:
        """Die between two turns. The machine runs on for a while."""
        try:
            journal.commit()
        except DiskFull:
            return
        self.known = snapshot(self.experiment)
        if self.machine._heap:
            for event in self.machine.poll(self.machine.now() + self.rng.choice([0.0, 0.1, 1.0])):
                self.facts.note(event)
        self.points.armed.add(self.points.count + 1)
        self.points.pass_by("between two turns")

    # ------------------------------------------------------------ people, and the disk

    def _asked(self) -> list[Event]:
        if self.rng.random() > 0.04 or self.asked > 12:
            return []
        self.asked += 1
        state, now = self.experiment.state, self.machine.now()
        trial = self.rng.randrange(max(1, len(state.trials)))
        verb: Any = self.rng.choice(["pause", "unpause", "unpause", "stop_trial"])
        asked = UserAsked(at=now, verb=verb, trial=trial)
        ends: Any = self.rng.choice(["stop", "cancel", "kill"])
        by_s = self.rng.choice([-0.5, 0.3])
        return [
            self.rng.choice(
                [
                    *(asked, asked, asked),
                    UserAsked(verb="try", at=now, hparams=dict(self.workload_hparams())),
                    LimitsMoved(at=now, deadline_s=state.rules.deadline_s + by_s),
                    *([UserAsked(at=now, verb=ends)] * (now > 0.8)),
                ]
            )
        ]

    def workload_hparams(self) -> Any:
        found = recipe(self.setup).configurations().sample(100 + self.asked)
        assert found is not None
        return found

    def _outside(self, journal: Journal) -> None:
        """The disk fills up, or has room again; now and then the journal's own disk is full."""
        if self.rng.random() < 0.04:
            self.room = self.rng.choice([LOW, CLEAR, CLEAR])
        if self.rng.random() < 0.04:
            pages = self.rng.choice([1, 1_000_000, 1_000_000])
            journal.connection.execute(f"PRAGMA max_page_count={pages}")


def play(seed: int, folder: Path) -> Search:
    """Play one search to its end and check it."""
    search = Search(seed, folder)
    try:
        search.run()
        search.machine.poll(search.machine.now() + 5.0)
        search.check()
    except BaseException as error:
        error.add_note(f"seed {seed}: {replace(search.setup, incidents=())}")
        raise
    return search
