"""Frames from the daemon's socket are not trusted: hostile ones go through the real hub to the journal's codec."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpusched.core.events import DevicesReleased, Event, QuarantineChanged
from gpusched.devices.base import DeviceRemark, Quarantined, Readmitted, Released
from gpusched.devices.choose import CpuDevices
from gpusched.executors.hub import Hub
from gpusched.executors.live import Setting
from gpusched.executors.local.executor import TorchrunExecutor
from gpusched.executors.local.incarnation import Incarnation
from gpusched.executors.local.launching import Server
from gpusched.folder.paths import ExperimentPaths
from gpusched.journal.rows import event_body
from gpusched.protocol import (
    Exit,
    Exited,
    Frame,
    RankError,
    RankHello,
    Report,
    Saved,
    ShimHello,
    encode,
)
from tests.executors.conftest import recipe
from tests.executors.test_hub import connect, is_closed

HOSTILE = [
    *("NaN", "Infinity", "-Infinity", "1e999", "1" * 400, "-" + "1" * 400, "1" * 5000, "1e308"),
    *("true", "null", '"7"', '"nan"', "[]", "{}", "-1", "0.5", str(2**53), str(2**64), "0"),
]
HELLO = {"rank": RankHello(3, 1), "shim": ShimHello(3, 1, 1, 5)}
RECORD = Exit("failed", 3, 2, {"0": 1}, RankError("m", 0, "t", 1))


class Daemon:
    """The hub and an executor with one incarnation; every event as the journal would write it."""

    def __init__(self, folder: Path) -> None:
        paths = ExperimentPaths(folder)
        self.said: list[str] = []
        self.hub = Hub(folder / "daemon.sock")
        setting = Setting(
            paths=paths,
            recipe=recipe(folder),
            hub=self.hub,
            clock=lambda: 9.0,
            say=self.said.append,
        )
        executor = TorchrunExecutor(setting, CpuDevices(1))
        self.events: list[Event] = []
        self.executor = executor
        executor.shared.emit = self._emit
        executor._end = executor.shared.end = lambda _, ending=None: ending and self._emit(ending)
        self.trial = Incarnation(executor.shared, 3, 1, ("cpu:0",), paths.trial(3))
        executor.shared.current[3] = self.trial

    def _emit(self, event: Event) -> None:
        json.loads(event_body(event), parse_constant=pytest.fail)
        self.events.append(event)


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    monkeypatch.setattr(Server, "want", lambda _self: None)
    daemon = Daemon(tmp_path)
    yield daemon
    daemon.hub.close()


def numbers_of(frame: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Where the numbers of a frame stand."""
    for key, value in frame.items():
        if isinstance(value, dict):
            yield from numbers_of(value, (*path, key))
        elif isinstance(value, int | float):
            yield (*path, key)


def spoilt(frame: dict[str, Any]) -> Iterator[bytes]:
    """The frame with each of its numbers replaced by each hostile value."""
    for path in numbers_of(frame):
        changed = copy.deepcopy(frame)
        inner = changed
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = "HERE"
        for value in HOSTILE:
            yield json.dumps(changed).replace('"HERE"', value).encode() + b"\n"


@pytest.mark.parametrize(
    ("who", "frame"),
    [
        ("rank", HELLO["rank"]),
        ("rank", Report(1, 1, 1, 0.5, {"accuracy": 0.5, "loss": 2})),
        ("rank", Saved(1, 0.5, 100)),
        ("shim", HELLO["shim"]),
        ("shim", Exited(RECORD)),
    ],
)
def test_no_number_of_a_frame_ends_the_daemon(daemon: Daemon, who: str, frame: Frame) -> None:
    hello = b"" if frame in HELLO.values() else encode(HELLO[who])
    for data in spoilt(json.loads(encode(frame))):
        daemon.trial.last_seq, daemon.trial.fault, daemon.trial.shim = 0, None, None
        with connect(daemon.hub.path) as line:
            line.sendall(hello + data)
            for _ in range(4):
                daemon.hub.turn(0.0)
    with connect(daemon.hub.path) as line:
        line.sendall(encode(HELLO["rank"]))
        assert not is_closed(daemon.hub, line)


def test_events_of_devices_are_the_cores(daemon: Daemon) -> None:
    for event in (Released(("a", "b")), Quarantined("a", "lost"), Readmitted("b")):
        daemon.executor.emit(event)
    daemon.executor.emit(DeviceRemark("no GPU error events"))
    assert daemon.executor.poll(9.0) == [
        DevicesReleased(at=9.0, devices=("a", "b")),
        QuarantineChanged(at=9.0, device="a", reason="lost"),
        QuarantineChanged(at=9.0, device="b"),
    ]
    assert daemon.said == ["no GPU error events"]
