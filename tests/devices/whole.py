"""Whole experiments on scripted GPUs in virtual time: the real core, policy and driver, and the real ``CudaDevices``.

``schedules.py`` plays the executor itself; here everything but the processes is what runs on a GPU box: the driver's
loop, and what becomes of devices and who is to blame for a failure (``blame``). Trials train in the simulated
executor; their contexts are the scripted driver's. After every event:

* no launch on a device that is not clean, is known to be ill, or does not answer;
* every device is FREE, HELD by a live trial, DRAINING for no longer than the limit, or QUARANTINED with a reason;
* no stall: no device stays FREE while a trial could use it, and none that is clean is kept waiting.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from gpusched.core.allocation import DeviceState
from gpusched.core.commands import Command, ConfirmRelease, Kill, Launch
from gpusched.core.events import (
    DevicesJoined,
    DevicesReleased,
    Event,
    QuarantineChanged,
    Reported,
    TrialExited,
)
from gpusched.core.experiment import Experiment
from gpusched.devices.base import Device, DeviceEvent, DeviceRemark
from gpusched.devices.cuda import CudaDevices
from gpusched.driver.loop import Driver
from gpusched.executors.base import LiveTrial
from gpusched.executors.live import Timers
from gpusched.executors.local.executor import as_event
from gpusched.processes.outcome import Blamed, blame
from gpusched.sim.physics import Delays, Run
from gpusched.sim.setup import Setup, experiment, recipe
from tests.devices.fake_driver import GIB
from tests.devices.schedules import LIMIT_S, STEP_S, Schedule
from tests.faults import Faults, FaultyExecutor, FaultySetup

DEADLINE_S = 40.0
RELEASED_WITHIN_S = 3.0
"""A drained device that is clean: the release is asked for once a second at last, a reading takes half of one."""
HELD, FREE = DeviceState.HELD, DeviceState.FREE
DRAINING, QUARANTINED = DeviceState.DRAINING, DeviceState.QUARANTINED
POLICIES = {
    "fifo": {"R": 12},
    "asha": {"r": 1, "R": 27, "eta": 3.0},
    "hypersched": {"r": 2, "R": 40, "cooldown": 1},
}
OF_A_LOST_GPU = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
ITS_OWN = ("ValueError: loss is nan", "RuntimeError: CUDA error: an illegal memory access")


class Seats:
    """In the place of the simulated devices: who sits on which GPU, for ``SimExecutor``."""

    def __init__(self, whole: Whole, devices: tuple[Device, ...]) -> None:
        self.devices = devices
        self.on: dict[str, Run] = {}
        self._whole = whole
        self._pids: dict[Run, list[int]] = {}

    def occupy(self, run: Run, now: float) -> None:
        whole = self._whole
        for name in run.devices:
            assert name not in self.on, f"{run}: {name} is in use by {self.on[name]}"
            whole.check_launch(name)
            self.on[name] = run
        whole.devices.take(run.devices)
        whole.counts["launches"] += 1
        pids = self._pids[run] = []
        for gpu in [gpu for name in run.devices for gpu in whole.atoms[name].gpus]:
            pids.append(whole.new_pid())
            size = whole.rng.choice([0.3, 1, 5, 7]) * GIB
            whole.driver.start(gpu, pids[-1], int(size)).since = whole.now + whole.rng.random()

    def vacate(self, run: Run, now: float) -> None:
        """A trial's processes are gone, and open no context any more; the driver cleans up at its own pace."""
        whole = self._whole
        for name in run.devices:
            del self.on[name]
            for gpu in whole.atoms[name].gpus:
                gpu.contexts = [c for c in gpu.contexts if c.since <= whole.now]
        for pid in self._pids.pop(run):
            listed, memory = whole.lag(), whole.lag()
            if whole.rng.random() < 0.1:  # stuck in the kernel: alive as far as anybody can see
                whole.driver.table[pid].ends = whole.now + min(listed, 1e6)
            whole.driver.end(pid, listed, memory)
            whole.driver.table[pid].ends = max(whole.driver.table[pid].ends, whole.now)


