"""One live executor on CPU slots, with one warm server, for all tests of this folder that launch."""

from __future__ import annotations

import itertools
import json
import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from gpusched.core.commands import Kill, Launch
from gpusched.core.events import TrialExited
from gpusched.devices.choose import CpuDevices
from gpusched.errors import GpuschedError
from gpusched.executors.hub import Hub
from gpusched.executors.live import Setting
from gpusched.executors.local import executor as local
from gpusched.executors.local.executor import Shared, TorchrunExecutor
from gpusched.folder.paths import ExperimentPaths
from gpusched.processes.claim import read_claim
from gpusched.recipe.recipe import Recipe
from tests.executors.contract import Rig, exit_of, the_exit
from tests.rig import by_incarnation, end_all, marked, wait_until

SCRIPT = Path(__file__).with_name("scenarios.py")
local.LOST_LAUNCH_S = 0.2  # shims are killed here as soon as they live


def of_trial(folder: Path, trial: int) -> list[int]:
    """Every process that carries the mark of the trial's first incarnation."""
    return by_incarnation(folder).get((trial, 1), [])


def listening_addresses(pids: Sequence[int]) -> set[str]:
    """Return where these processes listen, over all protocols of the internet, as /proc/net writes it."""
    inodes = set()
    for pid in pids:
        with suppress(OSError):  # it may end while it is looked at, or close a descriptor
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):
                    inodes.add(str(entry.readlink()).removeprefix("socket:[").rstrip("]"))
    found = set()
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[9] in inodes and (words[3] == "0A" or table.startswith("udp")):
                found.add(words[1].partition(":")[0])
    return found


def wait_for(path: Path) -> Any:
    """Return what a scenario's ``note`` left, or another file that is there whole or not at all."""
    wait_until(path.exists)
    return json.loads(path.read_text())


def recipe(folder: Path, **keys: Any) -> Recipe:
    """Of a script in a folder; ``keys`` replace the defaults."""
    needed = {"name": "lab", "deadline_s": 3600.0, "space": {}, "metric": "accuracy"}
    return Recipe(**{**needed, "script": SCRIPT, "cwd": folder, **keys})


class Lab:
    """A folder and the executor on it; ``close`` and ``build`` stand for a daemon that was killed and resumed."""

    def __init__(self, folder: Path, devices: CpuDevices | None = None, **settings: Any) -> None:
        self.folder = folder
        self.devices = devices or CpuDevices(4)
        self.paths = ExperimentPaths(folder)
        (folder / "worker.json").write_text(json.dumps({"metric": "accuracy", "seed": 0}))
        self.recipe = recipe(folder, **settings)
        self.numbers = itertools.count()
        self.said: list[str] = []
        self.began_s = time.monotonic()
        self.executor = self.build()

    def build(self, **more: Any) -> TorchrunExecutor:
        self.hub = Hub(self.paths.socket)
        try:
            setting = Setting(
                paths=self.paths,
                recipe=self.recipe,
                hub=self.hub,
                clock=lambda: time.monotonic() - self.began_s,
                say=self.said.append,
                **more,
            )
            return TorchrunExecutor(setting, self.devices)
        except GpuschedError:
            self.hub.close()
            raise

    def close(self) -> None:
        self.executor.close()
        self.hub.close()

    @property
    def shared(self) -> Shared:
        return self.executor.shared

    @property
    def rig(self) -> Rig:
        return Rig(self.executor, lambda: next(self.numbers), train)

    def end_of(self, incarnation: int) -> TrialExited:
        """Launch the recipe's script as trial 0; return how it ends."""
        self.executor.execute(Launch(0, incarnation, self.rig.devices[:1], {}))
        return the_exit(self.rig.run(0), 0)

    def trial_folder(self, trial: int) -> Path:
        return self.paths.trial(trial).root

    def logs(self, trial: int) -> Path:
        return self.paths.trial(trial).logs(1)

    def left_of(self, trial: int) -> list[int]:
        """Return the processes left of a first incarnation beside its shim, which may be writing its last lines."""
        claim = read_claim(self.paths.trial(trial).shim(1))
        shim = claim.shim.pid if claim is not None and claim.shim is not None else None
        return [pid for pid in of_trial(self.folder, trial) if pid != shim]

    def clean(self) -> None:
        """End everything that is left, whatever it is."""
        self.close()
        end_all(lambda: marked(self.folder))
        shutil.rmtree(self.folder, ignore_errors=True)


MakeLab = Callable[..., Lab]


@pytest.fixture
def own_lab(tmp_path: Path) -> Iterator[MakeLab]:
    """Make a lab with a server of its own in the test's folder; it is ended with the test."""
    with ExitStack() as labs:

        def make(folder: Path = tmp_path, **settings: Any) -> Lab:
            lab = Lab(folder, **settings)
            labs.callback(lab.clean)
            return lab

        yield make


def train(steps: int, **more: object) -> Mapping[str, object]:
    return {"scenario": "train", "steps": steps, **more}


@pytest.fixture(scope="session")
def shared_lab() -> Iterator[Lab]:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))  # as most machines are installed
    lab = Lab(Path(tempfile.mkdtemp(prefix="gpusched-lab-")))
    yield lab
    lab.clean()


@pytest.fixture
def lab(shared_lab: Lab) -> Iterator[Lab]:
    """The shared one; whatever a test leaves running is ended and is the test's fault."""
    yield shared_lab
    executor = shared_lab.executor
    for trial, incarnation in list(shared_lab.shared.current.items()):
        executor.execute(Kill(trial, incarnation.number, 0.0))
        shared_lab.rig.watch(exit_of(trial))


@pytest.fixture
def rig(lab: Lab) -> Rig:
    return lab.rig
