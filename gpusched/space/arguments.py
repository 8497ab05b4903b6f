"""Hyperparameters on the script's command line: ``${lr}`` in the recipe's ``args`` stands for the trial's value.

For scripts that read their options themselves (argparse, hydra, a shell script). ``${net.width}`` is a nested one,
``${hparams}`` as an argument of its own stands for all, ``--lr=0.1 --net.width=32``, ``${trial.id}`` and
``${trial.folder}`` for the trial's number and its own folder, and ``$${`` for ``${`` itself. An argument with a
hyperparameter that this configuration has not (its ``when`` does not hold) is left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from gpusched.text import flat

ALL = "hparams"
ID, FOLDER = "trial.id", "trial.folder"
_PLACE = re.compile(r"\$(\$\{|\{([^{}]*)\})")


def names(argument: str) -> list[str]:
    """Return the names in an argument, ``hparams`` included."""
    return [found[2].strip() for found in _PLACE.finditer(argument) if found[2] is not None]


def fill(
    arguments: Sequence[str], hparams: Mapping[str, object], trial: int, folder: str
) -> list[str]:
    """Return the arguments of the trial of this number, folder and hyperparameters."""
    drawn = dict(flat(hparams))
    values = {ID: trial, FOLDER: folder, **drawn}
    filled: list[str] = []
    for argument in arguments:
        named = names(argument)
        if named == [ALL] and ALL not in values and _PLACE.fullmatch(argument.strip()):
            filled += [f"--{name}={text(value)}" for name, value in drawn.items()]
        elif all(name in values for name in named):
            filled.append(_PLACE.sub(lambda found: _value(found, values), argument))
    return filled


def text(value: object) -> str:
    """Write a value as programs read it: text as it is, anything else as JSON (``true``, ``null``, ``[1, 2]``)."""
    return value if isinstance(value, str) else json.dumps(value)


def _value(found: re.Match[str], values: Mapping[str, object]) -> str:
    return "${" if found[2] is None else text(values[found[2].strip()])
