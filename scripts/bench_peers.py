"""gpusched beside Ray Tune, Optuna and Syne Tune: the same deadline, slots, space and trials; start-up counts.

    python scripts/bench_peers.py [--task digits] [--deadline 30] [--seeds 3] [--only NAME ..] [--venv DIR]

``score`` has eight slots, whose trials sleep and report Score(k) of HyperSched, section 6 (``peers/score.py``): a step
takes 0.1 s on one slot, and 0.1 s / a on a slots, which only gpusched gives. ``digits`` trains the network of
``recipes/digits.py`` on two slots of a core each; a score is the accuracy on the held-out images. ``charlm`` trains the
transformer of ``recipes/charlm.py`` in the space and steps of ``bench_search.py``; a score is by how many bits a
byte of held-out text takes less than 8. Digits are learnt in a minute by any tool's choice, the text is not.

Every score is noted by the trial itself with its time; what counts is the best that was noted within the deadline from
the start of the tool's process. The tools take turns, so that a busy machine is busy for all. The others run in an
environment of their own, made on first use (``ray[tune]``, ``optuna``, ``syne-tune``; torch is the one of this
environment). Prints a JSON line a run, then one a tool with the mean and its standard error, then the versions.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
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

from bench_search import STEPS, TASKS
from ruamel.yaml import YAML

PEERS = Path(__file__).with_name("peers")
ROOT = PEERS.parents[1]
UNIT = {"uniform": [0.0, 1.0]}
SCORE = {
    "space": {"b0_quantile": UNIT, "b1": UNIT, "b2": UNIT},
    "policy": {"r": 5, "R": 500, "eta": 4},
    "scaling": "linear",
}
#: Trials at a time: more than there are cores where trials only sleep.
SLOTS = {"score": 8, "digits": 2, "charlm": 2}
POLICIES = ("hypersched", "foresight", "asha", "fifo")
OTHERS = {
    "ray-asha": ("ray_asha.py",),
    "optuna-tpe-hyperband": ("optuna_hyperband.py",),
    "syne-tune-asha": ("syne_tune_search.py", "ASHA"),
    "syne-tune-bohb": ("syne_tune_search.py", "BOHB"),
}
PACKAGES = ("ray[tune]", "optuna", "syne-tune", "statsmodels", "scikit-learn")
#: How long a tool may take to end after its deadline; then it is killed.
GRACE_S = 60.0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    tools = [*(f"gpusched-{policy}" for policy in POLICIES), *OTHERS]
    parser.add_argument("--task", choices=list(SLOTS), default="score")
    parser.add_argument("--deadline", type=float, default=30.0, metavar="S", help="seconds (30)")
    parser.add_argument("--seeds", type=int, default=3, metavar="N")
    parser.add_argument("--only", nargs="+", choices=tools, default=tools, metavar="NAME")
    parser.add_argument("--venv", type=Path, default=Path("build/peers"), metavar="DIR")
    args = parser.parse_args()
    if set(args.only) & set(OTHERS):
        make_venv(args.venv)
    found: dict[str, list[float]] = {tool: [] for tool in args.only}
    for seed in range(args.seeds):
        for tool in args.only:
            line = one(args.task, tool, seed, args.deadline, args.venv)
            found[tool].append(line["best"])
            print(json.dumps(line), flush=True)
    for tool, best in found.items():
        error = statistics.stdev(best) / len(best) ** 0.5 if len(best) > 1 else None
        about = {"task": args.task, "tool": tool, "deadline_s": args.deadline, "runs": len(best)}
        print(json.dumps({**about, "mean": statistics.fmean(best), "standard_error": error}))
    print(json.dumps({"versions": versions(args.venv)}))
    return 0


def recipe_of(task: str) -> dict[str, Any]:
    """Return what all tools are given of a task, as a recipe of gpusched."""
    if task == "score":
        found = SCORE
    else:
        yaml = YAML(typ="safe")
        found = yaml.load(ROOT / "recipes" / f"{task}.yaml")
        found["policy"] |= STEPS[task]
        for key, _, value in (setting.partition("=") for setting in TASKS[task]["set"]):
            if key.startswith("space."):
                found["space"][key.removeprefix("space.")] = yaml.load(value)
    return {**found, "devices": f"cpu:{SLOTS[task]}"}


def one(task: str, tool: str, seed: int, deadline_s: float, venv: Path) -> dict[str, object]:
    """One run of one tool."""
    recipe = recipe_of(task)
    rungs = {key: recipe["policy"][key] for key in ("r", "R", "eta")}
    about = {"name": task, "module": "score" if task == "score" else "recipe", **rungs}
    about |= {"slots": SLOTS[task], "space": {}, "fixed": {}}
    for key, domain in recipe["space"].items():
        about["space" if isinstance(domain, dict) else "fixed"][key] = domain
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
                "PEERS_TASK": json.dumps(about),
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
        scores = sorted(point for point in noted(notes) if point[0] <= until)
        if not scores:
            print((Path(scratch) / "stderr").read_text()[-3000:], file=sys.stderr)
        return {
            "task": task,
            "tool": tool,
            "deadline_s": deadline_s,
            "seed": seed,
            "best": max((score for _, score in scores), default=0.0),
            "first_score_after_s": round(scores[0][0] - began, 2) if scores else None,
            "steps": len(scores),
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
        script, *rest = OTHERS[tool]
        python = str((venv / "bin" / "python").absolute())
        return [python, str(PEERS / script), str(until), str(seed), *rest]
    policy, rungs = tool.removeprefix("gpusched-"), recipe["policy"]
    if policy in ("foresight", "fifo"):
        rungs = {"R": rungs["R"]}
    recipe = {
        **recipe,
        "script": str(PEERS / "gpusched_trial.py"),
        "deadline": deadline_s,
        "metric": "score",
        "mode": "max",
        "policy": {**rungs, "name": policy},
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
    names = "ray", "optuna", "syne-tune"
    code = f"import importlib.metadata as m, json; print(json.dumps({{n: m.version(n) for n in {names!r}}}))"
    python = venv / "bin" / "python"
    if not python.exists():
        return {}
    found: dict[str, str] = json.loads(subprocess.check_output([str(python), "-c", code]))
    return found


if __name__ == "__main__":
    sys.exit(main())
