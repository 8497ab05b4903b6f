"""Whole searches through the command line: two trials that take turns on one device, and a CIFAR-10-shaped run."""

from __future__ import annotations

import json
import os
import pickle
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gpu_parts.box import SCRIPT, Failed, spread
from gpusched.core.events import Reported
from gpusched.journal.rows import event_from

RECIPES = Path(__file__).resolve().parents[2] / "recipes"
#: Seconds to switch from one VGG19 job to another on one GPU: Hermes (Electronics 2021), figure 7.
HERMES_VGG19_S = 1.57
KILLED_FOR_S = 2.0


def run(folder: Path, recipe: Path, device: str, *options: str, timeout_s: float) -> Path:
    """Run a recipe to its end; the experiment's folder. Raises Failed."""
    command = [sys.executable, "-m", "gpusched", "run", str(recipe), "--json"]
    command += ["--devices", device, "--dir", str(folder / "runs"), *options]
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=timeout_s
        )
    except subprocess.TimeoutExpired:
        end = [sys.executable, "-m", "gpusched", "cancel", "--dir", str(folder / "runs")]
        subprocess.run(end, capture_output=True, timeout=60, check=False)
        raise Failed(f"gpusched run did not end within {timeout_s:.0f} s") from None
    if done.returncode:
        raise Failed(f"gpusched run: exit code {done.returncode}: {done.stderr.strip()[-500:]}")
    (experiment,) = (folder / "runs").iterdir()
    return experiment


def turns(
    *, device: str, rows: int, quantum_s: float, deadline_s: float
) -> Iterator[dict[str, Any]]:
    """Policy ``hermes`` on one device: what every switch from one trial to another that was preempted before costs."""
    recipe = {
        "script": str(SCRIPT),
        "metric": "loss",
        "mode": "min",
        "deadline": f"{deadline_s:g}s",
        "space": {"rows": rows, "step_s": 0.1, "lr": {"uniform": [0, 1]}},
        "policy": {"name": "hermes", "quantum_s": quantum_s, "R": 100000, "growth": 1.0},
        "max_trials": 2,
    }
    with tempfile.TemporaryDirectory(prefix="gpusched-check-") as name:
        folder = Path(name)
        (folder / "turns.yaml").write_text(json.dumps(recipe))
        path = run(folder, folder / "turns.yaml", device, timeout_s=deadline_s + 60)
        found = switches(path / "journal.db")
    yield {
        "part": "turns",
        "policy": "hermes",
        "state_mb": round(rows * 4096 / 1e6),
        **{name: spread(values) for name, values in found.items()},
        "paper_vgg19_s": HERMES_VGG19_S,
    }


def killed(*, device: str, deadline_s: float) -> Iterator[dict[str, Any]]:
    """Kill the daemon of a real search and resume it: what goes on, what is lost, and what the search then finds."""
    recipe = {
        "script": str(SCRIPT),
        "metric": "loss",
        "mode": "min",
        "deadline": f"{deadline_s:g}s",
        "space": {"rows": {"choice": [256, 1024]}, "step_s": 0.1, "lr": {"uniform": [0, 1]}},
        "policy": {"name": "hypersched", "R": 100000},
    }
    with tempfile.TemporaryDirectory(prefix="gpusched-check-") as name:
        folder = Path(name)
        (folder / "search.yaml").write_text(json.dumps(recipe))
        _command(folder, "run", "search.yaml", "--detach", "--devices", device)
        before = _until(folder, lambda view: any(trial["step"] >= 5 for trial in view["trials"]))
        os.kill(before["daemon_pid"], signal.SIGKILL)
        began = time.monotonic()
        time.sleep(KILLED_FOR_S)
        _command(folder, "resume", "--detach")
        steps = {trial["id"]: trial["step"] for trial in before["trials"]}
        resumed = _until(
            folder, lambda view: any(t["step"] > steps.get(t["id"], 0) for t in view["trials"])
        )
        back_s = time.monotonic() - began - KILLED_FOR_S
        live = {t["id"]: t["incarnation"] for t in before["trials"] if t["state"] == "running"}
        same = {t["id"] for t in resumed["trials"] if live.get(t["id"]) == t["incarnation"]}
        over = _until(folder, lambda view: view["state"] == "finished", deadline_s + 60)
        (journal,) = (folder / "runs").glob("*/journal.db")
        yield {
            "part": "search",
            "ran_when_killed": len(live),
            "went_on": len(same),
            "heard_again_s": round(back_s, 2),
            "reports_lost": _gaps(journal),
            "trials": len(over["trials"]),
            "best": over["best"]
            and {key: over["best"][key] for key in ("trial", "step", "metric")},
        }


def _command(folder: Path, *words: str) -> str:
    """Run a command of gpusched in this folder; its output. Raises Failed."""
    command = [sys.executable, "-m", "gpusched", *words, "--dir", str(folder / "runs")]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    if done.returncode:
        raise Failed(
            f"gpusched {words[0]}: exit code {done.returncode}: {done.stderr.strip()[-500:]}"
        )
    return done.stdout


