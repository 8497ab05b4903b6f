"""A training script read before a search: mistakes that its text alone shows.

Cheap enough for every ``run``; mistakes that only show in training are left to the rehearsal (``rehearsal.py``).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

_ONE_RANK = re.compile(
    r"\brank\s*(==\s*0|<\s*1)|not\s+(\w+\.)*rank\b|is_(local_)?main_process|is_global_zero"
)
_TRAINERS = re.compile(r"gpusched\.(lightning|transformers|accelerate)\b")


def remarks(script: Path, *, scales: bool) -> Iterator[str]:
    """Yield oddities of a script, each with its line; nothing for a script that cannot be read as Python.

    Args:
        script: Its file; modules that it imports are not looked at.
        scales: Whether a trial may get more atoms, and its global batch and learning rate grow with them.
    """
    try:
        text = script.read_text("utf-8")
        tree = ast.parse(text)
    except (OSError, ValueError, SyntaxError, RecursionError):
        return
    if "gpusched" not in text:
        yield (
            f"{script.name} does not mention gpusched: unless a module that it imports does, every trial ends without "
            f"a report. Write `from gpusched import trial`, `for epoch in trial.steps(50, model=model, opt=opt)` and "
            f"`trial.report(..)` once an epoch"
        )
        return
    calls = [
        (call, ast.unparse(call.func)) for call in ast.walk(tree) if isinstance(call, ast.Call)
    ]
    names = {name.rpartition(".")[2] for _, name in calls}
    for line in _reports_of_one_rank(tree):
        yield (
            f"{script.name}:{line}: trial.report(...) under a condition on the rank: every rank must call it, or the "
            f"first trial on several ranks hangs until rank 0 gives up"
        )
    if not scales or _TRAINERS.search(text) or {"local_batch", "scale_lr", "prepare"} & names:
        return
    tracks = "track" in names or any(
        call.keywords for call, name in calls if name.endswith(".steps")
    )
    if "backward" in names and tracks:
        yield (
            f"{script.name}: on several atoms a trial has a batch for each, and the script does not call "
            f"trial.scale_lr(opt), so its learning rate stays what it is on one atom: add it before trial.track or "
            f"trial.steps, or write `batch: global` or `lr_scaling: none`"
        )


def _reports_of_one_rank(tree: ast.AST) -> Iterator[int]:
    for branch in ast.walk(tree):
        if not isinstance(branch, ast.If) or not _ONE_RANK.search(ast.unparse(branch.test)):
            continue
        others = {ast.unparse(call.func) for part in branch.orelse for call in _calls(part)}
        for part in branch.body:
            for call in _calls(part):
                name = ast.unparse(call.func)
                if name.endswith("trial.report") and name not in others:
                    yield call.lineno


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (each for each in ast.walk(tree) if isinstance(each, ast.Call))
