"""A hundred recorded curves of real training (docs/figures/recorded-curves.jsonl), an epoch a minute.

24 of them do not learn, five come to the target: about as many as HyperDrive's (Middleware'17, section 2) on CIFAR-10.
"""

from __future__ import annotations

from collections.abc import Mapping

from papers.real import curves

CONFIGURATIONS, EPOCHS, TARGET = 100, 60, 0.95
SPACE = {"configuration": {"choice": list(range(CONFIGURATIONS))}}
METRIC, MODE, STEP_TIME = "accuracy", "max", 60.0


def accuracy(hp: Mapping[str, int], step: int) -> float:
    return curves("recorded")[hp["configuration"]][step - 1]