def _until(folder: Path, holds: Callable[[Any], bool], patience_s: float = 120.0) -> Any:
    """Ask for the status of the search until this holds. Raises Failed."""
    until = time.monotonic() + patience_s
    while time.monotonic() < until:
        view = json.loads(_command(folder, "status", "--json"))
        if holds(view):
            return view
        time.sleep(0.2)
    raise Failed(f"the search did not come so far within {patience_s:.0f} s")


def _gaps(journal: Path) -> int:
    """Count reports that the journal lacks: numbers left out between a trial's first and last."""
    connection = sqlite3.connect(journal)
    rows = connection.execute("SELECT body FROM events WHERE kind = 'Reported'").fetchall()
    connection.close()
    told: dict[int, set[int]] = {}
    for (text,) in rows:
        body = json.loads(text)
        told.setdefault(body["trial"], set()).add(body["report"]["n"])
    return sum(max(numbers) - len(numbers) for numbers in told.values())


def switches(journal: Path) -> dict[str, list[float]]:
    """From a journal: seconds from a trial's last report to the first of the next one's, and the parts of that.

    Only where the next one had been preempted and is restored. The step it makes before it reports is not counted.
    Raises Failed where there is no such turn.
    """
    connection = sqlite3.connect(journal)
    rows = connection.execute("SELECT at, kind, body FROM events ORDER BY seq").fetchall()
    connection.close()
    found: dict[str, list[float]] = {
        "save_and_leave_s": [],
        "release_s": [],
        "start_and_restore_s": [],
        "whole_s": [],
    }
    last: tuple[int, int] = (-1, -1)
    last_at = exited_at = released_at = 0.0
    for at, kind, body in rows:
        if kind == "TrialExited":
            exited_at = at
        elif kind == "DevicesReleased":
            released_at = at
        elif kind == "Reported":
            event = event_from(kind, at, body)
            assert isinstance(event, Reported)
            who = (event.trial, event.incarnation)
            if last[0] not in (-1, who[0]) and who != last and who[1] > 1:
                step_s = event.report.step_time_s or 0.0
                found["save_and_leave_s"].append(exited_at - last_at)
                found["release_s"].append(released_at - exited_at)
                found["start_and_restore_s"].append(at - step_s - released_at)
                found["whole_s"].append(at - step_s - last_at)
            last, last_at = who, at
    if not found["whole_s"]:
        incarnations = sum(kind == "TrialExited" for _, kind, _ in rows)
        raise Failed(
            f"no trial that had been preempted was restored in {rows[-1][0]:.0f} s, and {incarnations} launches ended: "
            f"launches take too long here for their turns; look at `--only starts`, or measure on an idle machine"
        )
    return found


def cifar10(
    *, device: str, images_a_file: int, model: str, deadline_s: float
) -> Iterator[dict[str, Any]]:
    """Recipe ``cifar10`` on made images of CIFAR-10's shape: steps a second, and what the search made of its time."""
    with tempfile.TemporaryDirectory(prefix="gpusched-check-") as name:
        folder = Path(name)
        make_images(folder / "data", images_a_file)
        sets = {"space.data": str(folder / "data"), "space.model": model, "policy.r": "1"}
        options = [word for key, value in sets.items() for word in ("--set", f"{key}={value}")]
        path = run(
            folder,
            RECIPES / "cifar10.yaml",
            device,
            "--deadline",
            f"{deadline_s:g}s",
            *options,
            timeout_s=deadline_s + 120,
        )
        view = json.loads((path / "final.json").read_text())
    trials = view["trials"]
    epochs = [trial["step_time_s"] for trial in trials if trial["step_time_s"]]
    yield {
        "part": "cifar10",
        "model": model,
        "images": 5 * images_a_file,
        "deadline_s": deadline_s,
        "trials": len(trials),
        "epochs": sum(trial["step"] for trial in trials),
        "epoch_s": spread(epochs, f"no epoch ended within {deadline_s:g} s: give --search-seconds"),
        "best": view["best"] and {key: view["best"][key] for key in ("trial", "step", "metric")},
    }


def make_images(folder: Path, images_a_file: int) -> None:
    """``cifar-10-batches-py`` with noise whose brightness tells the class."""
    import numpy as np

    chance = np.random.default_rng(0)
    inner = folder / "cifar-10-batches-py"
    inner.mkdir(parents=True)
    labels = [number % 10 for number in range(images_a_file)]
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        pixels = chance.integers(0, 60, (images_a_file, 3072), dtype=np.uint8)
        pixels += (18 * np.arange(images_a_file, dtype=np.uint8) % 10)[:, None]
        pixels += np.array(labels, np.uint8)[:, None] * 15
        (inner / name).write_bytes(pickle.dumps({b"data": pixels, b"labels": labels}, protocol=4))
