"""Random searches on scripted GPUs in virtual time, each from a seed: the real core, driver loop and ``CudaDevices``.

A policy walks trials through sizes, with pauses (``walk.py``). Trials fail by themselves or by their GPUs; a daemon
that dies is followed by one that replays the events, finds the devices again, and reconciles. Trials train in the
simulated executor; their contexts are the scripted driver's. What is told of the devices is compared with the truth,
which only the world knows. After every event:

* no launch on a device that was not told to be free since its last trial, that is not clean, is known to be ill, or
  does not answer;
* every device is FREE, HELD by a live trial, DRAINING for no longer than the limit, or QUARANTINED with a reason;
* no stall: no device that is clean is kept waiting, and none stays FREE while a trial could begin and none trains.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from gpusched.core.allocation import DeviceState
from gpusched.core.commands import Command, ConfirmRelease, Kill, Launch
from gpusched.core.events import (
    DaemonResumed,
    DevicesJoined,
    DevicesReleased,
    Event,
    QuarantineChanged,
    Reported,
    TrialExited,
)
from gpusched.daemon.resuming import unusable
from gpusched.devices.base import Device, DeviceEvent, DeviceRemark
from gpusched.devices.cuda import CudaDevices
from gpusched.devices.helper import RETRY_S
from gpusched.devices.unit import STRANGER_AWAY_S
from gpusched.driver.loop import Driver, replay
from gpusched.errors import DeviceError
from gpusched.executors.base import LiveTrial
from gpusched.executors.live import as_event
from gpusched.journal.rows import Entry
from gpusched.sim.physics import Delays, Run
from gpusched.sim.setup import experiment, recipe
from tests.devices.box import scripted
from tests.devices.fake_nvml import GIB
from tests.devices.schedule_world import SICK_S, World
from tests.faults import Faults, FaultyExecutor, FaultySetup

WALK = Path(__file__).with_name("walk.py")
DEADLINE_S = 50.0
LIMIT_S = 60.0
"""The executor's: a release that takes longer quarantines the device."""
STEP_S = 0.1
DEATH = 0.04
"""Chance of the daemon's death in each of its turns."""
SEEN_WITHIN_S = 2.5
"""A stranger, or a loss, must be noticed within this while the driver answers, within ``SICK_S`` while it does not."""
RELEASED_WITHIN_S = 3.0
"""A device that drains and is clean must be free within this."""
BACK_WITHIN_S = 9.0 + STRANGER_AWAY_S
"""A device whose reason has passed must be in use again within this (clean in a row, and readings between)."""
HANGS_S = 7.0
"""A driver that hangs must be noticed within this."""
HELD, FREE = DeviceState.HELD, DeviceState.FREE
DRAINING, QUARANTINED = DeviceState.DRAINING, DeviceState.QUARANTINED


class Seats:
    """In the place of the simulated devices: who sits on which GPU, for ``SimExecutor``."""

    def __init__(self, schedule: Schedule, devices: tuple[Device, ...]) -> None:
        self.devices = devices
        self.on: dict[str, Run] = {}
        #: Processes of each launch, and of those that live.
        self.begun: dict[Run, list[int]] = {}
        self.live: dict[Run, list[int]] = {}
        self._schedule = schedule

    def occupy(self, run: Run, now: float) -> None:
        schedule = self._schedule
        pids = self.begun[run] = self.live[run] = []
        for name in run.devices:
            assert name not in self.on, f"{run}: {name} is in use by {self.on[name]}"
            schedule.check_launch(name)
            self.on[name] = run
        schedule.devices.take(run.devices)
        schedule.counts["launches"] += 1
        for gpu in map(schedule.gpu_of, run.devices):
            pids.append(schedule.new_pid())
            size = schedule.rng.choice([0.3, 1, 5, 7]) * GIB
            context = schedule.driver.start(gpu, pids[-1], int(size))
            context.since = schedule.now + schedule.rng.random()

    def vacate(self, run: Run, now: float) -> None:
        """A trial's processes are gone, and open no context any more; the driver cleans up at its own pace."""
        schedule = self._schedule
        for name in run.devices:
            del self.on[name]
            gpu = schedule.gpu_of(name)
            gpu.contexts = [c for c in gpu.contexts if c.since <= schedule.now]
        for pid in self.live.pop(run):
            listed, process = schedule.lag(), schedule.driver.table[pid]
            # Stuck in the kernel: alive as far as anybody can see. On a share it would be taken for its neighbour's.
            if schedule.rng.random() < 0.1 and schedule.shares == 1:
                process.ends = schedule.now + min(listed, 1e6)
            schedule.driver.end(pid, listed, schedule.lag())
            process.ends = max(process.ends, schedule.now)