class Trials(FaultyExecutor):
    """The simulated trials, on seats; a GPU that is lost takes them along."""

    def __init__(self, setup: FaultySetup, seats: Seats) -> None:
        given = {"delays": setup.delays, "faults": setup.faults, "seed": setup.seed}
        super().__init__(setup.load(), seats.devices, **given)
        self._pool = seats

    @property
    def next_at(self) -> float:
        return self._heap[0][0] if self._heap else float("inf")

    def strike(self, run: Run, after_s: float) -> None:
        self._cut(run, "failed", OF_A_LOST_GPU, after_s)


class Executor:
    """``executors.base.Executor``: simulated trials on scripted GPUs that the live executor's parts look after."""

    def __init__(self, whole: Whole, setup: Setup, inventory: tuple[Device, ...]) -> None:
        self.seats = Seats(whole, inventory)
        self.sim = Trials(setup, self.seats)
        self._whole, self._began, self._now = whole, whole.now, 0.0
        self._events: list[Event] = []
        self._world_at = 0.0
        self.timers = Timers(self.now)
        self.have(whole.devices)

    def have(self, devices: CudaDevices) -> None:
        """Look after these from now on."""
        self.stock = devices

    def emit(self, event: DeviceEvent) -> None:
        if not isinstance(event, DeviceRemark):
            self._events.append(as_event(event, self._now))

    def __getattr__(self, name: str) -> Any:
        """What concerns trials alone."""
        return getattr(self.sim, name)

    def now(self) -> float:
        return self._now

    def execute(self, command: Command) -> None:
        if isinstance(command, ConfirmRelease):
            self.stock.confirm_release(command.devices, LIMIT_S)
        else:
            self.sim.execute(command)

    def reconcile(self, live: Sequence[LiveTrial]) -> Sequence[Event]:
        """As the live executor: adopt what lives, tell of what has ended, and let go of all that no trial has."""
        for one in live:
            self._whole.devices.take(one.devices)
        left = {one.trial: one.devices for one in live}
        for event in self.sim.reconcile(live):
            if isinstance(event, TrialExited):
                self.stock.drain(left.pop(event.trial))
            self._events.append(event)
        used = {name for names in left.values() for name in names}
        self.stock.drain([name for name in self._whole.atoms if name not in used])
        return self._take_events()

    def live_on(self, seconds: float) -> None:
        """Let time pass without a daemon: what happens is heard by nobody."""
        until = self._now + seconds
        while self._now < until:
            self._go_to(min(self._world_at, self.sim.next_at, until))
            if self._now >= self._world_at:
                self._world_at = self._now + STEP_S
                self._whole.happen(self, is_heard=False)
            self.sim.poll(self._now)
        self._events.clear()

    def catch_up(self) -> None:
        """Let the trials live up to the world's time, which has passed while devices were opened."""
        self.live_on(self._whole.now - self._began - self._now)

    def poll(self, until: float) -> Sequence[Event]:
        self.timers.run_due()
        while not self._events and self._now < until:
            self._go_to(min(self.timers.next_at, self._world_at, self.sim.next_at, until))
            if self._now >= self._world_at:
                self._world_at = self._now + STEP_S
                self._whole.happen(self)
            for event in self.sim.poll(self._now):
                self._told(event)
            self.timers.run_due()
        return self._take_events()

    def _take_events(self) -> Sequence[Event]:
        events = list(self._events)
        self._events.clear()
        return events

    def _go_to(self, at: float) -> None:
        at = max(at, self._now)
        self._whole.clock.advance(max(0.0, self._began + at - self._whole.now))
        self._now = at

    def _told(self, event: Event) -> None:
        """As the live executor ends an incarnation."""
        if not isinstance(event, TrialExited):
            self._events.append(event)
            return
        names = self.sim.stories[event.trial].run.devices
        if event.outcome != "failed":
            self._left(event, names)
            return
        error = event.error if event.error == OF_A_LOST_GPU else self._whole.rng.choice(ITS_OWN)
        gone = any(self._whole.is_lost(name) for name in names)
        self._exited(event, names, error == OF_A_LOST_GPU and gone, blame(error, 1))

    def _left(self, event: TrialExited, names: Sequence[str]) -> None:
        self.stock.drain(names)
        self._events.append(event)

    def _exited(self, event: TrialExited, names: Sequence[str], gone: bool, ending: Blamed) -> None:
        assert ending.outcome == "lost" or not gone, "a lost GPU counts against its trial"
        self._whole.counts[f"{ending.outcome} by {'its GPU' if gone else 'itself'}"] += 1
        told = {"at": self._now, "outcome": ending.outcome, "error": ending.error}
        self._left(msgspec.structs.replace(event, **told), names)


