"""Checks of a recipe that look at the machine (script, interpreter, folders), and at the metric's name.

Each check of the machine yields ``(path, message)``; none raises. Nothing of the user's code is run.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import Any

from gpusched.errors import DamagedState
from gpusched.folder.paths import ExperimentPaths
from gpusched.journal import timeline
from gpusched.journal.timeline import TrialTimeline
from gpusched.recipe.yaml import Finding
from gpusched.space.space import Space, misfit
from gpusched.text import count, did_you_mean, show

# ------------------------------------------------------------ files and modules


def absolute(folder: FilePath, written: str) -> FilePath:
    """Return a path of the recipe, relative to the recipe's folder. Links are kept as they are."""
    return FilePath(os.path.normpath(folder / FilePath(written).expanduser()))


def check_script(script: FilePath, folder: FilePath, python: str | None) -> Iterator[Finding]:
    """Check that the script is a file and compiles, unless another interpreter runs it. ``folder``: of the recipe."""
    source, message = _read(script, folder)
    if not message and python is None:
        message = _syntax(script, source)
    if message:
        yield ("script",), message


def _read(script: FilePath, folder: FilePath) -> tuple[bytes, str]:
    try:
        if script.is_dir():
            return b"", f"{script} is a folder; name the Python file in it"
        if not script.exists():
            names = sorted(file.name for file in script.parent.glob("*.py"))
            hint = did_you_mean(script.name, names[:1000])
            here = os.path.relpath(script, folder)
            if any((folder / word).is_file() for word in here.split()):
                hint = "; name the file alone, and its arguments as in args: [--epochs, 10]"
            if FilePath(here).is_file():
                path = os.path.relpath(here, folder)
                hint = f"; paths begin at the recipe's folder, and from there it is {path}"
            return b"", f"no such file: {script}{hint}"
        return script.read_bytes(), ""
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        return b"", f"{show(str(script))} cannot be read: {reason}"


def _syntax(script: FilePath, source: bytes) -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a script with an odd escape sequence runs
            compile(source, str(script), "exec", dont_inherit=True)
    except SyntaxError as error:
        where = f"line {error.lineno}: " if error.lineno else ""
        return f"{script} is not Python: {where}{error.msg}"
    except (ValueError, OverflowError, RecursionError, MemoryError) as error:
        return f"{script} is not Python: {str(error) or type(error).__name__}"
    return ""


def find_python(written: str, folder: FilePath, launch: str) -> FilePath:
    """Return the interpreter to start: a path, or a program of the PATH. Raises ValueError."""
    if launch != "cold":
        raise ValueError("trials cannot be forked into another interpreter; add launch: cold")
    is_path = "/" in written or written.startswith("~")
    found = shutil.which(absolute(folder, written) if is_path else written)
    if found is None:
        raise ValueError(f"{show(written)} cannot be run; write the path of a Python interpreter")
    return absolute(folder, found)


PRIVATE = "private"
"""A ``cwd`` that stands for the folder of each trial's own files."""


# ------------------------------------------------------------ trials of an earlier search
# They stand in the resolved recipe, so that a resume reads no other folder.

#: So many trials are taken over: those that came furthest.
MOST = 200


def read_after(
    folder: FilePath, metric: str, mode: str, space: Space
) -> tuple[dict[str, Any], ...]:
    """Return hyperparameters, state and curve of the trials with this space's keys, the best first.

    Raises ValueError where that is no search for this metric, or none of its trials fits.
    """
    paths = ExperimentPaths(folder)
    if not paths.is_experiment:
        raise ValueError(f"{folder} is not a search's folder (it has no journal.db)")
    try:
        resolved = json.loads(paths.resolved.read_bytes())
        trials = timeline.read(paths.journal).trials.values()
    except (OSError, ValueError, DamagedState) as error:
        raise ValueError(f"{folder} cannot be read: {error}") from None
    if (was := (resolved.get("metric"), resolved.get("mode"))) != (metric, mode):
        raise ValueError(f"{folder} searched for {was[1]} {was[0]}, not for {mode} {metric}")
    sign = 1.0 if mode == "max" else -1.0
    misfits = {trial.id: misfit(space, trial.hparams) for trial in trials if trial.curve}
    fitting = [trial for trial in trials if misfits.get(trial.id) == ""]
    if not fitting:
        first = next((f" (in trial {n} {why})" for n, why in misfits.items()), "")
        raise ValueError(
            f"none of {count(len(trials), 'trial')} of {folder} has reported and has the keys and values of this "
            f"space{first}; leave after out, or search the same space"
        )
    fitting.sort(key=lambda trial: -trial.curve[-1][1])
    longest = fitting[0].curve[-1][1]
    taken = [_taken(trial, longest, sign) for trial in fitting[:MOST]]
    return tuple(one for _, one in sorted(taken, key=lambda pair: -pair[0]))


def _taken(trial: TrialTimeline, longest: int, sign: float) -> tuple[float, dict[str, Any]]:
    """Return a trial's score, and of its reports the best and the last. One that trained as long as any is complete."""
    _, step, metric = trial.curve[-1]
    state = "completed" if step == longest else "stopped"
    if trial.outcome == "failed" or metric is None:
        state = "failed"
    points = [(step, value) for _, step, value in trial.curve if value is not None]
    best = max(points, key=lambda point: point[1] * sign, default=None)
    curve = [list(point) for point in sorted({best, points[-1]})] if best else []
    score = best[1] * sign if best and state != "failed" else -math.inf
    return score, {"hparams": dict(trial.hparams), "state": state, "curve": curve}


# -------------------------------------------------- mode, by the metric's name
# A wrong ``mode`` wastes a whole search.

_LESS = (
    "loss losses err error nll perplexity ppl mse rmse mae mape wer cer fid bpb bpc bpd regret brier logloss "
    "divergence kl entropy crossentropy xent bce lpips eer rmsle smape cost nrmse nmse msle wmape ter kid fvd ece mpjpe"
)
_MORE = (
    "acc accuracy auc auroc f1 map miou iou dice bleu rouge precision recall reward return r2 psnr "
    "ssim top1 top5"
)
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def better_mode(metric: str) -> str | None:
    """Return ``max`` or ``min``, as the last telling word of the name says; None if no word does."""
    for word in reversed(re.split(r"[^a-z0-9]+", _HUMP.sub("_", metric).lower())):
        if word in _LESS.split():
            return "min"
        if word in _MORE.split():
            return "max"
    return None
