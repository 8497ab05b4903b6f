"""A whole search through the command line, whose daemon is killed."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gpu_parts.box import SCRIPT, Failed

KILLED_FOR_S = 2.0


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
