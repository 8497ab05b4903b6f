"""Do the probabilities of the curve predictors mean what they say? (HyperDrive, Middleware'17, section 2.2)

Each curve is shown up to step 10, 20 and 30 of 60 and extrapolated to its end; the target is drawn from how all curves
of its kind end. Of the cases given a probability p in [0.8, 1], how many reached the target? How many outcomes lie in
the 90 % interval?

* ``synthetic``: curves made here, of families that the predictors do not contain as such; a quarter do not learn.
* ``recorded``: validation accuracy of 240 small networks on handwritten digits (``docs/figures/recorded-curves.jsonl``,
  made by ``--record``; 60 epochs each; random learning rate, batch size, width, momentum, weight decay, label noise).

``TEMPER`` was chosen on other synthetic curves and on the
first half of the recorded ones. Judged is on the second half. Writes calibration.json.

    python scripts/calibration.py            about ten minutes on two cores, nearly all of it for mcmc
    python scripts/calibration.py --record   records the curves again (scikit-learn; some minutes)
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import multiprocessing
import os
import statistics
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from gpusched.policies.extrapolation import CurvePredictor, Prediction, ShapesPredictor

FIGURES = Path(__file__).resolve().parent.parent / "docs" / "figures"
RECORDED = FIGURES / "recorded-curves.jsonl"
HORIZON = 60
CUTS = (10, 20, 30)
BINS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


def _mcmc() -> CurvePredictor:
    from papers.mcmc import McmcPredictor

    return McmcPredictor()


PREDICTORS = {"mcmc": _mcmc, "shapes": ShapesPredictor}

Curve = NDArray[np.float64]
#: predictor, trial, what is seen, how it ended, target.
Case = tuple[str, int, tuple[float, ...], float, float]


# ---------------------------------------------------------------- curves


def synthetic_curves(count: int, seed: int = 20) -> list[Curve]:
    """Sums of two exponentials, delayed sigmoids, curves that peak and fall a little, and some that learn nothing."""
    random = np.random.default_rng(seed)
    x = np.arange(HORIZON, dtype=np.float64)
    curves = []
    for _ in range(count):
        kind = random.integers(4)
        start, end = random.uniform(0.02, 0.2), random.uniform(0.3, 0.97)
        if kind == 0:
            end = start
            shape = np.zeros(HORIZON)
        elif kind == 1:
            fast, slow = np.exp(random.uniform(0, 2.5)), np.exp(random.uniform(2.5, 4.5))
            share = random.random()
            shape = 1 - share * np.exp(-x / fast) - (1 - share) * np.exp(-x / slow)
        elif kind == 2:
            middle, width = random.uniform(2, 30), random.uniform(2, 10)
            shape = 1 / (1 + np.exp(-(x - middle) / width))
        else:
            shape = (1 - np.exp(-x / random.uniform(2, 15))) * (1 - 0.15 * random.random() * x / 60)
        noise = random.normal(0, math.exp(random.uniform(math.log(0.002), math.log(0.02))), HORIZON)
        curves.append(np.clip(start + (end - start) * shape + noise, 0.0, 1.0))
    return curves


def recorded_curves() -> list[Curve]:
    """The second half: those that nothing was chosen on."""
    rows = [json.loads(line) for line in RECORDED.read_text().splitlines()]
    curves = [np.array(row["accuracy"]) for row in rows]
    return curves[len(curves) // 2 :]


def record(count: int = 240) -> None:
    """Train the networks and keep their curves."""
    from sklearn.datasets import load_digits
    from sklearn.neural_network import MLPClassifier

    warnings.simplefilter("ignore")
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    images, labels = images[order] / 16, labels[order]
    lines = []
    for number in range(count):
        random = np.random.default_rng([1, number])
        hparams: dict[str, Any] = {
            "lr": float(10 ** random.uniform(-4, 0.3)),
            "batch": int(2 ** random.integers(3, 9)),
            "width": int(2 ** random.integers(1, 7)),
            "momentum": float(random.choice([0, 0.5, 0.9])),
            "alpha": float(10 ** random.uniform(-6, 0)),
            "noise": float(random.choice([0, 0.2, 0.4])),
        }
        given = labels[:700].copy()
        wrong = random.random(700) < hparams["noise"]
        given[wrong] = random.integers(0, 10, int(wrong.sum()))
        network = MLPClassifier(
            (hparams["width"],),
            solver="sgd",
            learning_rate_init=hparams["lr"],
            batch_size=hparams["batch"],
            momentum=hparams["momentum"],
            alpha=hparams["alpha"],
            random_state=number,
        )
        accuracy = []
        for _ in range(HORIZON):
            try:
                network.partial_fit(images[:700], given, classes=np.arange(10))
                accuracy.append(round(float(network.score(images[700:1500], labels[700:1500])), 4))
            except ValueError:  # the weights are not finite any more
                accuracy.append(0.1)
        rounded = {k: round(v, 6) if isinstance(v, float) else v for k, v in hparams.items()}
        row = {"hparams": rounded, "accuracy": accuracy}
        lines.append(json.dumps(row, separators=(",", ":")))
        print(f"\r{number + 1} of {count}", end="", flush=True)
    RECORDED.write_text("\n".join(lines) + "\n")
    print(f"\n{RECORDED} is written")


# ---------------------------------------------------------------- judging


def cases(predictor: str, curves: Sequence[Curve]) -> Iterator[Case]:
    random = np.random.default_rng(0)
    ends = np.array([curve[-1] for curve in curves])
    for trial, curve in enumerate(curves):
        for cut in CUTS:
            target = float(np.quantile(ends, random.uniform(0.05, 0.98)))
            yield predictor, trial, tuple(map(float, curve[:cut])), float(curve[-1]), target


def judge(case: Case) -> dict[str, float]:
    """One forecast, and what came true."""
    name, trial, seen, end, target = case
    began = time.perf_counter()
    steps, seed = np.array([float(HORIZON)]), (0, trial, len(seen))
    found = PREDICTORS[name]().predict(np.array(seen), steps, seed)
    low, high = interval(found)
    return {
        "p": float(found.reaches(target)[-1]),
        "reached": float(end >= target),
        "covered": float(low <= end <= high),
        "width": high - low,
        "wall_s": time.perf_counter() - began,
    }


def interval(prediction: Prediction, level: float = 0.9) -> tuple[float, float]:
    """The central interval of y at the last step."""
    means, scales = prediction.means[:, -1], prediction.scales[:, -1]
    grid = np.linspace(means.min() - 6 * scales.max(), means.max() + 6 * scales.max(), 4001)
    below = prediction.weights @ special.ndtr((grid - means[:, None]) / scales[:, None])
    low, high = np.searchsorted(below, [0.5 - level / 2, 0.5 + level / 2])
    return float(grid[low]), float(grid[min(high, len(grid) - 1)])


def summary(judged: Sequence[dict[str, float]]) -> dict[str, Any]:
    """The numbers of one predictor on one kind of curves."""
    bins = []
    for low, high in itertools.pairwise(BINS):
        inside = [j for j in judged if low <= j["p"] < high or (high == 1.0 and j["p"] == 1.0)]
        reached = sum(j["reached"] for j in inside)
        below, above = wilson(reached, len(inside))
        bins.append(
            {
                "from": low,
                "to": high,
                "cases": len(inside),
                "mean_p": statistics.fmean(j["p"] for j in inside) if inside else None,
                "reached": reached / len(inside) if inside else None,
                "reached_low": below,
                "reached_high": above,
            }
        )
    share = statistics.fmean(j["reached"] for j in judged)
    return {
        "cases": len(judged),
        "bins": bins,
        "coverage_of_90": statistics.fmean(j["covered"] for j in judged),
        "mean_width_of_90": statistics.fmean(j["width"] for j in judged),
        "brier": statistics.fmean((j["p"] - j["reached"]) ** 2 for j in judged),
        "brier_of_the_base_rate": share * (1 - share),
        "median_wall_s": statistics.median(j["wall_s"] for j in judged),
    }


def wilson(hits: float, count: int, z: float = 1.96) -> tuple[float, float]:
    """95 % interval of a share."""
    if not count:
        return 0.0, 1.0
    share = hits / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    spread = share * (1 - share) / count + z * z / (4 * count * count)
    half = z * math.sqrt(spread) / (1 + z * z / count)
    return middle - half, middle + half


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--record", action="store_true", help="record the curves again and stop")
    parser.add_argument("--predictors", nargs="+", default=sorted(PREDICTORS))
    parser.add_argument("--curves", type=int, default=120, help="how many of each kind")
    parser.add_argument("--out", type=Path, default=FIGURES)
    args = parser.parse_args()
    if args.record:
        record()
        return
    kinds = {
        "synthetic": synthetic_curves(args.curves),
        "recorded": recorded_curves()[: args.curves],
    }
    results: dict[str, dict[str, Any]] = {}
    with multiprocessing.get_context("spawn").Pool(len(os.sched_getaffinity(0))) as pool:
        for name in args.predictors:
            results[name] = {}
            for kind, curves in kinds.items():
                judged = pool.map(judge, cases(name, curves), chunksize=8)
                found = results[name][kind] = summary(judged)
                top = found["bins"][-1]
                print(
                    f"{name} on {kind}: of {top['cases']} cases given p of 0.8 to 1 (mean {top['mean_p']:.2f}) "
                    f"{top['reached']:.0%} reached it; the 90 % interval holds {found['coverage_of_90']:.0%}; "
                    f"Brier {found['brier']:.3f} (base rate {found['brier_of_the_base_rate']:.3f}); "
                    f"{found['median_wall_s'] * 1000:.0f} ms a curve",
                    flush=True,
                )
    (args.out / "calibration.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
