"""Recorded curves of real training (docs/figures/recorded-curves.jsonl), an epoch a minute; a search takes a hundred.

    PYTHONPATH=scripts python -m papers.curves_recorded     records 240 again (scikit-learn; some minutes)

Validation accuracy of small networks on handwritten digits. Of the hundred 24 do not learn and five come to the target:
about as many as HyperDrive's (Middleware'17, section 2) on CIFAR-10.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

CONFIGURATIONS, EPOCHS, TARGET = 100, 60, 0.95
SPACE = {"configuration": {"choice": list(range(CONFIGURATIONS))}}
METRIC, MODE, STEP_TIME = "accuracy", "max", 60.0


RECORDED = Path(__file__).resolve().parents[2] / "docs" / "figures" / "recorded-curves.jsonl"
CURVES = [json.loads(line)["accuracy"] for line in RECORDED.read_text().splitlines()]


def accuracy(hp: Mapping[str, int], step: int) -> float:
    return CURVES[hp["configuration"]][step - 1]


def record(count: int = 240) -> Iterator[dict[str, Any]]:
    """Train networks; yield the hyperparameters and the curve of each."""
    from sklearn.datasets import load_digits
    from sklearn.neural_network import MLPClassifier

    warnings.simplefilter("ignore")
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    images, labels = images[order] / 16, labels[order]
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
        curve = []
        for _ in range(EPOCHS):
            try:
                network.partial_fit(images[:700], given, classes=np.arange(10))
                curve.append(round(float(network.score(images[700:1500], labels[700:1500])), 4))
            except ValueError:  # the weights are not finite any more
                curve.append(0.1)
        rounded = {k: round(v, 6) if isinstance(v, float) else v for k, v in hparams.items()}
        yield {"hparams": rounded, "accuracy": curve}


if __name__ == "__main__":
    lines = [json.dumps(row, separators=(",", ":")) for row in record()]
    RECORDED.write_text("\n".join(lines) + "\n")
