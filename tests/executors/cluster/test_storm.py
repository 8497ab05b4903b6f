"""Two hundred faults on eight nodes in virtual time: a search that ends all the same, and no trial in two places.

The daemon's side is real: driver, experiment, ``ClusterExecutor``, its frames. Nodes, lines and the clock are played,
and the shared disk often refuses a fence.
"""

from __future__ import annotations

import errno
import heapq
import itertools
import random
import zlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpusched import policies
from gpusched.core.commands import ConfirmRelease, Kill, Launch, Save, Yield
from gpusched.core.events import (
    CheckpointSaved,
    DevicesJoined,
    DevicesReleased,
    Event,
    QuarantineChanged,
    TrialExited,
    TrialUp,
)
from gpusched.core.experiment import Experiment
from gpusched.core.rules import Rules
from gpusched.devices.base import Device
from gpusched.driver.loop import Driver
from gpusched.executors.cluster.bootstrap import NodeOffer
from gpusched.executors.cluster.executor import ClusterExecutor
from gpusched.executors.cluster.line import (
    Beat,
    Do,
    Happened,
    Joined,
    NodeHello,
    Reconcile,
    Reconciled,
    Welcome,
    from_stranger,
    to_node,
)
from gpusched.executors.cluster.nodes import node_of
from gpusched.executors.live import Setting
from gpusched.folder.files import private_folder
from gpusched.folder.lock import read_fence, write_fence
from gpusched.folder.paths import ExperimentPaths
from gpusched.folder.reports import line_of
from gpusched.protocol import Report, encode
from tests.events import exited, reported

NODES, FAULTS, STEPS = 8, 200, 27


