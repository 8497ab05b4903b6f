"""The same recipe, deadline and seeds with several policies and samplers: the best metric at the deadline, for real.

    python scripts/bench_search.py --policies fifo asha hypersched --seeds 0 1 2 3 4
    python scripts/bench_search.py --task charlm      # 4 policies, random and tpe, 5 seeds: 45 minutes

``digits`` (the default) is ``recipes/digits.yaml``, on which 60 s are plenty. ``charlm`` is a small transformer on the
source of Python's standard library, in steps of ten updates: it learns on far beyond 60 s, and how fast depends on all
of its keys. A policy may come with options; HyperSched with and without resizing (figure 8's ablation) is ten runs:

    python scripts/bench_search.py --policies hypersched hypersched:resize=false

One JSON line a run, then one a policy and sampler: mean and standard deviation of the best metric over the seeds, and
the difference to the first policy and sampler, seed by seed, with half of a 95% interval.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

from gpusched.sim.study import Mean

RECIPES = Path(__file__).resolve().parent.parent / "recipes"
#: Recipe, what is set in it, and what is compared by default.
TASKS: dict[str, dict[str, Any]] = {
    "digits": {"set": [], "policies": ["fifo", "asha", "hypersched"], "samplers": ["random"]},
    "charlm": {
        "set": [
            "deadline=60s",
            "space.lr={loguniform: [1e-4, 1e-1]}",
            "space.weight_decay={loguniform: [1e-3, 1]}",
            "space.width={choice: [16, 32, 64]}",
            "space.depth={choice: [1, 2]}",
            "space.context=32",
            "space.batch={choice: [8, 16, 32]}",
            "space.updates=10",
        ],
        "policies": ["hypersched", "foresight", "asha", "fifo"],
        "samplers": ["random", "tpe"],
    },
}
#: Steps for policies that have them; ``foresight`` and ``fifo`` take R alone.
STEPS = {"charlm": {"r": 4, "R": 256, "eta": 4}, "digits": {}}


def one(task: str, policy: str, sampler: str, seed: int, overrides: list[str]) -> dict[str, Any]:
    from gpusched.recipe.classes import option_names

    name, _, options = policy.partition(":")
    known = option_names(name)
    given = [f"{key}={value}" for key, value in STEPS[task].items() if key in known]
    given += filter(None, options.split(","))
    written = ", ".join(option.replace("=", ": ") for option in given)
    settings = [
        *TASKS[task]["set"],
        f"policy={{name: {name}, {written}}}" if given else f"policy={name}",
        f"sampler={sampler}",
        *overrides,
    ]
    words = [word for setting in settings for word in ("--set", setting)]
    recipe = str(RECIPES / f"{task}.yaml")
    command = [sys.executable, "-m", "gpusched", "run", recipe, "--seed", str(seed), *words]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [*command, "--json"], cwd=folder, capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.exit(done.stderr or done.stdout[-2000:])
        view = json.loads(done.stdout.splitlines()[-1])["view"]
    best = view["best"]
    return {
        "policy": policy,
        "sampler": sampler,
        "seed": seed,
        "best": best["metric"],
        "trials": len(view["trials"]),
        "steps": sum(trial["step"] for trial in view["trials"]),
        "winner": {"trial": best["trial"], "step": best["step"], "atoms": best["atoms"]},
        "ended_after_deadline_s": round(view["now_s"] - view["deadline_s"], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--task", choices=list(TASKS), default="digits")
    parser.add_argument("--policies", nargs="+")
    parser.add_argument("--samplers", nargs="+")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    args = parser.parse_args()
    task = TASKS[args.task]
    compared = list(product(args.policies or task["policies"], args.samplers or task["samplers"]))
    found: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}
    for seed in args.seeds:
        for policy, sampler in compared:
            result = one(args.task, policy, sampler, seed, args.overrides)
            print(json.dumps(result), flush=True)
            found.setdefault((policy, sampler), {})[seed] = result
    first = found[compared[0]]
    for (policy, sampler), runs in found.items():
        values = [run["best"] for run in runs.values()]
        against = Mean.of(run["best"] - first[seed]["best"] for seed, run in runs.items())
        summary = {
            "policy": policy,
            "sampler": sampler,
            "mean": round(statistics.mean(values), 4),
            "sd": round(statistics.stdev(values), 4) if len(values) > 1 else 0.0,
            "winner_steps": round(statistics.mean(r["winner"]["step"] for r in runs.values()), 1),
            "difference": round(against.mean, 4),
            "half_width": round(against.half_width, 4) if against.count > 1 else None,
        }
        print(json.dumps(summary))


if __name__ == "__main__":
    main()
