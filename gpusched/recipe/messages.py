"""Findings about single values and keys, in a person's words: with the nearest known key, a bound or an example.

Values of a plain type are checked by msgspec (``typed``). Names of keys in other tools are recognised.
"""

from __future__ import annotations

import math
import re
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from gpusched.text import did_you_mean, show

Path = tuple[str | int, ...]


class BadValue(ValueError):
    """A value that cannot be taken. ``path``: the part of the value that is wrong."""

    def __init__(self, message: str, path: Path = ()) -> None:
        self.path = path
        super().__init__(message)


# ------------------------------------------------------------ values of a plain type

_EXPECTED = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "text",
    "array": "a list such as [a, b]",
    "object": "a map of keys",
}


def typed(value: Any, kind: Any) -> Any:
    """Return the value as one of this type; only a list may become a tuple, and a whole number a float.

    Raises BadValue.
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise BadValue(f"must be finite, not {value}")
    try:
        return msgspec.convert(value, kind, str_keys=True)
    except msgspec.ValidationError as error:
        said, _, place = str(error).partition(" - at `$")
        path: Path = tuple(map(int, re.findall(r"\[([0-9]+)\]", place.partition("[...]")[0])))
        for index in path:
            value = value[index]
        raise BadValue(_in_words(said, value, kind), path) from None


def _in_words(said: str, given: object, kind: Any) -> str:
    """Word a finding of msgspec about the value ``given``."""
    name, _, bound = said.removeprefix("Expected `").partition("` ")
    name, hint = name.partition("`")[0].partition(" ")[0], ""
    wanted = _EXPECTED.get(name, name)
    if options := _literals(kind):
        wanted = " or ".join(options)
        hint = did_you_mean(given, options) if isinstance(given, str) else ""
    elif given is not None and (limit := re.fullmatch(r"(>=|<=|>) (\S+)", bound)):
        words = {">=": "at least", "<=": "at most", ">": "more than"}
        return f"must be {words[limit[1]]} {limit[2].removesuffix('.0')}, not {show(given)}"
    elif name == "str" and not isinstance(given, Mapping | list):
        hint = "; put it in quotes"
    elif name in ("int", "float") and isinstance(given, str) and re.match(r"[-+. ]*\d", given):
        hint = " (in quotes?)"
    if given is None:
        return f"no value; should be {wanted}"
    return f"should be {wanted}, not {show(given)}{hint}"


def _literals(kind: Any) -> list[str]:
    if typing.get_origin(kind) is Literal:
        return [str(option) for option in typing.get_args(kind)]
    return next(filter(None, map(_literals, typing.get_args(kind))), [])


# ------------------------------------------------------------ names of keys


def unknown_key(name: str, known: Sequence[str]) -> str:
    """Word that a key is not known: with the key that was probably meant, else with all there are."""
    there = f"; known are {', '.join(sorted(known))}"
    return f"unknown key{did_you_mean(name, known) or there}"


def _by_name(table: str) -> dict[str, str]:
    """Read lines of ``what it is here: names elsewhere``."""
    rows = (line.rpartition(": ") for line in table.strip().splitlines())
    return {name: here.strip() for here, _, names in rows for name in names.split()}


#: Names of keys in Ray Tune, Optuna, W&B, Determined and Syne Tune, with the recipe's name.
ELSEWHERE = _by_name("""
    max_trials: num_samples n_trials run_cap
    deadline: timeout time_budget time_budget_s max_time max_wallclock_time max_duration
    space: parameters params param_space search_space hyperparameters config_space
    space: search hparams config
    policy: {R: ..}, the steps of a complete trial: epochs max_epochs num_epochs max_t max_length max_iter max_steps
    policy: {r: ..}, the steps to the first rung: min_steps grace_period
    policy: {eta: ..}: reduction_factor
    script: program entrypoint entry_point trial_command command
    mode: max or min: direction goal smaller_is_better
    policy: scheduler pruner early_terminate early_stop
    sampler or policy: searcher search_alg method tuner
    devices: gpus num_gpus resources
    sizes or max_atoms: gpus_per_atom gpus_per_trial resources_per_trial slots_per_trial
    try_first: points_to_evaluate enqueue_trial initial_points
    metric: objective metric_name monitor
    target: stop stopping_criterion metric_threshold
    seed: random_seed
""")
#: Options of schedulers elsewhere, with the option that policies here have for it.
OPTIONS_ELSEWHERE = _by_name("""
    r: min_steps min_t min_resource min_budget min_iter grace_period min_r
    R: max_steps max_t max_resource max_budget max_iter max_epochs epochs
    eta: reduction_factor halving_rate downsampling reduction
    b: check_every interval interval_steps evaluation_interval
""")