class Trials(FaultyExecutor):
    """The simulated trials, on seats; a GPU that is lost takes them along."""

    def __init__(self, setup: FaultySetup, seats: Seats) -> None:
        given = {"delays": setup.delays, "faults": setup.faults, "seed": setup.seed}
        super().__init__(setup.load(), seats.devices, **given)
        self._pool = seats

    @property
    def next_at(self) -> float:
        return self._heap[0][0] if self._heap else float("inf")


class Executor:
    """``executors.base.Executor``: simulated trials on scripted GPUs that the live executor's parts look after."""

    def __init__(self, schedule: Schedule, inventory: tuple[Device, ...]) -> None:
        self.seats = Seats(schedule, inventory)
        self.sim = Trials(schedule.setup, self.seats)
        self.now = schedule.clock.now
        self._schedule = schedule
        self._events: list[Event] = []
        self._world_at = 0.0

    def __getattr__(self, name: str) -> Any:
        """Pass on what concerns trials alone."""
        return getattr(self.sim, name)

    def emit(self, event: DeviceEvent) -> None:
        if not isinstance(event, DeviceRemark):
            self._events.append(as_event(event, self.now()))

    def execute(self, command: Command) -> None:
        if isinstance(command, ConfirmRelease):
            self._schedule.devices.confirm_release(command.devices, LIMIT_S)
        else:
            self.sim.execute(command)

    def reconcile(self, live: Sequence[LiveTrial]) -> Sequence[Event]:
        """As the live executor: adopt what lives, tell of what has ended, and let go of all that no trial has."""
        devices = self._schedule.devices
        for one in live:
            devices.take(one.devices)
        left = {one.trial: one.devices for one in live}
        for event in self.sim.reconcile(live):
            if isinstance(event, TrialExited):
                devices.drain(left.pop(event.trial))
            self._events.append(event)
        used = {name for names in left.values() for name in names}
        devices.drain([one.id for one in self.seats.devices if one.id not in used])
        return self._take_events()

    def poll(self, until: float) -> Sequence[Event]:
        while not self._events and self.now() < until:
            for event in self._live(until):
                self._told(event)
        return self._take_events()

    def live_on(self, seconds: float) -> None:
        """Let time pass without a daemon: what happens is heard by nobody."""
        until = self.now() + seconds
        while self.now() < until or self.sim.next_at <= until:
            self._live(until, is_heard=False)
        self._events.clear()

    def _live(self, until: float, *, is_heard: bool = True) -> Sequence[Event]:
        """Let world and trials live up to the next thing that happens, or to ``until``."""
        self._schedule.clock.go_to(min(self._world_at, self.sim.next_at, until))
        if self.now() >= self._world_at:
            self._world_at = self.now() + STEP_S
            self._schedule.happen(is_heard=is_heard)
        return self.sim.poll(self.now())

    def _take_events(self) -> Sequence[Event]:
        events = list(self._events)
        self._events.clear()
        return events

    def _told(self, event: Event) -> None:
        """As the live executor ends an incarnation."""
        if isinstance(event, TrialExited):
            self._schedule.devices.drain(self.sim.stories[event.trial].run.devices)
        self._events.append(event)


