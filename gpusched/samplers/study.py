"""A configuration as Optuna has it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from optuna.distributions import BaseDistribution

from gpusched.space.forms import Const, Form
from gpusched.space.space import Space, flat

Param = tuple[Any, BaseDistribution]
"""A value as Optuna has it, and what it was drawn from."""


def params_of(
    space: Space, hparams: Mapping[str, Any], param: Callable[[Form, Any], Param]
) -> dict[str, dict[str, Any]]:
    """Return ``params`` and ``distributions`` of a configuration, as ``create_trial`` takes them."""
    found: dict[str, Param] = {}
    for path, value in flat(hparams, space.leaves).items():
        leaf = space.leaves.get(path)
        if leaf is not None and leaf.form is not None and not isinstance(leaf.form, Const):
            found[".".join(path)] = param(leaf.form, value)
    return {
        "params": {name: value for name, (value, _) in found.items()},
        "distributions": {name: distribution for name, (_, distribution) in found.items()},
    }
