"""pydantic's findings in a person's words, with the nearest known key or an example."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from gpusched.recipe.document import Path
from gpusched.text import nearest, show

_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list such as [a, b]",
    "tuple_type": "a list such as [a, b]",
    "dict_type": "a map of keys",
    "model_type": "a map of keys",
    "model_attributes_type": "a map of keys",
}
_BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("more than", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("less than", "lt"),
}

#: Names of keys in Ray Tune, Optuna, W&B, NNI, Determined and Syne Tune, with the recipe's name.
ELSEWHERE = {
    **dict.fromkeys(("num_samples", "n_trials", "maxtrialnumber", "run_cap"), "max_trials"),
    **dict.fromkeys(
        (
            "timeout",
            "time_budget",
            "time_budget_s",
            "max_time",
            "max_wallclock_time",
            "max_duration",
        ),
        "deadline",
    ),
    **dict.fromkeys(
        ("parameters", "params", "param_space", "search_space", "hyperparameters", "config_space"),
        "space",
    ),
    **dict.fromkeys(
        ("epochs", "max_epochs", "num_epochs", "max_t", "max_length", "max_iter", "max_steps"),
        "policy: {R: ..}, the steps of a complete trial",
    ),
    **dict.fromkeys(("program", "entrypoint", "entry_point", "trial_command", "command"), "script"),
    **dict.fromkeys(
        ("direction", "goal", "optimize_mode", "smaller_is_better"), "mode: max or min"
    ),
    **dict.fromkeys(("scheduler", "pruner", "searcher", "method", "tuner"), "policy"),
    **dict.fromkeys(("gpus", "num_gpus", "resources"), "devices"),
    **dict.fromkeys(
        ("gpus_per_trial", "resources_per_trial", "slots_per_trial"), "sizes or max_atoms"
    ),
    **dict.fromkeys(("points_to_evaluate", "enqueue_trial", "initial_points"), "try_first"),
    **dict.fromkeys(("objective", "metric_name", "monitor"), "metric"),
    **dict.fromkeys(("early_terminate", "early_stop", "assessor"), "policy"),
    **dict.fromkeys(("stop", "stopping_criterion", "metric_threshold"), "target"),
    **dict.fromkeys(("searchspace", "searchspacefile", "search", "hparams"), "space"),
    "min_steps": "policy: {r: ..}, the steps to the first rung",
    **dict.fromkeys(("maxexperimentduration", "max_runtime"), "deadline"),
    **dict.fromkeys(("trialcommand",), "script"),
    "reduction_factor": "policy: {eta: ..}",
    "experimentname": "name",
    "grace_period": "policy: {r: ..}, the steps to the first rung",
    "random_seed": "seed",
}


#: Options of schedulers elsewhere, with the option that policies here have for it.
OPTIONS_ELSEWHERE = {
    **dict.fromkeys(
        ("min_steps", "min_t", "min_resource", "min_budget", "min_iter", "grace_period", "min_r"),
        "r",
    ),
    **dict.fromkeys(
        ("max_steps", "max_t", "max_resource", "max_budget", "max_iter", "max_epochs", "epochs"),
        "R",
    ),
    **dict.fromkeys(("reduction_factor", "halving_rate", "downsampling", "reduction"), "eta"),
    **dict.fromkeys(("check_every", "interval", "interval_steps", "evaluation_interval"), "b"),
}


def problems(error: ValidationError, model: type[BaseModel]) -> Iterable[tuple[Path, str]]:
    """Yield path and message of each finding, with care for the first hundred."""
    for number, details in enumerate(error.errors(include_url=False)):
        path = tuple(details["loc"])
        yield path, in_words(details, model, path) if number < 100 else details["msg"]


def in_words(details: ErrorDetails, model: type[BaseModel] | None, path: Path) -> str:
    """Word one finding. ``model``: the keys that an unknown one may have been meant to be."""
    kind, given, context = details["type"], details["input"], details.get("ctx", {})
    if kind == "extra_forbidden" and model is not None:
        return unknown_key(str(path[-1]), sorted(_model_at(model, path[:-1]).model_fields))
    if kind == "missing":
        return "missing" + (_example(model, path) if model is not None else "")
    if kind == "value_error":
        return str(context.get("error", details["msg"]))
    if given is None:
        wanted = f" should be {_EXPECTED[kind]}" if kind in _EXPECTED else " needs one"
        return f"no value;{wanted}"
    if kind == "literal_error":
        return _not_one_of(str(context.get("expected", "")), given)
    if path == ("metric",) and isinstance(given, Mapping) and isinstance(given.get("name"), str):
        return (
            f"should be text; write metric: {show(given['name'])}, and beside it mode: max or min"
        )
    if kind in _EXPECTED:
        return f"should be {_EXPECTED[kind]}, not {show(given)}{_quotes(kind, given)}"
    if kind in _BOUNDS:
        words, limit = _BOUNDS[kind]
        return f"must be {words} {context[limit]:g}, not {show(given)}"
    if kind == "string_pattern_mismatch":
        return _mismatch(str(path[-1]) if path else "", given)
    return f"{details['msg'][:1].lower()}{details['msg'][1:]}, not {show(given)}"


def unknown_key(name: str, known: Sequence[str]) -> str:
    meant = nearest(name, known)
    if meant:
        return f"unknown key; did you mean {meant}?"
    return f"unknown key; known are {', '.join(known)}"


def _model_at(model: type[BaseModel], path: Path) -> type[BaseModel]:
    """The nested model that a path leads to."""
    for part in path:
        field = model.model_fields.get(str(part))
        inner: Any = field.annotation if field else None
        if typing.get_origin(inner) in (typing.Union, types.UnionType):
            inner = next(iter(typing.get_args(inner)))
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            model = inner
    return model


def _example(model: type[BaseModel], path: Path) -> str:
    field = model.model_fields.get(str(path[-1])) if path else None
    if field is None or not field.examples:
        return "; this key is needed"
    return f"; every recipe needs it, as in {path[-1]}: {field.examples[0]}"


def _not_one_of(expected: str, given: object) -> str:
    options = [word.strip("'") for word in expected.replace(" or ", ", ").split(", ")]
    meant = nearest(given, options) if isinstance(given, str) else None
    hint = f"; did you mean {meant}?" if meant else ""
    return f"should be {' or '.join(options)}, not {show(given)}{hint}"


def _quotes(kind: str, given: object) -> str:
    if kind == "string_type" and not isinstance(given, Mapping | list):
        return "; put it in quotes"
    if (
        kind in ("int_type", "float_type")
        and isinstance(given, str)
        and given.strip("-+. ")[:1].isdigit()
    ):
        return " (in quotes?)"
    return ""


def _mismatch(key: str, given: object) -> str:
    if key == "name":
        return f"{show(given)} is not a name: letters, digits, . _ and -, a letter or digit first, up to 64"
    if isinstance(given, str) and any(not character.isprintable() for character in given):
        return f"{show(given)} has control characters"
    return f"{show(given)} is not a module name such as torchvision.models"
