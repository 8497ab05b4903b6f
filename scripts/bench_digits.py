"""The same recipe, deadline and seeds with several policies: the accuracy at the deadline. For real, in turn.

    python scripts/bench_digits.py --policies fifo asha hypersched --seeds 0 1 2 3 4

A policy may come with options, so that HyperSched with and without resizing (figure 8's ablation) is ten runs of a
minute, eleven minutes in all:

    python scripts/bench_digits.py --policies hypersched hypersched:resize=false

One JSON line a run, then one a policy: accuracy and steps of the winner, mean and standard deviation over the seeds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

RECIPE = Path(__file__).resolve().parent.parent / "recipes" / "digits.yaml"


def one(policy: str, seed: int, extra: list[str]) -> dict[str, Any]:
    name, _, options = policy.partition(":")
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "gpusched",
            "run",
            str(RECIPE),
            "--policy",
            name,
            "--seed",
            str(seed),
        ]
        for option in filter(None, options.split(",")):
            command += ["--set", f"policy.{option}"]
        done = subprocess.run(
            [*command, "--json", *extra], cwd=folder, capture_output=True, text=True
        )
        if done.returncode:
            sys.exit(done.stderr or done.stdout[-2000:])
        view = json.loads(done.stdout.splitlines()[-1])["view"]
        steps = sum(trial["step"] for trial in view["trials"])
        best = view["best"]
        winner = {"trial": best["trial"], "step": best["step"], "atoms": best["atoms"]}
        return {
            "policy": policy,
            "seed": seed,
            "accuracy": best["metric"],
            "trials": len(view["trials"]),
            "steps": steps,
            "winner": winner,
            "ended_after_deadline_s": round(view["now_s"] - view["deadline_s"], 2),
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--policies", nargs="+", default=["fifo", "asha", "hypersched"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    args = parser.parse_args()
    extra = [word for override in args.overrides for word in ("--set", override)]
    found: dict[str, list[float]] = {}
    steps: dict[str, list[int]] = {}
    for seed in args.seeds:
        for policy in args.policies:
            result = one(policy, seed, extra)
            print(json.dumps(result), flush=True)
            found.setdefault(policy, []).append(float(str(result["accuracy"])))
            steps.setdefault(policy, []).append(result["winner"]["step"])
    for policy, values in found.items():
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        print(
            json.dumps(
                {
                    "policy": policy,
                    "mean": round(statistics.mean(values), 4),
                    "sd": round(spread, 4),
                    "winner_steps": round(statistics.mean(steps[policy]), 1),
                }
            )
        )


if __name__ == "__main__":
    main()
