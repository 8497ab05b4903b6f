"""One executor on one device: launch a trial, end it, wait until its device is confirmed free, and time it all."""

from __future__ import annotations

import itertools
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpusched.core.commands import ConfirmRelease, Kill, Launch, Yield
from gpusched.core.events import (
    CheckpointSaved,
    DevicesReleased,
    Event,
    QuarantineChanged,
    Reported,
    TrialExited,
)
from gpusched.devices.base import Devices
from gpusched.devices.choose import CpuDevices
from gpusched.executors.hub import Hub
from gpusched.executors.live import Setting
from gpusched.executors.local.executor import TorchrunExecutor
from gpusched.folder.paths import ExperimentPaths
from gpusched.recipe.recipe import Recipe

SCRIPT = Path(__file__).with_name("trial.py")
PATIENCE_S = 120.0


class Failed(Exception):
    """A part could not be measured; the text says why."""


def devices_of(folder: Path, device: str) -> Devices:
    """``cpu:N`` slots, or the GPUs of these UUIDs."""
    kind, _, slots = device.partition(":")
    if kind == "cpu":
        return CpuDevices(int(slots))
    from gpusched.devices.cuda import CudaDevices

    return CudaDevices(device, experiment=folder)


class Box:
    """Use as a context manager: at the end nothing of it is left."""

    def __init__(
        self,
        *,
        device: str,
        launch: Any = "warm",
        hparams: Mapping[str, object],
        script: Path = SCRIPT,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="gpusched-check-"))
        (self.folder / "worker.json").write_text(json.dumps({"metric": "loss", "seed": 0}))
        self.paths = ExperimentPaths(self.folder)
        self.hparams = dict(hparams)
        recipe = Recipe(
            name="check",
            script=script,
            cwd=self.folder,
            env=env or {},
            deadline_s=3600.0,
            metric="loss",
            space={},
            launch=launch,
        )
        devices = devices_of(self.folder, device)
        self.hub = Hub(self.paths.socket)
        setting = Setting(paths=self.paths, recipe=recipe, hub=self.hub, clock=time.monotonic)
        self.executor = TorchrunExecutor(setting, devices)
        #: What the next launch gets.
        self.devices = tuple(device.id for device in self.executor.inventory() if device.usable)
        self._numbers = itertools.count()
        self._running: dict[int, int] = {}

    def __enter__(self) -> Box:
        return self

    def __exit__(self, *_: object) -> None:
        for trial, incarnation in list(self._running.items()):
            self.executor.execute(Kill(trial, incarnation, 0.0))
            self.wait(
                lambda event, trial=trial: isinstance(event, TrialExited) and event.trial == trial
            )
        self.executor.close()
        self.hub.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    # ------------------------------------------------------------ doing

    def launch(self, **hparams: object) -> int:
        """A new trial; returns at once."""
        trial = next(self._numbers)
        self.relaunch(trial, 1, **hparams)
        return trial

    def relaunch(self, trial: int, incarnation: int, **hparams: object) -> None:
        self._running[trial] = incarnation
        given = {**self.hparams, **hparams}
        self.executor.execute(Launch(trial, incarnation, self.devices, given))

    def wait(self, until: Callable[[Event], bool], *, answer: bool = True) -> Event:
        """The event waited for; reports before it are answered, and it as well if ``answer``."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            found = None
            for event in self.executor.poll(end):
                if isinstance(event, TrialExited):
                    self._running.pop(event.trial, None)
                if found is None and until(event):
                    found = event
                if isinstance(event, Reported) and (answer or event is not found):
                    self.executor.acknowledge(event)
                if isinstance(event, TrialExited) and event.outcome == "failed" and found is None:
                    raise Failed(f"the trial failed: {(event.error or '').partition(chr(10))[0]}")
            if found is not None:
                return found
        raise Failed(f"nothing happened for {PATIENCE_S:.0f} s")

    def first_report(self, trial: int, incarnation: int = 1, *, answer: bool = True) -> Reported:
        event = self.wait(
            lambda e: isinstance(e, Reported) and (e.trial, e.incarnation) == (trial, incarnation),
            answer=answer,
        )
        assert isinstance(event, Reported)
        return event

    def exit(self, trial: int) -> TrialExited:
        event = self.wait(lambda e: isinstance(e, TrialExited) and e.trial == trial)
        assert isinstance(event, TrialExited)
        return event

    def leave(self, trial: int, report: Reported, *, save: bool) -> tuple[TrialExited, float]:
        """Let it yield at this report, which waits for its answer; how it ended, and what saving cost in seconds."""
        self.executor.execute(Yield(trial, report.incarnation, save))
        self.executor.acknowledge(report)
        saved: list[float] = []

        def ended(event: Event) -> bool:
            if isinstance(event, CheckpointSaved):
                saved.append(event.save_s)
            return isinstance(event, TrialExited) and event.trial == trial

        event = self.wait(ended)
        assert isinstance(event, TrialExited)
        return event, sum(saved)

    def release(self) -> float:
        """Seconds until the device is confirmed to be free. Raises Failed where it is quarantined."""
        began_s = time.monotonic()
        self.executor.execute(ConfirmRelease(self.devices))
        event = self.wait(lambda e: isinstance(e, DevicesReleased | QuarantineChanged))
        if isinstance(event, QuarantineChanged):
            raise Failed(f"{event.device} was quarantined: {event.reason}")
        return time.monotonic() - began_s

    def note(self, trial: int, name: str, incarnation: int = 1) -> dict[str, Any]:
        """Return what the script wrote down."""
        path = self.paths.trial(trial).root / f"{name}-{incarnation}.json"
        end = time.monotonic() + PATIENCE_S
        while not path.exists():
            if time.monotonic() > end:
                raise Failed(f"{path.name} did not appear")
            self._idle()
        found: dict[str, Any] = json.loads(path.read_text())
        return found

    def _idle(self) -> None:
        for event in self.executor.poll(time.monotonic() + 0.01):
            if isinstance(event, Reported):
                self.executor.acknowledge(event)


def spread(values: Sequence[float], why_none: str = "") -> dict[str, float | int]:
    """Return how seconds are distributed. Raises Failed, with the reason, where there are none."""
    ordered = sorted(values)
    if not ordered:
        raise Failed(f"nothing was measured{': ' * bool(why_none)}{why_none}")
    at = lambda share: ordered[min(len(ordered) - 1, int(share * len(ordered)))]  # noqa: E731
    return {
        "n": len(ordered),
        "min": round(ordered[0], 4),
        "median": round(statistics.median(ordered), 4),
        "p90": round(at(0.9), 4),
        "p99": round(at(0.99), 4),
        "max": round(ordered[-1], 4),
    }
