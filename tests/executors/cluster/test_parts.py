"""Parts of a trial that spans nodes: their ends, and what nodes are told; the daemon is real, nodes are played."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpusched import __version__
from gpusched.core.commands import Kill, Launch
from gpusched.core.events import TrialExited
from gpusched.devices.base import Device
from gpusched.executors.base import Setting
from gpusched.executors.cluster import frames
from gpusched.executors.cluster.bootstrap import NodeOffer
from gpusched.executors.cluster.executor import ClusterExecutor
from gpusched.executors.cluster.line import Keys
from gpusched.folder.files import private_folder
from gpusched.folder.lock import read_fence
from gpusched.folder.paths import ExperimentPaths
from tests.executors.cluster.test_storm import AtOnce, Recipe, World

NODES = ("a", "b", "c")


class Line:
    """A node that joins at once, and says what a test has it say."""

    def __init__(self, name: str, paths: ExperimentPaths, world: World) -> None:
        self.name, self.paths, self.world = name, paths, world
        self.heard: list[Any] = []

    def join(self) -> None:
        self.world.take(frames.NodeHello(self.name, version=__version__), self)
        Keys(self.paths.root).proof(self.name).write_text("mine")
        self.say(frames.Joined([Device(f"{self.name}/cpu:0", "", 0)], "mine"))
        self.say(frames.Reconciled())

    def hear(self, decode: Any, say: Any) -> None:
        self.say = say

    def send(self, frame: Any) -> bool:
        self.heard.append(frame)
        return True

    def be_client(self) -> None: ...

    def close(self) -> None: ...

    def told(self, kind: type) -> list[Any]:
        commands = [frame.read() for frame in self.heard if isinstance(frame, frames.Do)]
        return [found for found in (*self.heard, *commands) if isinstance(found, kind)]

    def ends(self, outcome: Any, step: int | None = None) -> None:
        end = TrialExited(at=0.0, trial=0, incarnation=1, outcome=outcome, step=step)
        for frame in frames.Happened.of([end]):
            self.say(frame)


class Cluster:
    """A way to nodes of one device each."""

    def __init__(self, paths: ExperimentPaths, world: World) -> None:
        self.world = world
        self.lines = {name: Line(name, paths, world) for name in NODES}

    def nodes(self) -> list[NodeOffer]:
        for line in self.lines.values():
            if not line.heard:
                self.world.after(0.0, line.join)
        return [NodeOffer(name, "127.0.0.1", "cpu:1") for name in self.lines]

    def interrupt(self) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def made(tmp_path: Path) -> Iterator[tuple[ClusterExecutor, Cluster]]:
    world, paths = World(1), ExperimentPaths(tmp_path)
    private_folder(paths.trials)
    cluster = Cluster(paths, world)
    recipe: Any = Recipe()
    hub: Any = world
    helper: Any = AtOnce()
    setting = Setting(paths=paths, recipe=recipe, hub=hub, clock=lambda: world.now)
    executor = ClusterExecutor(setting, cluster, 5.0, helper)
    yield executor, cluster
    executor.close()


@pytest.fixture
def spanning(made: tuple[ClusterExecutor, Cluster]) -> tuple[ClusterExecutor, dict[str, Line]]:
    """Trial 0 runs on all nodes, and its rank 0 on ``a``."""
    executor, cluster = made
    devices = tuple(device.id for device in executor.inventory())
    executor.execute(Launch(0, 1, devices, {}))
    return executor, cluster.lines


LAST_WORD = 7
"""Step of a last word."""


@pytest.mark.parametrize(
    ("ends", "told"),
    [
        ({"b": "finished", "c": "failed", "a": "killed"}, "failed"),
        ({"b": "finished", "c": "finished", "a": "killed"}, "killed"),
        ({"b": "finished", "c": "lost", "a": "failed"}, "lost"),
        ({"a": "finished", "b": "failed", "c": "killed"}, "failed"),
        ({"a": "finished", "b": "killed", "c": "finished"}, "killed"),
        ({"a": "finished", "b": "finished", "c": "finished"}, "finished"),
    ],
)
def test_the_gravest_end_of_a_part_is_the_trials(
    spanning: tuple[ClusterExecutor, dict[str, Line]], ends: dict[str, str], told: str
) -> None:
    """The ranks of a part that left by themselves made a success of a trial that was killed, or failed elsewhere."""
    executor, lines = spanning
    for node, outcome in ends.items():
        assert executor.poll(0.0) == []
        lines[node].ends(outcome)
    (end,) = executor.poll(0.0)
    assert isinstance(end, TrialExited)
    assert end.outcome == told


def test_a_last_word_of_rank_0_decides(
    spanning: tuple[ClusterExecutor, dict[str, Line]],
) -> None:
    executor, lines = spanning
    lines["b"].ends("failed")
    assert [len(lines[node].told(Kill)) for node in NODES] == [1, 0, 1]
    lines["a"].ends("yielded", LAST_WORD)
    lines["c"].ends("killed")
    (end,) = executor.poll(0.0)
    assert isinstance(end, TrialExited)
    assert (end.outcome, end.step) == ("yielded", LAST_WORD)


def test_a_node_that_is_back_does_not_replace_a_fence(
    spanning: tuple[ClusterExecutor, dict[str, Line]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trial was told of, and launched elsewhere, while nothing kept the lost incarnation from writing."""
    executor, lines = spanning
    refused: list[Path] = []

    def refuse(fence: Path, _incarnation: int) -> None:
        refused.append(fence)
        raise OSError(errno.EROFS, "Read-only file system")

    with monkeypatch.context() as disk:
        disk.setattr("gpusched.executors.cluster.executor.write_fence", refuse)
        lines["a"].say(frames.Cannot("the machine restarts"))
        for name in "bc":
            lines[name].ends("killed")
        lines["a"].join()
        assert executor.members.nodes["a"].state == "up"
        assert not [event for event in executor.poll(0.0) if isinstance(event, TrialExited)]
    (end,) = executor.poll(executor.now() + 2.0)
    assert isinstance(end, TrialExited)
    assert (end.outcome, end.error) == ("lost", "node a was lost")
    assert read_fence(refused[0]) == 1