class World:
    """Virtual time, and the hub of a daemon in it."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (self.now + delay_s, next(self._count), action))

    def turn(self, timeout_s: float) -> bool:
        until = self.now + timeout_s
        if not self._heap or self._heap[0][0] > until:
            self.now = until
            return False
        self.now, _, action = heapq.heappop(self._heap)
        action()
        return False

    def wake(self) -> None: ...

    def listen(self, listener: Any, greet: Any) -> None: ...

    def unwatch(self, descriptor: int) -> None: ...

    def register(self, hello: Any, take: Any) -> None:
        self.take = take

    def greet(self, line: Line) -> None:
        line.hear(from_stranger, lambda hello: self.take(hello, line) or line.close())


class AtOnce:
    """Calls what it is given, in the place of a thread."""

    def submit(self, call: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(call())
        return future

    def shutdown(self, **_: object) -> None: ...


class Line:
    """A connection as the daemon sees it; both ways are slow, in order, and may be stopped or cut."""

    def __init__(self, world: World, node: PlayedNode) -> None:
        self.world, self.node = world, node
        self.is_open = True
        self.on_end: Callable[[], None] | None = None
        self._to_node = self._to_daemon = 0.0
        self._waiting: deque[bytes] = deque()

    def hear(self, decode: Any, on_frame: Any) -> None:
        self.decode, self.on_frame = decode, on_frame

    def send(self, frame: Any) -> None:
        def deliver() -> None:
            if not (self.is_open and self.node.line is self):
                return
            if not self.node.is_awake:  # and may have another line when it is
                self.world.after(self.node.silent_until - self.world.now, deliver)
                return
            self.node.hears(to_node(encode(frame)))

        self._to_node = max(self._to_node, self.world.now + self.world.rng.uniform(0, 0.05))
        self.world.after(self._to_node - self.world.now, deliver)

    def tell(self, frame: Any) -> None:
        """From the node to the daemon."""
        waiting = self._waiting
        waiting.append(encode(frame))

        def deliver() -> None:
            if not self.is_open:
                return
            if self.world.now < self.node.silent_until:
                self.world.after(self.node.silent_until - self.world.now, deliver)
                return
            self.on_frame(self.decode(waiting.popleft()))

        self._to_daemon = max(self._to_daemon, self.world.now + self.world.rng.uniform(0, 0.05))
        self.world.after(self._to_daemon - self.world.now, deliver)

    def close(self) -> None:
        """The daemon closes it, or it breaks: both sides notice."""
        if self.is_open:
            self.is_open = False
            self.world.after(0.01, lambda: self.node.lost_line(self))
            on_end, self.on_end = self.on_end, None
            if on_end is not None:
                on_end()


@dataclass
class Ranks:
    """An incarnation as it trains; ``ends``: how it leaves at its next step."""

    trial: int
    number: int
    devices: tuple[str, ...]
    step: int
    seq: int
    saved: int
    ends: str = ""
    saves: bool = False
    exited: TrialExited | None = None


class PlayedNode:
    """A machine: the process of its node, and what trains on it."""

    def __init__(self, world: World, paths: ExperimentPaths, name: str) -> None:
        self.world, self.paths, self.name = world, paths, name
        self.line: Line | None = None
        self.is_there = True
        self.is_ready = False
        self.silent_until = 0.0
        self.ranks: dict[int, Ranks] = {}
        self.beat()

    # -------------------------------------------------------------- the process

    def start(self) -> None:
        self.world.after(self.world.rng.uniform(0.2, 0.6), self.dial)

    def dial(self) -> None:
        if not self.is_awake:
            self.world.after(self.silent_until - self.world.now, self.start)
        elif self.is_there and self.line is None:
            self.line = Line(self.world, self)
            self.world.greet(self.line)
            self.line.tell(NodeHello(self.name))

    def lost_line(self, line: Line) -> None:
        if self.line is line:
            self.line, self.is_ready = None, False
            self.start()

    def beat(self) -> None:
        self.world.after(1.0, self.beat)
        if self.line is not None and self.is_there and self.is_awake:
            self.line.tell(Beat())

    @property
    def is_awake(self) -> bool:
        return self.world.now >= self.silent_until

    def tell(self, *events: Event) -> None:
        for event in events:
            if self.line is not None and self.is_ready:
                self.line.tell(Happened.of(event))

    def hears(self, frame: Any) -> None:
        if not self.is_there or self.line is None:
            return
        match frame:
            case Welcome():
                island = zlib.crc32(self.name.encode())
                devices = [Device(f"{self.name}/cpu:{n}", "", island) for n in range(2)]
                self.line.tell(Joined(devices))
            case Reconcile():
                self.reconcile(frame)
            case Do():
                self.obey(frame.read(), frame.seq)
            case _:
                pass

    def reconcile(self, frame: Reconcile) -> None:
        self.is_ready = True
        live = {one.trial: one for one in frame.live}
        for trial, ranks in list(self.ranks.items()):
            if trial not in live or live[trial].incarnation != ranks.number:
                del self.ranks[trial]
        for one in frame.live:
            ranks = self.ranks.get(one.trial)
            if ranks is None:
                about = {"trial": one.trial, "incarnation": one.incarnation}
                self.tell(exited("lost", unbegun=True, **about))
            elif ranks.exited is not None:
                self.tell(ranks.exited)
        for device in frame.kept_out:
            self.tell(QuarantineChanged(at=0.0, device=device))
        self.line.tell(Reconciled())

    def obey(self, command: Any, seq: int) -> None:
        match command:
            case Launch(trial, number, devices):
                known = self.ranks.get(trial)
                if known is not None and number <= known.number:
                    return
                if number <= read_fence(self.paths.trial(trial).fence):
                    self.tell(exited("lost", trial=trial, incarnation=number, unbegun=True))
                    return
                assert known is None or known.exited is not None, f"trial {trial} is here twice"
                training = [ranks for ranks in self.ranks.values() if ranks.exited is None]
                busy = {name for ranks in training for name in ranks.devices}
                own = {name for name in devices if node_of(name) == self.name}
                assert own, f"{self.name}: none of {devices} is here"
                assert not busy & own, f"{self.name}: {devices} are in use"
                saved = SAVED.get(trial, 0)
                ranks = self.ranks[trial] = Ranks(trial, number, devices, saved, seq, saved)
                self.world.after(
                    0.3, lambda: self.tell(TrialUp(at=0.0, trial=trial, incarnation=number))
                )
                self.world.after(1.0, lambda: self.train(ranks))
            case Yield(trial, number, save) if self.has(trial, number):
                self.ranks[trial].ends = "yielded"
                self.ranks[trial].saves |= save
            case Save(trial, number) if self.has(trial, number):
                self.ranks[trial].saves = True
            case Kill(trial, number) if self.has(trial, number):
                ranks = self.ranks[trial]
                self.world.after(0.5, lambda: self.ended(ranks, "killed"))
            case ConfirmRelease(devices):
                self.world.after(0.1, lambda: self.tell(DevicesReleased(at=0.0, devices=devices)))

    def has(self, trial: int, number: int) -> bool:
        return trial in self.ranks and self.ranks[trial].number == number

    # -------------------------------------------------------------- what trains

    def train(self, ranks: Ranks) -> None:
        if self.ranks.get(ranks.trial) is not ranks or ranks.exited is not None:
            return
        if not self.is_awake:
            self.world.after(self.silent_until - self.world.now, lambda: self.train(ranks))
            return
        paths = self.paths.trial(ranks.trial)
        if ranks.number <= read_fence(paths.fence):  # rank 0 looks before it writes
            self.ended(ranks, "killed")
            return
        ranks.step, ranks.seq = ranks.step + 1, ranks.seq + 1
        report = Report(ranks.number, ranks.seq, ranks.step, 1.0, {"m": ranks.step / 100})
        with paths.reports.open("ab") as file:
            file.write(line_of(report))
        about = {"trial": ranks.trial, "incarnation": ranks.number}
        known = {"seq": ranks.seq, "step": ranks.step, "metrics": report.metrics, **about}
        told: list[Event] = [reported(at=0.0, metric=ranks.step / 100, **known)]
        if ranks.saves or ranks.step % 5 == 0:
            ranks.saves, ranks.saved = False, ranks.step
            SAVED[ranks.trial] = ranks.step
            told.append(CheckpointSaved(at=0.0, step=ranks.step, save_s=0.01, **about))
        self.tell(*told)
        if ranks.ends:
            self.ended(ranks, ranks.ends)
        else:
            self.world.after(1.0, lambda: self.train(ranks))

    def ended(self, ranks: Ranks, outcome: Any) -> None:
        if self.ranks.get(ranks.trial) is ranks and ranks.exited is None:
            saved = ranks.saved if outcome == "yielded" else None
            about = {"trial": ranks.trial, "incarnation": ranks.number}
            ranks.exited = exited(outcome, saved_step=saved, **about)  # until a daemon has it
            self.tell(ranks.exited)

    # -------------------------------------------------------------- faults

    def fault(self) -> None:
        kind = self.world.rng.choice(["cut", "process", "sleep", "sleep", "die"])
        if kind == "sleep":
            self.silent_until = self.world.now + self.world.rng.choice([0.5, 2.0, 5.0, 20.0])
        elif kind == "die" and self.is_there:
            self.is_there = False
            self.ranks.clear()
            self.world.after(self.world.rng.uniform(1.0, 30.0), self.come_back)
        if kind != "sleep" and self.line is not None:
            line, self.line, self.is_ready = self.line, None, False
            line.close()
            self.start()

    def come_back(self) -> None:
        self.is_there = True


SAVED: dict[int, int] = {}
"""Step of each trial's newest checkpoint, on the disk that all nodes share."""


