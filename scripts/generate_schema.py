"""Write gpusched/recipe.schema.json, the JSON schema of recipes for editors: ``python scripts/generate_schema.py``.

Made from the model that validates recipes, the forms of the search space and the options that each policy declares.
An editor that knows it completes keys and underlines mistakes; the last word has ``gpusched validate``.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import typing
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from gpusched import policies
from gpusched.recipe.policy import DEFAULT
from gpusched.recipe.schema import RecipeModel

TARGET = Path(__file__).resolve().parent.parent / "gpusched" / "recipe.schema.json"
ID = "https://json-schema.org/draft/2020-12/schema"

BOUNDS = {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}
OPTIONS = {"type": "array", "minItems": 1}
FORMS: dict[str, tuple[dict[str, Any], str]] = {
    "choice": (OPTIONS, "One of these values."),
    "grid": (OPTIONS, "Each of these values in turn."),
    "uniform": (BOUNDS, "A number between these bounds."),
    "loguniform": (BOUNDS, "A number between these bounds, even in the logarithm."),
    "int": (BOUNDS, "A whole number between these bounds, both included."),
    "logint": (BOUNDS, "A whole number between these bounds, even in the logarithm."),
    "const": ({}, "This value, whatever it is."),
}
WHEN = {
    "type": "object",
    "minProperties": 1,
    "description": "Only if each of these keys has (one of) these values.",
}
#: A policy of the user's own: its options are known when its file is loaded.
OWN_POLICY: list[dict[str, Any]] = [
    {"type": "string", "pattern": r"\.py:\w+$"},
    {
        "type": "object",
        "title": "a policy of your own",
        "properties": {"name": {"type": "string", "pattern": r"\.py:\w+$"}},
        "required": ["name"],
    },
]
QUANTUM = {
    "type": "number",
    "exclusiveMinimum": 0,
    "description": "Only multiples of this.",
}


def schema() -> dict[str, Any]:
    """The whole schema."""
    model = RecipeModel.model_json_schema()
    properties = model["properties"]
    properties["space"] |= {"$ref": "#/$defs/Space"}
    properties["policy"] |= {
        "anyOf": [{"enum": list(policies.names())}, *map(_policy, policies.names()), *OWN_POLICY]
    }
    properties["lr_scaling"] = {
        "description": properties["lr_scaling"]["description"],
        "anyOf": [
            model["$defs"]["LrScaling"]["properties"]["power"],
            {"$ref": "#/$defs/LrScaling"},
        ],
    }
    for described in (*properties.values(), *model["$defs"]["LrScaling"]["properties"].values()):
        described.pop("title", None)
    model["$defs"] |= _space()
    return {"$schema": ID, **model, "title": "gpusched recipe"}


def _policy(name: str) -> dict[str, Any]:
    """The map form of one policy: its name and its options."""
    kind = policies.options_type(name)
    hints = typing.get_type_hints(kind)
    properties: dict[str, Any] = {"name": {"const": name}}
    needed = [] if name == DEFAULT else ["name"]
    for field in dataclasses.fields(kind):
        adapter: Any = TypeAdapter(hints[field.name])
        properties[field.name] = adapter.json_schema()
        if field.default is not dataclasses.MISSING:
            properties[field.name]["default"] = field.default
        elif field.default_factory is dataclasses.MISSING:
            needed.append(field.name)
    return {
        "type": "object",
        "title": name,
        "properties": properties,
        "required": needed,
        "additionalProperties": False,
    }


def _space() -> dict[str, Any]:
    parameter = {"anyOf": [{"type": ["string", "number", "boolean"]}, *map(_form, FORMS)]}
    group = {
        "type": "object",
        "title": "a group of hyperparameters",
        "properties": {"when": WHEN, **dict.fromkeys(FORMS, False)},
        "additionalProperties": {"$ref": "#/$defs/Hyperparameter"},
        "minProperties": 1,
    }
    parameter["anyOf"].append(group)
    space = {
        "type": "object",
        "minProperties": 1,
        "additionalProperties": {"$ref": "#/$defs/Hyperparameter"},
    }
    return {"Hyperparameter": parameter, "Space": space}


def _form(name: str) -> dict[str, Any]:
    argument, description = FORMS[name]
    properties: dict[str, Any] = {name: {**argument, "description": description}, "when": WHEN}
    if argument is BOUNDS:
        properties["q"] = QUANTUM
    return {
        "type": "object",
        "title": name,
        "properties": properties,
        "required": [name],
        "additionalProperties": False,
    }


def text() -> str:
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"


def main() -> int:
    TARGET.write_text(text())
    print(f"{TARGET.relative_to(TARGET.parent.parent)} is written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
