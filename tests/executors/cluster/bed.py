"""A cluster of two nodes on this machine, and the ways in which it goes wrong."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from gpusched.driver.assemble import Beginning, write_recipe
from gpusched.errors import GpuschedError
from gpusched.executors.base import LiveTrial
from gpusched.executors.cluster.bootstrap import bootstrap_for
from gpusched.executors.cluster.executor import ClusterExecutor
from gpusched.executors.cluster.line import home_of
from gpusched.executors.cluster.nodes import JoinedNode
from gpusched.executors.hub import Hub
from gpusched.executors.live import Setting
from gpusched.folder.files import private_folder
from gpusched.folder.paths import ExperimentPaths
from gpusched.recipe.load import load_recipe
from tests.executors.contract import Rig
from tests.rig import marked

TRAIN = """\
import time
import gpusched

trial = gpusched.init()
trial.track()
hp = trial.hparams
for step in trial.steps(hp.steps):
    if step + 1 == hp.fails_at:
        raise ValueError("wrong")
    time.sleep(hp.pause_s)
    trial.report(accuracy=0.1 * step)
"""


def train(steps: int, *, fails_at: int = 0, pause_s: float = 0.01) -> dict[str, object]:
    return {"steps": steps, "fails_at": fails_at, "pause_s": pause_s}


class Bed:
    """An experiment's folder, its executor, and the processes of its nodes."""

    def __init__(self, folder: Path, address: str = "local:2x2", lost_s: float = 10.0) -> None:
        self.paths = ExperimentPaths(folder)
        (folder / "train.py").write_text(TRAIN)
        recipe = {"script": "train.py", "metric": "accuracy", "deadline": "1h", "cluster": address}
        recipe["node_patience"] = f"{lost_s}s"
        recipe["preload"] = []
        recipe["policy"] = {"name": "asha", "R": 1_000_000}  # no trial ends by itself
        recipe["space"] = {name: {"uniform": [0, 1]} for name in train(1)}
        (folder / "recipe.in.yaml").write_text(json.dumps(recipe))
        self.recipe = load_recipe(folder / "recipe.in.yaml")
        private_folder(self.paths.trials)
        write_recipe(self.paths, self.recipe, Beginning.now())
        self.paths.worker.write_text(json.dumps(self.recipe.worker_settings(4)))
        self.said: list[str] = []
        self.numbers = itertools.count()
        self.epoch = 0
        self._crashed: list[ClusterExecutor] = []
        self._began_s = time.monotonic()
        self.executor = self.build()
        try:
            self.executor.inventory()
        except GpuschedError:
            self.close()
            raise

    def build(self, devices: tuple[str, ...] = ()) -> ClusterExecutor:
        self.epoch += 1
        self.hub = Hub(self.paths.socket)
        setting = Setting(
            paths=self.paths,
            recipe=self.recipe,
            hub=self.hub,
            clock=lambda: time.monotonic() - self._began_s,
            epoch=self.epoch,
            say=self.said.append,
            refused=lambda: self.said.append("the disk refused"),
            devices=devices,
        )
        way = bootstrap_for(self.recipe, self.paths.root, self.said.append)
        made = ClusterExecutor(setting, way)
        made.members.look_every_s = 0.5
        self.rig = Rig(made, lambda: next(self.numbers), train)
        return made

    def node(self, name: str) -> JoinedNode:
        return self.executor.members.nodes[name]

    def cut(self, name: str) -> None:
        """Break the line of a node, as a network does: neither side has said anything."""
        self.node(name).peer.close()

    def home(self, node: str) -> Path:
        return home_of(self.paths.root, node)

    def node_pids(self, node: str | None = None) -> list[int]:
        """The processes of nodes, of one or all."""
        found = []
        for process in psutil.process_iter(["cmdline"]):
            words = process.info["cmdline"] or []
            if str(self.paths.root) in words and (node is None or node in words):
                found.append(process.pid)
        return found

    def all_pids(self, node: str) -> list[int]:
        """Every process of a node: its own, its warm server, its shims and ranks."""
        return [*{*self.node_pids(node), *marked(self.home(node))}]

    def signal(self, pids: Iterable[int], number: int) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def lines(self, trial: int) -> list[tuple[int, int]]:
        """(incarnation, step) of every line of a trial's reports, in the order of the file."""
        text = self.paths.trial(trial).reports.read_text()
        return [(line["i"], line["k"]) for line in map(json.loads, text.splitlines())]

    def crash(self) -> None:
        """Let go of everything as a killed daemon would: nobody is told."""
        for node in self.executor.members.nodes.values():
            node.hang_up()
        self.executor.members._listener.close()
        self.hub.close()
        self._crashed.append(self.executor)

    def resume(self, *live: LiveTrial) -> list[Any]:
        """A daemon that takes over."""
        devices = tuple(device.id for device in self.executor.inventory())
        self.executor = self.build(devices)
        self.executor.inventory()
        return list(self.executor.reconcile(live))

    def close(self) -> None:
        for node in self.executor.members.nodes:  # a node waits for trials that live
            self.signal(marked(self.home(node)), signal.SIGKILL)
        self.executor.close()
        self.hub.close()
        for node in self.executor.members.nodes:
            self.signal(self.all_pids(node), signal.SIGKILL)
            shutil.rmtree(self.home(node), ignore_errors=True)
        for executor in self._crashed:
            executor.close()
