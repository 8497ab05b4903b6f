"""Whole experiments, by the real command line, on a box of two scripted GPUs (``gpubox``)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpusched.processes.identity import all_pids, read_file
from tests.e2e.sandbox import Result, Sandbox
from tests.rig import end_all, wait_until

BOX = Path(__file__).with_name("gpubox")
GPUS = ("GPU-0a00-beef", "GPU-1a00-beef")
FOR_LONG: dict[str, Any] = {"policy": {"name": "fifo", "R": 100000}, "max_trials": 50}


def make_gpus(root: Path) -> dict[str, str]:
    """Make the box; return the environment in which it is found."""
    for name in GPUS:
        (root / "box" / name).mkdir(parents=True)
    root.chmod(0o700)
    return {
        "GPU_BOX": str(root / "box"),
        "PYTHONPATH": os.pathsep.join([str(BOX), os.environ.get("PYTHONPATH", "")]),
        "XDG_STATE_HOME": str(root / "state"),
    }


class Boxed(Sandbox):
    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.box = root / "box"
        self.env = {**make_gpus(root), "GPUSCHED_TETHER_S": "2"}

    def asks(self, *words: str | Path) -> Result:
        return self.gpusched(*words, **self.env)

    def search(self, name: str, *words: str, **keys: Any) -> Result:
        recipe = self.recipe(str(BOX / "train.py"), **{"devices": "auto", **keys})
        return self.asks("run", recipe.rename(self.root / f"{name}.yaml"), *words)

    def begin(self, name: str, **keys: Any) -> dict[str, Any]:
        """Leave a search that goes on for long to its daemon."""
        result = self.search(name, "--detach", "--json", **{**FOR_LONG, **keys})
        assert result.code == 0, result.text + self.log()
        answer: dict[str, Any] = result.json()
        return answer

    def until(self, name: str, condition: Callable[[Any], Any]) -> Any:
        def holds() -> Any:
            result = self.asks("status", name, "--json")
            return result.code == 0 and condition(view := result.json()) and view

        return wait_until(holds, lambda: f"{name}: {self.asks('status', name).text}\n{self.log()}")

    def shown(self) -> list[Any]:
        """Return what ``gpus --json`` prints."""
        return [json.loads(line) for line in self.asks("gpus", "--json").out.splitlines()]

    def end(self) -> None:
        """Kill all that is left."""
        mark = f"GPU_BOX={self.box}".encode()

        def left() -> list[int]:
            environs = {pid: read_file(f"/proc/{pid}/environ") or b"" for pid in all_pids()}
            return [pid for pid, environ in environs.items() if mark in environ.split(b"\0")]

        end_all(left)


@pytest.fixture
def boxed(tmp_path: Path) -> Iterator[Boxed]:
    made = Boxed(tmp_path)
    yield made
    made.end()


def running_on(view: Any) -> dict[str, int]:
    """Return the trial that holds each device, where it has reported."""
    held = {d["id"]: d["trial"] for d in view["devices"] if d["state"] == "held"}
    steps = {trial["id"]: trial["step"] for trial in view["trials"]}
    return {device: trial for device, trial in held.items() if steps.get(trial, 0) > 0}


def state_of(view: Any, device: str) -> tuple[str, str]:
    (found,) = [one for one in view["devices"] if one["id"] == device]
    return found["state"], found["reason"]
