"""The form of a recipe file, made from the fields of ``Recipe``: the pydantic model, and the JSON schema for editors.

``space``, ``policy`` and what depends on the machine are checked elsewhere. Imported only where a recipe is read; the
daemon does not pay for pydantic.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    WithJsonSchema,
    create_model,
)

from gpusched import policies
from gpusched.recipe import values
from gpusched.recipe.recipe import DEFAULT_POLICY, Key, Recipe
from gpusched.samplers import memory

ID = "https://json-schema.org/draft/2020-12/schema"

# ---------------------------------------------------------------- the model


class Strict(BaseModel):
    """No unknown keys, no conversions: ``true`` is not 1, ``"1"`` is not 1, and nothing is infinite."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


_TEXT_OR_NUMBER = {"type": ["string", "number"]}
_DEVICES = "^(auto|cpu(:[0-9]+)?|cuda(:[0-9]+(,[0-9]+)*)?|(GPU|MIG)-.+)$"
_ENVIRONMENT = {"anyOf": [_TEXT_OR_NUMBER, {"type": "null"}]}
_TABLE = {"type": "object", "additionalProperties": {"type": "number", "exclusiveMinimum": 0}}


def _reads(kind: Any, function: Any, schema: dict[str, Any]) -> Any:
    return Annotated[kind, BeforeValidator(function), WithJsonSchema(schema)]


_FILE = Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^[^\x00]+$")]
_MODULE = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$", max_length=200)]
#: ``Key.read``: the type of what stands in the file.
_READ: Mapping[str, Any] = {
    "anything": Any,
    "argument": list[_reads(str, values.argument, _TEXT_OR_NUMBER)],  # type: ignore[misc]
    "duration": _reads(
        float, values.duration, {**_TEXT_OR_NUMBER, "examples": ["90s", "10m", "1h30m"]}
    ),
    "deadline": _reads(float, values.deadline, {**_TEXT_OR_NUMBER, "examples": ["10m", "18:30"]}),
    "environment": _reads(
        dict[str, str | None],
        values.environment,
        {"type": "object", "additionalProperties": _ENVIRONMENT},
    ),
    "devices": _reads(
        Any,
        values.devices,
        {
            "anyOf": [
                {"type": "string", "pattern": _DEVICES},
                {"type": "array", "items": {"type": "string"}, "minItems": 1},
            ]
        },
    ),
    "module": list[_MODULE],
    "power": _reads(float, values.power, {"enum": [1, 0.5, 0, *values.POWERS]}),
    "scaling": _reads(Any, values.scaling, {"anyOf": [{"enum": list(values.SCALINGS)}, _TABLE]}),
    "size": _reads(int, values.size, {**_TEXT_OR_NUMBER, "examples": ["500MB", "50GB", "2TiB"]}),
    "sizes": _reads(
        list[int],
        values.sizes,
        {"type": "array", "items": {"type": "integer", "minimum": 1}},
    ),
}


def _type_in_file(hint: Any, about: Key) -> Any:
    """Return the type of a key in the file, from its type in ``Recipe``."""
    arguments = typing.get_args(hint)
    if about.read:
        kind = _READ[about.read]
        return kind | None if type(None) in arguments and about.read != "anything" else kind
    if Path in (hint, *arguments):
        return _FILE | None if about.is_found or type(None) in arguments else _FILE
    if typing.get_origin(hint) is tuple:
        return list[dict[str, Any]]
    return hint | None if about.is_found else hint


def _default(item: dataclasses.Field[Any], about: Key) -> Any:
    if about.is_found:
        return None
    if item.default_factory is not dataclasses.MISSING:
        return item.default_factory()
    if item.default is dataclasses.MISSING:
        return ...
    return list(item.default) if isinstance(item.default, tuple) else item.default


def _model() -> type[BaseModel]:
    keys: dict[str, dict[str, Any]] = {}
    hints = typing.get_type_hints(Recipe)
    for item in dataclasses.fields(Recipe):
        about: Key = item.metadata["key"]
        group, _, name = (about.path or item.name).rpartition(".")
        if group in ("policy", "sampler"):
            group, name = "", group
        if name in keys.setdefault(group, {}):
            continue
        examples = [about.example] if about.example else None
        described = Field(
            _default(item, about), description=about.meaning, examples=examples, **about.limits
        )
        keys[group][name] = (_type_in_file(hints[item.name], about), described)
    inner = create_model("LrScaling", __base__=Strict, **keys["lr_scaling"])
    inner.__doc__ = "How the learning rate follows the number of atoms."
    meaning = "How the learning rate follows the atoms; a power alone will do."
    shorthand = BeforeValidator(lambda v: v if isinstance(v, dict) else {"power": v})
    keys[""]["lr_scaling"] = (
        Annotated[inner, shorthand],
        Field(default_factory=inner, description=meaning),
    )
    model = create_model("RecipeModel", __base__=Strict, **keys[""])
    model.__doc__ = "A gpusched recipe: one hyperparameter search with a deadline."
    return model