class Whole(Schedule):
    """One experiment, from its seed."""

    def __init__(self, seed: int, folder: Path) -> None:
        super().__init__(seed, folder)
        rng = random.Random(f"experiment {seed}")
        self.policy = rng.choice(list(POLICIES))
        self.setup = FaultySetup(
            policy=self.policy,
            options=POLICIES[self.policy],
            workload=f"synthetic:{rng.choice([0.4, 1.0, 2.5])}",
            deadline_s=DEADLINE_S,
            seed=seed,
            max_atoms=rng.choice([None, 1, 2]),
            delays=Delays(launch_s=rng.uniform(0, 1), save_s=0.05, exit_s=rng.uniform(0, 0.3)),
            faults=Faults(crash=rng.choice([0.0, 0.03]), lost=rng.choice([0.0, 0.01])),
        )
        self.executor: Executor | None = None
        self.drained_at: dict[str, float] = {}
        self.launched_at: dict[str, float] = {}
        self.doomed: set[Run] = set()

    # ------------------------------------------------------------ as the host of the devices

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        (self.clock if self.executor is None else self.executor.timers).after(delay_s, action)

    def emit(self, event: DeviceEvent) -> None:
        if self.executor is not None:
            self.executor.emit(event)

    # ------------------------------------------------------------ the story

    def _play(self) -> None:
        inventory = self.inventory
        # (Of the first trials' failures the search would be given up; that is another story.)
        setup = replace(self.setup, atoms=len(inventory))
        self.experiment = experiment(setup, recipe(setup))
        self.executor = Executor(self, setup, inventory)
        self.loop = self._driver_of(self.experiment)
        self.loop.handle([self._started(inventory)])
        while not self.experiment.state.finished:
            self._turn_of_the_driver()
        while self.experiment.state.devices.draining:
            self._turn_of_the_driver()
        assert not self.executor.seats.on, "trials are left"
        self.check_devices(over=True)
        self.counts[f"{self.policy} experiments"] += 1
        self.counts["trials"] += len(self.experiment.state.trials)

    def _driver_of(self, search: Experiment) -> Driver:
        return Driver(search, self.executor, check=True, observer=self._observe)

    def _started(self, inventory: Sequence[Device]) -> Event:
        return DevicesJoined(
            at=0.0,
            devices=tuple(device.id for device in inventory),
            islands={device.id: device.island for device in inventory},
            unusable={one.id: one.why_not for one in inventory if not one.usable},
        )

    def _turn_of_the_driver(self) -> None:
        self.loop.turn(self.executor.now() + 1.0)
        self.check_devices(over=self.experiment.state.finished)

    def happen(self, executor: Executor, *, is_heard: bool = True) -> None:
        """Ten times a second: the world goes its way, GPUs that are lost take their trials along, people ask."""
        if not self.experiment.state.finished:
            self._happen()
        for run in {*executor.seats.on.values()} - self.doomed:
            if any(self.is_lost(name) for name in run.devices) and not run.leaving:
                self.doomed.add(run)
                if self.rng.random() < 0.8:
                    executor.sim.strike(run, self.rng.uniform(0, 0.3))
                else:
                    executor.sim._go_wrong(run, "hang", "")
        if is_heard:
            self._mend()
            self._check_waiting()

    def _mend(self) -> None:
        """Now and then somebody mends a GPU."""
        slots = self.experiment.state.devices.slots.values()
        out = [slot.id for slot in slots if slot.state is QUARANTINED]
        if not out or self.experiment.state.finished or self.rng.random() > 0.02:
            return
        name = self.rng.choice(out)
        for gpu in self.atoms[name].gpus:
            if self.rng.random() < 0.7:
                gpu.lost_from = gpu.lost_until = float("inf")
                gpu.recovery = 0
            if not self.ill(gpu):
                self.bad_since.pop(gpu.uuid, None)
        self.counts["mended"] += 1

    # ------------------------------------------------------------ what must hold

    def is_lost(self, name: str) -> bool:
        return any(gpu.lost_from <= self.now < gpu.lost_until for gpu in self.atoms[name].gpus)

    def _observe(self, event: Event, commands: Sequence[Command]) -> None:
        match event:
            case DevicesReleased():
                self.counts["released"] += len(event.devices)
                for name in event.devices:
                    self.check_clean(name, "released")
            case QuarantineChanged(reason=""):
                self.counts["readmitted"] += 1
                assert event.device not in self.executor.seats.on, "readmitted under its trial"
                self.check_clean(event.device, "readmitted")
            case QuarantineChanged():
                self.counts["quarantined"] += 1
                if any(isinstance(command, Kill) for command in commands):
                    gpus = self.atoms[event.device].gpus
                    # A stranger, or an error, may come in the very turn in which the device is given out.
                    is_new = self.now == self.launched_at.get(event.device)
                    right = any(self.ill(gpu) or self.has_stranger(gpu) for gpu in gpus)
                    right = right or (is_new and any(self.sick(gpu) for gpu in gpus))
                    assert right or "lost" in event.reason, f"a trial is killed for: {event.reason}"
            case Reported():
                self.counts["reports"] += 1
            case _:
                pass
        launches = [command for command in commands if isinstance(command, Launch)]
        self.launched_at |= {name: self.now for command in launches for name in command.devices}
        self.check_devices(over=self.experiment.state.finished)

    def check_devices(self, *, over: bool) -> None:
        """Every device is FREE, HELD by a live trial, DRAINING within the limit, or QUARANTINED with a reason."""
        state = self.experiment.state
        now = self.executor.now()
        for name, slot in state.devices.slots.items():
            if slot.state is DRAINING:
                since = self.drained_at.setdefault(name, now)
                assert now - since <= LIMIT_S + 2.0, f"{name} drains for {now - since:.0f} s"
                continue
            self.drained_at.pop(name, None)
            if slot.state is HELD:
                assert slot.trial in state.live, f"{name} is held by nobody that lives"
            elif slot.state is QUARANTINED:
                assert slot.reason, f"{name} is quarantined without a reason"
        if not over:
            self._check_free()

    def _check_free(self) -> None:
        """No device stays FREE while a trial could use it."""
        state = self.experiment.state
        free = len(state.devices.free)
        if not free or state.stopping is not None:
            return
        time_left_s = DEADLINE_S - self.executor.now()
        if (
            self.policy == "hypersched"
        ):  # its entrance rule may leave atoms free, but never all of them
            assert state.live or time_left_s < 15.0, f"nothing runs, {free} devices are free"
        else:
            assert not state.can_draw, f"{free} devices are free, and {self.policy} has trials"

    def _check_waiting(self) -> None:
        if self.experiment.state.finished:
            return
        slots = self.experiment.state.devices.slots.values()
        self.check_waiting(
            {
                slot.id: (slot.state.name, slot.reason)
                for slot in slots
                if slot.state in (DRAINING, QUARANTINED)
                if slot.id not in self.executor.seats.on
            },
            RELEASED_WITHIN_S,
        )
