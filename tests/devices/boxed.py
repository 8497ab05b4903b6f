"""Whole experiments, by the real command line, on a box of scripted GPUs (``gpubox``)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpusched.processes.identity import all_pids, read_file
from tests.e2e.sandbox import Result, Sandbox
from tests.rig import end_all, wait_until

BOX = Path(__file__).with_name("gpubox")


def name_of(index: int) -> str:
    return f"GPU-{index}a00-beef"


class Boxed(Sandbox):
    """``gpus``: settings of each GPU, as ``gpu.json`` has them."""

    def __init__(self, root: Path, *gpus: dict[str, Any]) -> None:
        super().__init__(root)
        self.box = root / "box"
        for index, settings in enumerate(gpus):
            folder = self.box / name_of(index)
            folder.mkdir(parents=True)
            (folder / "gpu.json").write_text(json.dumps(settings))
        self.env = {
            "GPU_BOX": str(self.box),
            "PYTHONPATH": os.pathsep.join([str(BOX), os.environ.get("PYTHONPATH", "")]),
            "XDG_STATE_HOME": str(root / "state"),
            "GPUSCHED_TETHER_S": "2",
        }

    def asks(self, *words: str | Path, **more: str) -> Result:
        return self.gpusched(*words, **{**self.env, **more})

    def settings(self, **keys: Any) -> dict[str, Any]:
        return {"devices": "auto", **keys}

    def runs_to_its_end(self, name: str, environ: dict[str, str] | None = None, **keys: Any) -> Any:
        """``status --json`` of a whole run."""
        result = self.runs_it(name, environ, **keys)
        assert result.code == 0, result.text + self.log()
        return self.asks("status", name, "--json").json()

    def runs_it(
        self, name: str, environ: dict[str, str] | None = None, *words: str, **keys: Any
    ) -> Result:
        recipe = self.recipe(str(BOX / "train.py"), **self.settings(**keys))
        named = recipe.rename(self.root / f"{name}.yaml")
        return self.asks("run", named, *words, **(environ or {}))

    def begin(self, name: str, **keys: Any) -> dict[str, Any]:
        result = self.runs_it(name, None, "--detach", "--json", **keys)
        assert result.code == 0, result.text + self.log()
        answer: dict[str, Any] = result.json()
        return answer

    def until(self, name: str, condition: Callable[[Any], Any]) -> Any:
        def holds() -> Any:
            result = self.asks("status", name, "--json")
            return result.code == 0 and condition(view := result.json()) and view

        return wait_until(holds, lambda: f"{name}: {self.asks('status', name).text}\n{self.log()}")

    def ranks(self) -> list[dict[str, Any]]:
        """What the ranks of all trials so far have found, and forget it."""
        files = sorted(self.box.glob("rank-*.json"))
        found = [json.loads(file.read_text()) for file in files]
        for file in files:
            file.unlink()
        return found

    def end(self) -> None:
        """Kill all that is left."""
        mark = f"GPU_BOX={self.box}".encode()

        def left() -> list[int]:
            environs = {pid: read_file(f"/proc/{pid}/environ") or b"" for pid in all_pids()}
            return [pid for pid, environ in environs.items() if mark in environ.split(b"\0")]

        end_all(left)


def running_on(view: Any) -> dict[str, int]:
    """Which trial holds which device, where it has reported."""
    held = {d["id"]: d["trial"] for d in view["devices"] if d["state"] == "held"}
    steps = {trial["id"]: trial["step"] for trial in view["trials"]}
    return {device: trial for device, trial in held.items() if steps.get(trial, 0) > 0}


def state_of(view: Any, device: str) -> tuple[str, str]:
    (found,) = [one for one in view["devices"] if one["id"] == device]
    return found["state"], found["reason"]