class PlayedCluster:
    """The bootstrap: it starts what is there."""

    host = "127.0.0.1"

    def __init__(self, nodes: dict[str, PlayedNode]) -> None:
        self._nodes = nodes
        self.refused: dict[str, str] = {}

    def nodes(self) -> list[NodeOffer]:
        for node in self._nodes.values():
            if node.line is None:
                node.start()
        return [NodeOffer(name, "cpu:2") for name in self._nodes]

    def close(self) -> None: ...


class Recipe:
    """The part of a recipe that the executor reads."""

    metric = "m"
    node_patience_s = 4.0

    def resolved(self) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize(
    "seed", [12, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(100, 120))]
)
def test_two_hundred_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    world, paths = World(seed), ExperimentPaths(tmp_path)
    refused: list[int] = []

    def write_unwillingly(fence: Path, incarnation: int) -> None:
        if incarnation and world.rng.random() < 0.5:
            refused.append(incarnation)
            raise OSError(errno.ENOSPC, "No space left on device")
        write_fence(fence, incarnation)

    monkeypatch.setattr("gpusched.executors.cluster.executor.write_fence", write_unwillingly)
    SAVED.clear()
    private_folder(paths.trials)
    nodes = {f"n{n}": PlayedNode(world, paths, f"n{n}") for n in range(NODES)}
    setting = Setting(
        paths=paths,
        recipe=Recipe(),
        hub=world,
        clock=lambda: world.now,
        seq_of=lambda trial: experiment.state.trials[trial].seq,
    )
    executor = ClusterExecutor(setting, PlayedCluster(nodes))
    executor.members.look_every_s, executor.members.helper = 5.0, AtOnce()
    rules = Rules(
        deadline_s=100_000.0,
        max_trials=120,
        sizes=(1,),
        islands_apart=True,
        max_infrastructure_faults=50,
    )
    policy = policies.make("asha", {"R": STEPS, "r": 1, "eta": 3})
    experiment = Experiment(rules, policy, lambda n: {"n": n})
    driver = Driver(experiment, executor, check=True)
    devices = executor.inventory()
    assert len(devices) == 2 * NODES
    islands = {device.id: device.island for device in devices}
    ids = tuple(device.id for device in devices)
    driver.handle([DevicesJoined(at=world.now, devices=ids, islands=islands)])
    faults = 0
    while not experiment.state.finished:
        driver.turn(world.now + 1.0)
        if faults < FAULTS and world.rng.random() < 0.7:
            faults += 1
            world.rng.choice(list(nodes.values())).fault()
        assert world.now < 20_000.0, [trial.state for trial in experiment.state.live.values()]
    executor.close()
    assert faults == FAULTS, f"the search was over after {faults}"
    states = [trial.state.value for trial in experiment.state.trials.values()]
    assert len(states) == 120
    assert "failed" not in states
    for number in paths.trial_numbers:
        lines = paths.trial(number).reports
        if lines.exists():
            numbers = [
                int(line.split('"i":')[1].split(",")[0]) for line in lines.read_text().splitlines()
            ]
            assert numbers == sorted(numbers), (
                f"trial {number} was written by two launches at a time"
            )
    assert len(refused) > 10
