"""gpusched beside Ray Tune and Optuna: the same deadline, slots, space and steps; start-up counts.

    python scripts/bench_peers.py [--task charlm ..] [--deadline 60] [--seeds 3] [--only NAME ..] [--keep FILE]

Tasks train on two slots of a core each: ``charlm`` is a smaller ``recipes/charlm.yaml``, ``tabular``, ``digits300``,
``autoencoder`` and ``adding`` are in ``peers/small.py``; a minute does not exhaust them. A score is a loss, or a share
of errors, with its sign turned. ``gpusched-one-epoch`` trains 64 configurations for one step and the best to the end
(``papers/one_epoch.py``).

Every score is noted by the trial itself with its time; what counts is the best that was noted within the deadline from
the start of the tool's process. The tools take turns, so that a busy machine is busy for all. The others run in an
environment of their own, made on first use (``ray[tune]``, ``optuna``; torch is the one of this environment). Prints a
JSON line a run, then one a task and tool with the mean and its standard error, one a tool with its mean rank over tasks
and seeds, and the versions. ``--keep`` adds each run to a file and skips those in it.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from peers import small
from ruamel.yaml import YAML

PEERS = Path(__file__).with_name("peers")
ROOT = PEERS.parents[1]
#: What is otherwise than in the recipe: ten updates a step, and shorter sequences.
CHARLM = {
    "lr": {"loguniform": [1e-4, 1e-1]},
    "weight_decay": {"loguniform": [1e-3, 1]},
    "width": {"choice": [16, 32, 64]},
    "depth": {"choice": [1, 2]},
    "context": 32,
    "batch": {"choice": [8, 16, 32]},
    "updates": 10,
}
STEPS = {"r": 4, "R": 256, "eta": 4}
TASKS = ("charlm", *small.TASKS)
#: Trials at a time.
SLOTS = 2
ONE_EPOCH = f"{Path(__file__).with_name('papers') / 'one_epoch.py'}:OneEpoch"
POLICIES = ("hypersched", "foresight", "asha", "fifo", "one-epoch")
OTHERS = {
    "ray-asha": "ray_asha.py",
    "optuna-tpe-hyperband": "optuna_hyperband.py",
}
PACKAGES = ("ray[tune]", "optuna", "scikit-learn")
#: How long a tool may take to end after its deadline; then it is killed.
GRACE_S = 60.0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    tools = [*(f"gpusched-{policy}" for policy in POLICIES), *OTHERS]
    parser.add_argument("--task", nargs="+", choices=TASKS, default=["charlm"], metavar="TASK")
    parser.add_argument("--deadline", type=float, default=60.0, metavar="S", help="seconds (60)")
    parser.add_argument("--seeds", type=int, default=3, metavar="N")
    parser.add_argument("--only", nargs="+", choices=tools, default=tools, metavar="NAME")
    parser.add_argument("--venv", type=Path, default=Path("build/peers"), metavar="DIR")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="JSON lines; goes on from there")
    args = parser.parse_args()
    if set(args.only) & set(OTHERS):
        make_venv(args.venv)
    kept = args.keep.read_text().splitlines() if args.keep and args.keep.exists() else []
    found = {about(run): run for run in map(json.loads, kept)}
    wanted = [
        (task, tool, args.deadline, seed)
        for seed in range(args.seeds)
        for task in args.task
        for tool in args.only
    ]
    for task, tool, deadline_s, seed in wanted:
        if (task, tool, deadline_s, seed) not in found:
            run = one(task, tool, seed, deadline_s, args.venv)
            found[about(run)] = run
            print(json.dumps(run), flush=True)
            if args.keep:
                with args.keep.open("a") as file:
                    print(json.dumps(run), file=file)
    for line in summary([found[key] for key in wanted]):
        print(json.dumps(line))
    print(json.dumps({"versions": versions(args.venv)}))
    return 0


def about(run: dict[str, Any]) -> tuple[str, str, float, int]:
    return run["task"], run["tool"], run["deadline_s"], run["seed"]


def summary(runs: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the mean of each task and tool, then the mean rank of each tool over tasks and seeds (1: best)."""
    best: dict[tuple[str, str], list[float]] = {}
    ranks: dict[str, list[float]] = {}
    cells: dict[tuple[str, int], dict[str, float]] = {}
    for run in runs:
        best.setdefault((run["task"], run["tool"]), []).append(run["best"])
        cells.setdefault((run["task"], run["seed"]), {})[run["tool"]] = run["best"]
    for (task, tool), scores in best.items():
        yield {"task": task, "tool": tool, **mean_of(scores)}
    for cell in cells.values():
        for tool, score in cell.items():
            better = sum(other > score for other in cell.values())
            equal = sum(other == score for other in cell.values())
            ranks.setdefault(tool, []).append(better + (equal + 1) / 2)
    for tool, places in ranks.items():
        yield {"tool": tool, "rank": True, **mean_of(places)}


