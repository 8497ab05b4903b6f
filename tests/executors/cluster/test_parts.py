"""The daemon's side of what nodes say, and of their silence; the daemon is real, nodes and time are played."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpusched.core.commands import Launch
from gpusched.core.events import DevicesJoined, Event, TrialExited
from gpusched.devices.base import Device, Reading
from gpusched.executors.cluster.bootstrap import NodeOffer
from gpusched.executors.cluster.executor import ClusterExecutor
from gpusched.executors.cluster.line import (
    Beat,
    Bye,
    Joined,
    Keys,
    NodeHello,
    Reconcile,
    Reconciled,
    is_over,
    say_over,
)
from gpusched.executors.live import Setting
from gpusched.folder.files import private_folder
from gpusched.folder.lock import read_fence
from gpusched.folder.paths import ExperimentPaths
from tests.executors.cluster.test_storm import AtOnce, Recipe, World
from tests.rig import refusing

NODES = ("a", "b", "c")


class Line:
    """A node that joins at once, and says what a test has it say."""

    def __init__(self, name: str, world: World) -> None:
        self.name, self.world = name, world
        self.device = Device(f"{name}/cpu:0", "")
        self.heard: list[Any] = []
        self.has_begun = False

    def join(self) -> None:
        self.world.take(NodeHello(self.name), self)
        self.say(Joined([self.device]))
        self.say(Reconciled())

    def hear(self, decode: Any, say: Any) -> None:
        self.say = say

    def send(self, frame: Any) -> None:
        self.heard.append(frame)

    def close(self) -> None: ...

    def told(self, kind: type) -> list[Any]:
        return [frame for frame in self.heard if isinstance(frame, kind)]


class Cluster:
    """A way to nodes of one device each."""

    devices = "cpu:1"
    host = "127.0.0.1"

    def __init__(self, world: World, keys: Keys) -> None:
        self.world, self.keys = world, keys
        self.lines = {name: Line(name, world) for name in NODES}
        self.refused: dict[str, str] = {}
        self.said: list[str] = []

    def nodes(self) -> list[NodeOffer]:
        assert not is_over(self.keys), "a node that starts now would leave"
        for line in self.lines.values():
            if not line.has_begun:
                line.has_begun = True
                self.world.after(0.0, line.join)
        return [NodeOffer(name, self.devices) for name in self.lines]

    def close(self) -> None: ...


Apart = tuple[ClusterExecutor, Cluster]


@pytest.fixture
def apart(tmp_path: Path) -> Iterator[Apart]:
    """Trial 0 runs on ``a``."""
    world, paths = World(1), ExperimentPaths(tmp_path)
    private_folder(paths.trials)
    keys = Keys(tmp_path)
    keys.make()
    say_over(keys)  # the search continues after its end
    cluster = Cluster(world, keys)
    recipe = Recipe()
    recipe.node_patience_s = 6.0
    given = {"recipe": recipe, "hub": world, "say": cluster.said.append}
    setting = Setting(paths=paths, clock=lambda: world.now, **given)
    executor = ClusterExecutor(setting, cluster)
    executor.members.look_every_s, executor.members.helper = 1.0, AtOnce()
    executor.inventory()
    executor.execute(Launch(0, 1, ("a/cpu:0",), {}))
    yield executor, cluster
    executor.close()


def passes(executor: ClusterExecutor, seconds: int, *awake: Line) -> list[Event]:
    """Let time pass in which these nodes alone give signs of life."""
    events: list[Event] = []
    for _ in range(seconds):
        for line in awake:
            line.say(Beat())
        until = executor.now() + 1.0
        while executor.now() < until:
            events += executor.poll(until)
    return events


def kinds(events: list[Event]) -> list[tuple[str, str]]:
    return [
        (type(event).__name__, getattr(event, "device", "") or str(getattr(event, "trial", "")))
        for event in events
    ]


def test_a_silent_node_keeps_its_trials_until_patience_ends(apart: Apart) -> None:
    """A node's process had stopped for four seconds, and both of its trials began again from step 1."""
    executor, cluster = apart
    a, b, c = (cluster.lines[name] for name in NODES)
    assert not passes(executor, 5, c)
    assert not passes(executor, 1, a, b, c)
    a.say(Beat([Reading("a/cpu:0", utilisation=0.9)]))
    lost = passes(executor, 8, b, c)
    assert kinds(lost) == [("QuarantineChanged", "a/cpu:0"), ("TrialExited", "0")]
    assert not executor.readings(), "of a GPU of which nothing is known"
    assert executor.now() < 16.0


def test_a_launch_that_a_lost_node_was_not_told_of_is_no_fault_of_its_trial(apart: Apart) -> None:
    executor, cluster = apart
    a, b, c = (cluster.lines[name] for name in NODES)
    b.on_end()
    executor.execute(Launch(1, 1, ("b/cpu:0",), {}))
    lost = [event for event in passes(executor, 8, a, c) if isinstance(event, TrialExited)]
    assert [(end.trial, end.unbegun) for end in lost] == [(1, True)]


