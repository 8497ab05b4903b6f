"""A curve without a seam: digits and babi resized 1 -> 2 -> 4 -> 2 -> 1 against the same without, same seeds.

    python scripts/seamless.py                          both, five seeds: a quarter of an hour on two cores
    python scripts/seamless.py digits --seeds 0 1 --steps 2 --out /tmp/figures

One configuration that learns well, ``batch: global`` (so that the two should differ by the random numbers of the ranks
alone; ``--batch per_atom`` shows the other mode, whose curves per epoch differ by design). Writes
``seamless.json`` to ``--out``. One JSON line a resize: how far the resized runs are from the others at the first report
after it (mean over the seeds), and the noise: the standard deviation between the seeds without a resize.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bench_resize import entries, experiment_in, gpusched, say

ROOT = Path(__file__).resolve().parent.parent
SIZES = (1, 2, 4, 2, 1)
SPACES = {
    "digits": "{lr: 0.1, momentum: 0.9, weight_decay: 1e-4, width: 16, dropout: 0.2}",
    "babi": "{state: 32, embedding: 64, dropout: 0.1, optimizer: adam, data: made}",
}
RECIPE = (
    "script: {script}\nmetric: accuracy\ndeadline: 30m\nspace: {space}\nmax_trials: 1\n"
    "policy: {{name: profile, sizes: {sizes}, steps: {steps}}}\ndevices: cpu:4\nbatch: {batch}\n"
)
METRICS = ("accuracy", "loss")


@dataclass(frozen=True)
class Curve:
    """What one run reported, step by step, and at which steps it was resized (the last before each)."""

    values: dict[str, list[float]]
    resized_after: list[int]


def train(name: str, seed: int, sizes: tuple[int, ...], steps: int, batch: str) -> Curve:
    with tempfile.TemporaryDirectory() as where:
        folder = Path(where)
        recipe = RECIPE.format(
            script=ROOT / "recipes" / f"{name}.py",
            space=SPACES[name],
            sizes=list(sizes),
            steps=steps,
            batch=batch,
        )
        (folder / "r.yaml").write_text(recipe)
        done = gpusched(folder, "run", "r.yaml", "--json", "--seed", str(seed))
        if done.returncode:
            sys.exit(done.stdout[-2000:] + done.stderr)
        values: dict[str, list[float]] = {metric: [] for metric in METRICS}
        resized_after: list[int] = []
        incarnation = 1
        for _, kind, event, _ in entries(experiment_in(folder)):
            if kind != "Reported":
                continue
            if event["incarnation"] != incarnation:
                incarnation = event["incarnation"]
                resized_after.append(event["step"] - 1)
            for metric in METRICS:
                values[metric].append(float(event["metrics"][metric]))
        return Curve(values, resized_after)


def seams(plain: list[Curve], resized: list[Curve], metric: str) -> list[dict[str, float]]:
    """At the first report after each resize: the distance to the runs without one, and the noise between seeds."""
    found = []
    for step in resized[0].resized_after:
        apart = [
            b.values[metric][step] - a.values[metric][step]
            for a, b in zip(plain, resized, strict=True)
        ]
        noise = statistics.stdev(curve.values[metric][step] for curve in plain)
        found.append(
            {
                "after_step": step,
                "apart": round(statistics.mean(apart), 5),
                "noise_between_seeds": round(noise, 5),
            }
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("recipes", nargs="*", metavar="RECIPE", help=f"of {', '.join(SPACES)}")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--steps", type=int, default=6, help="epochs at each size")
    parser.add_argument("--batch", choices=("global", "per_atom"), default="global")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "figures")
    args = parser.parse_args()
    if len(args.seeds) < 2:
        parser.error("at least two seeds: the noise between them is what a resize is held against")
    curves: dict[str, tuple[list[Curve], list[Curve]]] = {}
    results: dict[str, object] = {"seeds": args.seeds, "sizes": SIZES, "batch": args.batch}
    for name in args.recipes or SPACES:
        plain, resized = [], []
        for seed in args.seeds:
            plain.append(train(name, seed, (1,), args.steps * len(SIZES), args.batch))
            resized.append(train(name, seed, SIZES, args.steps, args.batch))
            say(recipe=name, seed=seed, resized_after=resized[-1].resized_after)
        curves[name] = plain, resized
        found = {metric: seams(plain, resized, metric) for metric in METRICS}
        for metric, lines in found.items():
            for line in lines:
                within = abs(line["apart"]) <= line["noise_between_seeds"]
                say(recipe=name, metric=metric, **line, within_noise=within)
        results[name] = found
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "seamless.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
