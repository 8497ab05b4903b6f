"""Whether a metric's name says if more or less of it is better: ``mode`` the wrong way round wastes a whole search."""

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
    """``max`` or ``min``, as the last telling word of the name says; None where no word does."""
    for word in reversed(re.split(r"[^a-z0-9]+", _HUMP.sub("_", metric).lower())):
        if word in _LESS:
            return "min"
        if word in _MORE:
            return "max"
    return None


def not_said(metric: str) -> str:
    """What is wrong with a recipe without ``mode``; empty if nothing is."""
    if sounds_like(metric) != "min":
        return ""
    return f"less {metric} sounds better, but without a mode more is; write mode: min, or mode: max if that is meant"


def remark(metric: str, mode: str) -> str:
    """What is odd about a ``mode`` that was said; empty if nothing is."""
    if sounds_like(metric) in (None, mode):
        return ""
    other = "min" if mode == "max" else "max"
    wants = "more" if mode == "max" else "less"
    return f"mode is {mode}: {wants} {metric} counts as better; write mode: {other} if that is the wrong way round"