RecipeModel = _model()

# ---------------------------------------------------------------- the schema for editors

_BOUNDS = {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}
_OPTIONS = {"type": "array", "minItems": 1}
_FORMS: dict[str, tuple[dict[str, Any], str]] = {
    "choice": (_OPTIONS, "One of these values."),
    "grid": (_OPTIONS, "Each of these values in turn."),
    "uniform": (_BOUNDS, "A number between these bounds."),
    "loguniform": (_BOUNDS, "A number between these bounds, even in the logarithm."),
    "int": (_BOUNDS, "A whole number between these bounds, both included."),
    "logint": (_BOUNDS, "A whole number between these bounds, even in the logarithm."),
    "const": ({}, "This value, whatever it is."),
}
_WHEN = {
    "type": "object",
    "minProperties": 1,
    "description": "Only if each of these keys has (one of) these values.",
}
_QUANTUM = {"type": "number", "exclusiveMinimum": 0, "description": "Only multiples of this."}


def json_schema() -> dict[str, Any]:
    """Return the schema of a recipe: its keys, the forms of the space, and the options that each policy declares."""
    model = RecipeModel.model_json_schema()
    properties, groups = model["properties"], model["$defs"]
    properties["space"] |= {"$ref": "#/$defs/Space"}
    properties["policy"] |= {
        "anyOf": [
            {"enum": list(policies.names())},
            *map(_policy, policies.names()),
            *_own("a policy of your own"),
        ]
    }
    samplers = {"enum": memory.names()}
    properties["sampler"] |= {"anyOf": [samplers, _map(samplers), *_own("a sampler of your own")]}
    properties["lr_scaling"] = {
        "description": properties["lr_scaling"]["description"],
        "anyOf": [groups["LrScaling"]["properties"]["power"], {"$ref": "#/$defs/LrScaling"}],
    }
    for described in (*properties.values(), *groups["LrScaling"]["properties"].values()):
        described.pop("title", None)
    groups |= _space()
    return {"$schema": ID, **model, "title": "gpusched recipe"}


def _own(title: str) -> list[dict[str, Any]]:
    """Return the forms of a class in a file of the user's; its options are known when the file is loaded."""
    name = {"type": "string", "pattern": r"\.py:\w+$"}
    return [name, {"title": title, **_map(name)}]


def _map(name: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {"name": name}, "required": ["name"]}


def _policy(name: str) -> dict[str, Any]:
    """Return the map form of one policy: its name and its options."""
    kind = policies.options_type(name)
    hints = typing.get_type_hints(kind)
    properties: dict[str, Any] = {"name": {"const": name}}
    needed = [] if name == DEFAULT_POLICY else ["name"]
    for item in dataclasses.fields(kind):
        adapter: Any = TypeAdapter(hints[item.name])
        properties[item.name] = adapter.json_schema()
        if item.default is not dataclasses.MISSING:
            properties[item.name]["default"] = item.default
        elif item.default_factory is dataclasses.MISSING:
            needed.append(item.name)
    return {
        "type": "object",
        "title": name,
        "properties": properties,
        "required": needed,
        "additionalProperties": False,
    }


def _space() -> dict[str, Any]:
    group = {
        "type": "object",
        "title": "a group of hyperparameters",
        "properties": {"when": _WHEN, **dict.fromkeys(_FORMS, False)},
        "additionalProperties": {"$ref": "#/$defs/Hyperparameter"},
        "minProperties": 1,
    }
    plain = {"type": ["string", "number", "boolean"]}
    space = {
        "type": "object",
        "minProperties": 1,
        "additionalProperties": {"$ref": "#/$defs/Hyperparameter"},
    }
    return {"Hyperparameter": {"anyOf": [plain, *map(_form, _FORMS), group]}, "Space": space}


def _form(name: str) -> dict[str, Any]:
    argument, meaning = _FORMS[name]
    properties: dict[str, Any] = {name: {**argument, "description": meaning}, "when": _WHEN}
    if argument is _BOUNDS:
        properties["q"] = _QUANTUM
    return {
        "type": "object",
        "title": name,
        "properties": properties,
        "required": [name],
        "additionalProperties": False,
    }
