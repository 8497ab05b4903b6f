"""The JSON schema of recipe files, for editors, made from the keys of ``Recipe`` and the options of the policies."""

from __future__ import annotations

from typing import Any

import msgspec

from gpusched import policies
from gpusched.recipe import values
from gpusched.recipe.recipe import DEFAULT_POLICY, SHORTHANDS, Key, keys
from gpusched.samplers import memory

ID = "https://json-schema.org/draft/2020-12/schema"
_BOUNDS = {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}
_OPTIONS = {"type": "array", "minItems": 1}
_FORMS: dict[str, tuple[dict[str, Any], str]] = {
    "choice": (_OPTIONS, "One of these values."),
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
    properties: dict[str, Any] = {}
    for (*groups, name), about in keys().items():
        into = properties
        if groups:
            into = properties.setdefault(groups[0], _map_of({}))["anyOf"][-1]["properties"]
        if name != "*":
            into[name] = _key(about)
    for name in ("lr_scaling", "target"):
        plain = properties[name]["anyOf"][-1]["properties"][SHORTHANDS[name]]
        properties[name]["anyOf"].insert(0, plain)
        properties[name]["description"] = plain["description"]
    properties["space"]["$ref"] = "#/$defs/Space"
    policies_of_ours = [{"enum": list(policies.names())}, *map(_policy, policies.names())]
    samplers = {"enum": memory.names()}
    for name, kinds in (("policy", policies_of_ours), ("sampler", [samplers, _map(samplers)])):
        meaning = properties[name]["anyOf"][-1]["properties"]["name"]["description"]
        own = _own(f"a {name} of your own")
        properties[name] = {"description": meaning, "anyOf": [*kinds, *own]}
    return {
        "$schema": ID,
        "title": "gpusched recipe",
        "description": "One hyperparameter search with a deadline.",
        "type": "object",
        "properties": properties,
        "required": [path[0] for path, about in keys().items() if about.is_needed],
        "additionalProperties": False,
        "$defs": _space(),
    }


def _key(about: Key) -> dict[str, Any]:
    """Return the schema of one key: that of its reader, or of its type."""
    taken = values.SCHEMAS[about.reader] if about.reader else None
    found = taken or msgspec.json.schema(about.type_in_file)
    if about.may_be_null:
        found = {"anyOf": [found, {"type": "null"}]}
    more = {"examples": [about.example]} if about.example else {}
    if not about.is_needed and not about.may_be_null:
        more["default"] = about.default
    return {"description": about.meaning, **found, **more}


def _map_of(properties: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [{"type": "object", "properties": properties, "additionalProperties": False}]}


def _own(title: str) -> list[dict[str, Any]]:
    """Return the forms of a class in a file of the user's; its options are known when the file is loaded."""
    name = {"type": "string", "pattern": r"\.py:\w+$"}
    return [name, {"title": title, **_map(name)}]


def _map(name: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {"name": name}, "required": ["name"]}


def _policy(name: str) -> dict[str, Any]:
    """Return the map form of one policy: its name and its options."""
    _, parts = msgspec.json.schema_components([policies.options_type(name)])
    (options,) = parts.values()
    needed = [] if name == DEFAULT_POLICY else ["name"]
    options["required"] = [*needed, *options["required"]]
    options["properties"] = {"name": {"const": name}, **options["properties"]}
    return {**options, "title": name, "additionalProperties": False}


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
