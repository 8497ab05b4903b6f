"""Hints from a metric's name that more or less of it is better: a wrong ``mode`` wastes a whole search."""

from __future__ import annotations

import re

_LESS = frozenset(
    (
        *(
            "loss",
            "losses",
            "err",
            "error",
            "nll",
            "perplexity",
            "ppl",
            "mse",
            "rmse",
            "mae",
            "mape",
        ),
        *("wer", "cer", "fid", "bpb", "bpc", "regret", "brier", "logloss", "divergence", "kl"),
    )
)
_MORE = frozenset(
    (
        *("acc", "accuracy", "auc", "auroc", "f1", "map", "miou", "iou", "dice", "bleu", "rouge"),
        *("precision", "recall", "reward", "return", "score", "r2", "psnr", "ssim", "top1", "top5"),
    )
)

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def sounds_like(metric: str) -> str | None:
    """Return ``max`` or ``min``, as the last telling word of the name says; None if no word does."""
    for word in reversed(re.split(r"[^a-z0-9]+", _HUMP.sub("_", metric).lower())):
        if word in _LESS:
            return "min"
        if word in _MORE:
            return "max"
    return None


def not_said(metric: str) -> str:
    """Return the problem of a recipe without ``mode``; empty if it has none."""
    if sounds_like(metric) != "min":
        return ""
    return f"less {metric} sounds better, but without a mode more is; write mode: min, or mode: max if that is meant"


def remark(metric: str, mode: str) -> str:
    """Return a remark about a ``mode`` that contradicts the metric's name; empty if it does not."""
    if sounds_like(metric) in (None, mode):
        return ""
    other = "min" if mode == "max" else "max"
    wants = "more" if mode == "max" else "less"
    return f"mode is {mode}: {wants} {metric} counts as better; write mode: {other} if that is the wrong way round"
