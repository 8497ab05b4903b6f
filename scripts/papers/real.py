"""Recorded curves of real training as workloads, for figure ``foresight``.

    gpusched simulate scripts/papers/real.py:digits --set R=80
    python scripts/papers/real.py                                  records them again (scikit-learn; ten minutes)

Validation accuracy after each of 80 epochs, a unit of time each, of classifiers on data that ships with or is made by
scikit-learn; u draws one of 70. ``recorded`` are the 240 curves of ``docs/figures/recorded-curves.jsonl`` (60 epochs).
In ``real-curves.jsonl`` accuracies count in ten-thousandths.
"""

from __future__ import annotations

import functools
import json
import math
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

SPACE = {"u": {"uniform": [0.0, 1.0]}}
METRIC, MODE, STEP_TIME = "accuracy", "max", 1.0
EPOCHS, CONFIGURATIONS = 80, 70
CURVES = Path(__file__).with_name("real-curves.jsonl")
RECORDED = Path(__file__).resolve().parents[2] / "docs" / "figures" / "recorded-curves.jsonl"


@functools.cache
def curves(name: str) -> list[list[float]]:
    """The curves of one set, in the order in which they were recorded."""
    if name == "recorded":
        return [json.loads(line)["accuracy"] for line in RECORDED.read_text().splitlines()]
    found = [json.loads(line) for line in CURVES.read_text().splitlines()]
    return [[value / 1e4 for value in one["curve"]] for one in found if one["set"] == name]


def at(name: str, hp: Mapping[str, float], step: int) -> float:
    """Accuracy of the configuration that u draws; a curve stays at its last value."""
    known = curves(name)
    curve = known[min(len(known) - 1, int(hp["u"] * len(known)))]
    return curve[min(step, len(curve)) - 1]


def digits(hp: Mapping[str, float], step: int) -> float:
    """Small networks on handwritten digits."""
    return at("digits", hp, step)


def clusters(hp: Mapping[str, float], step: int) -> float:
    """Small networks on overlapping clusters with a tenth of the labels wrong."""
    return at("clusters", hp, step)


def boosting(hp: Mapping[str, float], step: int) -> float:
    """Boosted trees, one more tree a step."""
    return at("boosting", hp, step)


def linear(hp: Mapping[str, float], step: int) -> float:
    """Linear classifiers by stochastic gradient descent: jumpy, with rates up to divergence."""
    return at("linear", hp, step)


def recorded(hp: Mapping[str, float], step: int) -> float:
    """The curves that the predictors are judged by (docs/policies.md)."""
    return at("recorded", hp, step)


# ---------------------------------------------------------------- recording


def _data(name: str) -> tuple[Any, Any, Any, Any]:
    from sklearn import datasets
    from sklearn.model_selection import train_test_split
    from sklearn.preprocessing import StandardScaler

    if name == "digits":
        x, y = datasets.load_digits(return_X_y=True)
    else:
        x, y = datasets.make_classification(
            2400, 24, n_informative=10, n_classes=5, flip_y=0.1, class_sep=1.2, random_state=3
        )
    train_x, test_x, train_y, test_y = train_test_split(x, y, test_size=0.4, random_state=1)
    scale = StandardScaler().fit(train_x)
    return scale.transform(train_x), train_y, scale.transform(test_x), test_y


def _network(name: str, random: Random) -> Iterator[float]:
    from sklearn.neural_network import MLPClassifier

    train_x, train_y, test_x, test_y = _data(name)
    solver = random.choice(["sgd", "adam"])
    rate = 10.0 ** (random.uniform(-3.5, -0.5) if solver == "sgd" else random.uniform(-4.5, -1.5))
    model = MLPClassifier(
        (random.choice([8, 16, 32, 64]),) * random.choice([1, 2]),
        solver=solver,
        learning_rate_init=rate,
        batch_size=random.choice([32, 64, 128]),
        alpha=10.0 ** random.uniform(-6, 0),
        momentum=random.choice([0.0, 0.5, 0.9]),
        activation=random.choice(["relu", "tanh"]),
        random_state=random.randrange(10**6),
    )
    for _ in range(EPOCHS):
        model.partial_fit(train_x, train_y, classes=sorted(set(train_y)))
        yield float(model.score(test_x, test_y))


def _boosting(name: str, random: Random) -> Iterator[float]:
    from sklearn.ensemble import GradientBoostingClassifier

    train_x, train_y, test_x, test_y = _data("clusters")
    model = GradientBoostingClassifier(
        learning_rate=10.0 ** random.uniform(-2.5, 0.3),
        n_estimators=EPOCHS,
        max_depth=random.choice([1, 2, 3]),
        subsample=random.choice([0.3, 0.6, 1.0]),
        max_features=random.choice([3, 8, None]),
        random_state=random.randrange(10**6),
    ).fit(train_x[:700], train_y[:700])
    for predicted in model.staged_predict(test_x):
        yield float((predicted == test_y).mean())


def _linear(name: str, random: Random) -> Iterator[float]:
    from sklearn.linear_model import SGDClassifier

    train_x, train_y, test_x, test_y = _data("digits")
    model = SGDClassifier(
        loss=random.choice(["hinge", "log_loss", "modified_huber"]),
        learning_rate=random.choice(["constant", "invscaling"]),
        eta0=10.0 ** random.uniform(-5, 1),
        alpha=10.0 ** random.uniform(-6, -1),
        random_state=random.randrange(10**6),
    )
    for _ in range(EPOCHS):
        model.partial_fit(train_x[:, ::3], train_y, classes=sorted(set(train_y)))
        yield float(model.score(test_x[:, ::3], test_y))


def _record() -> None:
    """Record all curves again. Another version of scikit-learn may give slightly different ones."""
    warnings.simplefilter("ignore")
    kinds = {"digits": _network, "clusters": _network, "boosting": _boosting, "linear": _linear}
    with CURVES.open("w") as file:
        for name, train in kinds.items():
            for place in range(CONFIGURATIONS):
                values = list(train(name, Random(f"{name}/{place}")))
                curve = [round(1e4 * value) for value in values if math.isfinite(value)]
                file.write(json.dumps({"set": name, "curve": curve}, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    _record()