def test_a_node_that_the_cluster_calls_dead_is_lost_at_once_and_told_to_end_its_trials(
    apart: Apart,
) -> None:
    """The node's devices were given to another job while our trials trained there."""
    executor, cluster = apart
    gone = cluster.lines.pop("a")
    events = passes(executor, 2, gone, *cluster.lines.values())
    assert kinds(events) == [("QuarantineChanged", "a/cpu:0"), ("TrialExited", "0")]
    assert [frame.ends_trials for frame in gone.told(Bye)] == [True]
    assert not cluster.world.take(NodeHello("a"), gone)
    assert len(gone.told(Bye)) == 2, "as often as it comes back"
    assert executor.members.nodes["a"].state == "lost"


def test_a_node_that_came_back_to_the_cluster_with_fewer_devices_is_lost(apart: Apart) -> None:
    """The node's raylet was killed and started again, and another job was faster."""
    executor, cluster = apart
    cluster.devices = "cpu:0"
    events = passes(executor, 2, *cluster.lines.values())
    assert ("TrialExited", "0") in kinds(events)
    assert [frame.ends_trials for frame in cluster.lines["a"].told(Bye)] == [True]


def test_a_node_that_is_not_used_is_told_of_once_with_the_reason(apart: Apart) -> None:
    """Half of the GPUs were idle all night, and nothing said why: the second machine had another disk."""
    executor, cluster = apart
    awake = [*cluster.lines.values()]
    cluster.refused["d"] = "its folder is not there"
    cluster.lines["e"] = late = Line("e", cluster.world)
    late.has_begun = True
    (Keys(executor.members._setting.paths.root).folder / "e.log").write_text("no such python\n")
    assert not passes(executor, 70, *awake)
    assert cluster.said[1:] == [
        "node d is not used: its folder is not there",
        "node e is given up: it has not joined within 60 s: no such python",
    ]


def test_a_node_that_comes_back_without_a_device_is_not_asked_for_it(apart: Apart) -> None:
    """The node's process ended the line at each try, and its other GPUs were never used again."""
    executor, cluster = apart
    a, b, c = (cluster.lines[name] for name in NODES)
    passes(executor, 8, b, c)
    a.device = Device("a/cpu:1", "")
    a.join()
    assert [frame.kept_out for frame in a.told(Reconcile)] == [{}, {}]
    assert executor.members.nodes["a"].state == "up"


def test_a_device_of_a_late_node_that_cannot_be_used_begins_in_quarantine(apart: Apart) -> None:
    """A trial was launched on it, and lost it at once."""
    executor, cluster = apart
    cluster.lines["d"] = late = Line("d", cluster.world)
    late.device = Device("d/cpu:0", "", usable=False, why_not="a stranger is on it")
    late.has_begun = True
    cluster.world.after(2.5, late.join)
    (event,) = passes(executor, 4, *(cluster.lines[name] for name in NODES))
    assert event == DevicesJoined(
        at=event.at,
        devices=("d/cpu:0",),
        islands={"d/cpu:0": 0},
        unusable={"d/cpu:0": "a stranger is on it"},
    )


def test_a_node_that_is_back_does_not_replace_a_fence(
    apart: Apart, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trial was told of, and launched elsewhere, while nothing kept the lost incarnation from writing."""
    executor, cluster = apart
    a, b, c = (cluster.lines[name] for name in NODES)
    refused: list[Path] = []

    def refuse(fence: Path, _incarnation: int) -> None:
        refused.append(fence)
        raise OSError(errno.EROFS, "Read-only file system")

    with monkeypatch.context() as disk:
        disk.setattr("gpusched.executors.cluster.executor.write_fence", refuse)
        events = passes(executor, 8, b, c)
        assert executor.members.nodes["a"].state == "lost"
        a.join()
        assert executor.members.nodes["a"].state == "up"
        events += executor.poll(0.0)
        assert not [event for event in events if isinstance(event, TrialExited)]
    (end,) = executor.poll(executor.now() + 2.0)
    assert (end.outcome, end.error) == ("lost", "node a was lost")
    assert read_fence(refused[0]) == 1


def test_a_launch_without_a_fence_is_lost_after_a_while(
    apart: Apart, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lost at once, a launch would be asked for again at once, thousands of times a minute."""
    executor, cluster = apart
    awake = cluster.lines.values()
    refuse = refusing(errno.EDQUOT)
    monkeypatch.setattr("gpusched.executors.cluster.executor.write_fence", refuse)
    executor.execute(Launch(1, 1, ("b/cpu:0",), {}))
    assert not passes(executor, 4, *awake)
    (end,) = passes(executor, 2, *awake)
    assert (end.trial, end.unbegun) == (1, True)
    assert "cannot be written (Disk quota exceeded)" in end.error


def test_a_daemon_that_was_stopped_loses_no_node(apart: Apart) -> None:
    """No node was heard meanwhile, which says nothing about the nodes."""
    executor, cluster = apart
    cluster.world.now += 60.0
    assert not executor.poll(executor.now())
    assert not passes(executor, 3, *cluster.lines.values())