def mean_of(values: list[float]) -> dict[str, Any]:
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else None
    return {"runs": len(values), "mean": statistics.fmean(values), "standard_error": error}


def recipe_of(task: str) -> dict[str, Any]:
    """Return what all tools are given of a task, as a recipe of gpusched."""
    if task in small.TASKS:
        found = {"space": small.TASKS[task][0], "preload": ["sklearn.datasets"]}
    else:
        found = YAML(typ="safe").load(ROOT / "recipes" / "charlm.yaml")
        found |= {"space": {**found["space"], **CHARLM}}
    return {**found, "policy": STEPS, "devices": f"cpu:{SLOTS}"}


def one(task: str, tool: str, seed: int, deadline_s: float, venv: Path) -> dict[str, object]:
    """One run of one tool."""
    recipe = recipe_of(task)
    rungs = {key: recipe["policy"][key] for key in ("r", "R", "eta")}
    told = {"name": task, "slots": SLOTS, "space": {}, "fixed": {}, **rungs}
    told |= {"is_small": task in small.TASKS}
    for key, domain in recipe["space"].items():
        told["space" if isinstance(domain, dict) else "fixed"][key] = domain
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        notes = Path(scratch) / "notes"
        notes.mkdir()
        began = time.clock_gettime(time.CLOCK_BOOTTIME)
        until = began + deadline_s
        process = subprocess.Popen(
            command(tool, recipe, seed, deadline_s, until, venv, Path(scratch)),
            cwd=PEERS,
            env={
                **os.environ,
                "PEERS_TASK": json.dumps(told),
                "PEERS_NOTES": str(notes),
                "OMP_NUM_THREADS": "1",
            },
            stdout=subprocess.DEVNULL,
            stderr=(Path(scratch) / "stderr").open("w"),
            start_new_session=True,
        )
        try:
            process.wait(deadline_s + GRACE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        noted_all = sorted(point for point in noted(notes) if point[0] <= until)
        scores = [point for point in noted_all if math.isfinite(point[1])]
        if not scores:
            print((Path(scratch) / "stderr").read_text()[-3000:], file=sys.stderr)
        return {
            "task": task,
            "tool": tool,
            "deadline_s": deadline_s,
            "seed": seed,
            "best": max((score for _, score in scores), default=-math.inf),
            "first_score_after_s": round(scores[0][0] - began, 2) if scores else None,
            "steps": len(noted_all),
            "launches": len(list(notes.iterdir())),
            "load": os.getloadavg()[0],
        }


def noted(notes: Path) -> Iterator[tuple[float, float]]:
    """Yield time and score of every step that a trial noted."""
    for file in notes.iterdir():
        for line in file.read_text().splitlines():
            at, _, score = line.split()
            yield float(at), float(score)


def command(
    tool: str,
    recipe: dict[str, Any],
    seed: int,
    deadline_s: float,
    until: float,
    venv: Path,
    scratch: Path,
) -> list[str]:
    if tool in OTHERS:
        python = str((venv / "bin" / "python").absolute())
        return [python, str(PEERS / OTHERS[tool]), str(until), str(seed)]
    policy, rungs = tool.removeprefix("gpusched-"), recipe["policy"]
    if policy in ("foresight", "fifo", "one-epoch"):
        rungs = {"R": rungs["R"]}
    recipe = {
        **recipe,
        "script": str(PEERS / "gpusched_trial.py"),
        "deadline": deadline_s,
        "metric": "score",
        "mode": "max",
        "policy": {**rungs, "name": ONE_EPOCH if policy == "one-epoch" else policy},
        "seed": seed,
    }
    (scratch / "recipe.yaml").write_text(json.dumps(recipe))
    gpusched = [sys.executable, "-m", "gpusched", "run", str(scratch / "recipe.yaml")]
    return [*gpusched, "--dir", str(scratch / "runs"), "--json"]


def make_venv(venv: Path) -> None:
    """Make the environment of the other tools, unless there is one; torch comes from this environment."""
    python = venv / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        own = Path(importlib.util.find_spec("torch").origin).parents[1]
        (venv / "lib" / version / "site-packages" / "torch.pth").write_text(f"{own}\n")
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "-q"]
    constraints = str(ROOT / "constraints.txt")
    subprocess.run([*pip, "-c", constraints, *PACKAGES], check=True, stdout=subprocess.DEVNULL)


def versions(venv: Path) -> dict[str, str]:
    names = "ray", "optuna"
    code = f"import importlib.metadata as m, json; print(json.dumps({{n: m.version(n) for n in {names!r}}}))"
    python = venv / "bin" / "python"
    if not python.exists():
        return {}
    found: dict[str, str] = json.loads(subprocess.check_output([str(python), "-c", code]))
    return found


if __name__ == "__main__":
    sys.exit(main())
