"""Ranks that train together: one model, the same rates, samples of each rank's own, and a metric of all the data.

Compared between the ranks at reports. Ranks that train apart, or on the same samples, are refused with the line to
change: the model of rank 0 alone would be ranked, or the others would work for nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from gpusched.worker.channel import clean_metrics
from gpusched.worker.group import Call, Group
from gpusched.worker.training import Training

_SAMPLES = 2048
_FAR = 1e-6
"""Parameters of ranks that trained together are equal, but for the last bits."""
_UNLIKE = 1e-3
"""Share by which a metric of one model on the same data may differ between ranks."""


class Together:
    """Comparison of the ranks of one trial; every rank makes the same calls."""

    def __init__(self, group: Group, training: Training) -> None:
        self._group, self._training = group, training
        #: Models that a trainer owns and nothing here tracks.
        self.models: list[Any] = []
        #: Reports at which it is still to be asked whether each rank trains on samples of its own.
        self._looks_left = 3

    def refuse_apart(self) -> None:
        """Compare a few thousand parameters of the tracked models between the ranks. Sharded models are left out.

        Raises:
            RuntimeError: They differ: the ranks train apart.
        """
        import torch

        from gpusched.worker import state

        whole = [
            model
            for model in (*self._training.tracked.values(), *self.models)
            if isinstance(model, torch.nn.Module) and not state.is_sharded(model)
        ]
        trained = [each for model in whole for each in model.parameters() if each.requires_grad]
        samples = state.sampled(trained, _SAMPLES, 8)
        rows = self._group.gather_bytes(Call.REPORT, samples.numpy().tobytes())
        fix = (
            "wrap the model, model = trial.wrap(model), and call it or its methods, not its parts (torch's "
            "DistributedDataParallel sums gradients of its own call alone, of one backward() for each, and of layers "
            "not frozen when it is made); give a schedule by a metric one of all ranks (trial.mean(loss, number)); or "
            "let trials have one rank: `sizes: [1]` in the recipe"
        )
        for rank, other in enumerate(rows[1:] if rows[0] else (), 1):
            pair = torch.frombuffer(bytearray(rows[0] + other), dtype=torch.float64).view(2, -1)
            largest = float(pair.abs().max())
            apart = float((pair[0] - pair[1]).abs().max()) / largest if largest else 0.0
            if apart > _FAR:
                raise RuntimeError(
                    f"ranks 0 and {rank} have trained apart (their parameters differ by {apart:.2g} of the largest), "
                    f"and the model of rank 0 alone would be ranked: {fix}"
                )

    def differing_metric(self, name: str, metrics: Mapping[str, Any]) -> str:
        """Compare this metric: that of a rank's share of the data is no trial's. Return what to tell, or nothing."""
        mine = 0.0  # not to be compared
        with suppress(TypeError, ValueError):
            mine = float(clean_metrics({name: metrics.get(name, 0.0)}, name)[name])
        found = [value for (value,) in self._group.exchange(Call.REPORT, mine) if value]
        if not found or not all(map(math.isfinite, found)):
            return ""
        low, high = min(found), max(found)
        if high - low <= _UNLIKE * max(abs(low), abs(high)):
            return ""
        return (
            f"the ranks report {name} {low:.4g} and {high:.4g}, of which rank 0's counts. Where each rank has a share "
            f"of the data, give the metric of all: trial.mean(correct, total); in Lightning, log it with sync_dist=True"
        )

    def refuse_same_work(self) -> None:
        """Look, at the first reports, whether each rank trains on samples of its own.

        Raises:
            RuntimeError: All train on the same; the message has the line to change.
        """
        if not self._looks_left:
            return
        self._looks_left -= 1
        weight = self._training.weight
        if weight.is_whole:
            raise RuntimeError(
                "this script trains on a DataLoader in order, of which trial.prepare gives each rank the whole (as for "
                "evaluation), so all ranks do the same work: write DataLoader(..., shuffle=True), or loader = "
                "trial.loader(data, batch_size=..., shuffle=False)"
            )
        rows = self._group.gather_bytes(Call.REPORT, weight.first_gradients())
        if not all(rows):
            return
        self._looks_left = 0
        if len(set(rows)) == 1:
            raise RuntimeError(
                f"all {len(rows)} ranks of this trial train on the same samples (their gradients are equal, bit for "
                f"bit): wrap the model (model = trial.wrap(model)) and give each rank its share, loader = "
                f"trial.loader(data, batch_size=...) or a DistributedSampler, or let trials have one rank: "
                f"`sizes: [1]` in the recipe"
            )