class Schedule(World):
    """One search, from its seed. ``shares``: atoms a GPU."""

    executor: Executor | None = None

    def __init__(self, seed: int, folder: Path, shares: int = 1) -> None:
        super().__init__(seed, shares)
        self.folder = folder
        rng = random.Random(f"search {seed}")
        self.setup = FaultySetup(
            policy=f"{WALK}:Walk",
            options={"R": 400, "most": 4 if shares == 1 else 1, "seed": seed + 1},
            workload="synthetic:0.4",
            deadline_s=DEADLINE_S,
            seed=seed,
            max_trials=rng.choice([1, 2, 6]),
            max_failures=1000,
            delays=Delays(launch_s=rng.uniform(0, 0.3), save_s=0.05, exit_s=rng.uniform(0, 0.3)),
            faults=Faults(crash=rng.choice([0.0, 0.01]), lost=rng.choice([0.0, 0.05])),
        )
        self.entries: list[Entry] = []
        self.doomed: set[Run] = set()
        #: Devices that were told to be free since their last trial.
        self.proven: set[str] = set()
        self.sizes: dict[int, int] = {}
        self.launched_at: dict[str, float] = {}
        self.drained_at: dict[str, float] = {}
        self.clean_since: dict[str, float] = {}

    # ------------------------------------------------------------ the story

    def run(self) -> Counter[str]:
        with scripted(self.driver, self.folder):
            # (By memory alone a stranger that was there first cannot be told from what an idle driver takes.)
            if self.pids and self.rng.random() < 0.2:
                self._stranger(self.rng.choice(self.driver.gpus))
            inventory = self._find()
            try:
                self._search(inventory)
            finally:
                self.devices.close()
        return self.counts

    def _find(self, known: Sequence[str] = ()) -> tuple[Device, ...]:
        """Open the devices; while none can be used, somebody mends them and tries again."""
        while True:
            try:
                absent = self.folder / "search"  # what a GPU had in use at first is not kept
                self.devices = CudaDevices(
                    experiment=absent, known=known, atoms_per_gpu=self.shares
                )
                return self.devices.open(self)
            except DeviceError:
                gpus = self.driver.gpus
                assert any(self.dirty(gpu) or self.ill(gpu) or self.sick(gpu) for gpu in gpus)
                self.devices.close()
                self.heal()
                self.clock.advance(10.0)

    def _search(self, inventory: tuple[Device, ...]) -> None:
        self.experiment = experiment(recipe(self.setup))
        self.executor = Executor(self, inventory)
        self.loop = Driver(self.experiment, self.executor, check=True, observer=self._observe)
        bad = {one.id: one.why_not for one in inventory if not one.usable}
        names = tuple(one.id for one in inventory)
        self.proven = set(names) - set(bad)
        joined = DevicesJoined(
            at=self.now,
            devices=names,
            islands={one.id: one.island for one in inventory},
            unusable=bad,
        )
        self.loop.handle([joined])
        while not self.experiment.state.finished:
            self.loop.turn(self.now + 1.0)
            self._check_devices()
            if not self.experiment.state.finished and self.rng.random() < DEATH:
                self._die()
                self._resume(names)
        while self.experiment.state.devices.draining:
            self.loop.turn(self.now + 1.0)
            self._check_devices()
        assert not self.executor.seats.on, "trials are left"

    def _die(self) -> None:
        self.devices.close()
        self.counts["daemons"] += 1
        self.executor.live_on(self.rng.choice([0.0, 0.3, 3.0]))

    def _resume(self, names: Sequence[str]) -> None:
        """As a daemon that takes over."""
        self.experiment = experiment(recipe(self.setup))
        replay(self.experiment, self.entries)
        inventory = self._find(names)
        self.executor.live_on(0.0)  # the trials did while devices were opened
        for slot in self.experiment.state.devices.slots.values():
            if slot.reason:
                self.devices.keep_out(slot.id, slot.reason)
        bad = unusable(self.experiment.state, inventory)
        self.drained_at.clear()
        self.clean_since.clear()
        self.loop = Driver(self.experiment, self.executor, check=True, observer=self._observe)
        self.loop.resume(self.counts["daemons"] + 1, unusable=bad)

    def happen(self, *, is_heard: bool) -> None:
        """Ten times a second: the world goes its way, GPUs that are lost take their trials along, people ask."""
        executor, is_over = self.executor, self.experiment.state.finished
        if not is_over:
            self.something_happens()
        for run in {*executor.seats.on.values()} - self.doomed:
            if any(map(self.has_lost, run.devices)) and not run.leaving:
                self.doomed.add(run)
                if self.rng.random() < 0.8:
                    executor.sim._cut(run, "lost", "its GPU is lost", self.rng.uniform(0, 0.3))
                    self.counts["lost by its GPU"] += 1
                else:
                    executor.sim._go_wrong(run, "hang", "")
        if is_heard and not is_over:
            self.devices.readings()
            self._mend_one()
            self._check_waiting()

    def _mend_one(self) -> None:
        """Now and then somebody mends a GPU."""
        slots = self.experiment.state.devices.slots.values()
        out = [slot.id for slot in slots if slot.state is QUARANTINED]
        if out and self.rng.random() < 0.02:
            self.mend(self.gpu_of(self.rng.choice(out)))
            self.counts["mended"] += 1

    # ------------------------------------------------------------ as the host of the devices

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        self.clock.after(delay_s, action)

    def emit(self, event: DeviceEvent) -> None:
        if self.executor is not None:
            self.executor.emit(event)

    # ------------------------------------------------------------ what must hold

    def has_lost(self, name: str) -> bool:
        return self.is_lost(self.gpu_of(name))

    def neighbours(self, share: str) -> set[int]:
        if self.shares == 1 or self.executor is None:
            return set()
        seats = self.executor.seats
        elsewhere = [
            pids for run, pids in seats.begun.items() if share and share not in run.devices
        ]
        return {pid for pids in (*seats.live.values(), *elsewhere) for pid in pids}

    def _observe(self, event: Event, commands: Sequence[Command]) -> None:
        self.entries.append(Entry(len(self.entries) + 1, event, list(commands)))
        match event:
            case DevicesReleased():
                self.counts["released"] += len(event.devices)
                self.proven.update(event.devices)
                for name in event.devices:
                    self._check_clean(name, "released")
            case QuarantineChanged(reason=""):
                self.counts["readmitted"] += 1
                self.proven.add(event.device)
                assert event.device not in self.executor.seats.on, "readmitted under its trial"
                self._check_clean(event.device, "readmitted")
            case QuarantineChanged():
                self.counts["quarantined"] += 1
                self.proven.discard(event.device)
                if any(isinstance(command, Kill) for command in commands):
                    self._check_kill(event)
            case DaemonResumed():
                self.proven -= set(event.unusable)
            case TrialExited():
                self.counts["deaths"] += event.outcome == "lost"
            case Reported():
                self.counts["reports"] += 1
            case _:
                pass
        for launch in (command for command in commands if isinstance(command, Launch)):
            unproven = set(launch.devices) - self.proven
            assert not unproven, f"launch {launch.incarnation} on {unproven}"
            self.proven -= set(launch.devices)
            self.launched_at |= dict.fromkeys(launch.devices, self.now)
            size = self.sizes.get(launch.trial, 0)
            self.counts["resizes"] += size not in (0, len(launch.devices))
            self.sizes[launch.trial] = len(launch.devices)
        self._check_devices()

    def _check_kill(self, event: QuarantineChanged) -> None:
        gpu = self.gpu_of(event.device)
        # A stranger, or an error, may come in the very turn in which the device is given out; somebody may mend the GPU
        # before it is told that it was ill.
        is_new = self.now == self.launched_at.get(event.device)
        was_ill = self.now - self.mended_at.get(gpu.uuid, -1e9) < self._slack_s(event.device)
        right = self.ill(gpu) or was_ill or self.has_stranger(gpu) or (is_new and self.sick(gpu))
        assert right or "lost" in event.reason, f"a trial is killed for: {event.reason}"

    def _slack_s(self, name: str) -> float:
        return SICK_S if self.sick(self.gpu_of(name)) else SEEN_WITHIN_S

    def _check_clean(self, name: str, how: str) -> None:
        gpu = self.gpu_of(name)
        wrong = self.dirty(gpu, foreign_older_than=self._slack_s(name), share=name)
        assert not wrong, f"{name} {how}: {wrong}"

    def check_launch(self, name: str) -> None:
        self._check_clean(name, "is given out")
        gpu = self.gpu_of(name)
        known = self.now - self.bad_since.get(gpu.uuid, self.now) > self._slack_s(name)
        assert not (known and self.ill(gpu)), f"launch on {name}: {self.ill(gpu)}"
        assert self.hangs_for(gpu) < HANGS_S, f"launch on {name}: its driver hangs"

    def _check_devices(self) -> None:
        state = self.experiment.state
        for name, slot in state.devices.slots.items():
            if slot.state is DRAINING:
                since = self.drained_at.setdefault(name, self.now)
                assert self.now - since <= LIMIT_S + 2.0, f"{name} drains since {since:.0f}"
                continue
            self.drained_at.pop(name, None)
            if slot.state is HELD:
                assert slot.trial in state.live, f"{name} is held by nobody that lives"
            elif slot.state is QUARANTINED:
                assert slot.reason, f"{name} is quarantined without a reason"
        if not state.finished and state.stopping is None and not state.live:
            assert not (state.devices.free and state.can_draw), "a device is free, and none trains"

    def _check_waiting(self) -> None:
        """A device that is clean and answers is not kept waiting, whatever its neighbours do."""
        slots = self.experiment.state.devices.slots.values()
        on = self.executor.seats.on
        waiting = {s.id: s for s in slots if s.state in (DRAINING, QUARANTINED) and s.id not in on}
        for name in self.clean_since.keys() - waiting.keys():
            del self.clean_since[name]
        for name, slot in waiting.items():
            gpu = self.gpu_of(name)
            if self.dirty(gpu) or self.ill(gpu) or self.sick(gpu):
                self.clean_since.pop(name, None)
                continue
            waited_s = self.now - self.clean_since.setdefault(name, self.now)
            limit_s = RELEASED_WITHIN_S if slot.state is DRAINING else BACK_WITHIN_S
            limit_s += RETRY_S if gpu.uuid in self.was_bad else 0.0
            words = f"{name} is clean for {waited_s:.1f} s, {slot.state.name}: {slot.reason}"
            assert waited_s < limit_s, words


def play(seeds: Iterable[int], folder: Path, shares: int = 1) -> Counter[str]:
    """Count what happens in a search for each seed. A failure names its seed, which repeats it."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        home = folder / str(seed)
        home.mkdir(mode=0o700)
        try:
            counts += Schedule(seed, home, shares).run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    return counts
