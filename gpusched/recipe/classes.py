"""The policy, the sampler and the loggers of a recipe: names and options, against the classes that are named."""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from gpusched import loggers, plugins, policies, samplers
from gpusched.errors import InputError
from gpusched.recipe.messages import OPTIONS_ELSEWHERE, BadValue, typed, unknown_key
from gpusched.recipe.recipe import DEFAULT_POLICY, DEFAULT_SAMPLER
from gpusched.recipe.yaml import Finding
from gpusched.samplers import sequence
from gpusched.space.space import Space
from gpusched.text import did_you_mean, show

Named = tuple[str, dict[str, Any], list[Finding]]
"""A name, its complete options, and their problems."""

#: Endings of names of classes in other tools: TPESampler, ASHAScheduler, HyperbandPruner.
_ELSEWHERE = re.compile(r"(sampler|scheduler|pruner|optimizer)$")


def _named(
    raw: object, default: str, known: Collection[str], folder: Path | None
) -> tuple[str, dict[str, Any]]:
    """Return the name and the options that stand in the file: a name alone, or a map of both. Raises BadValue."""
    options = {"name": raw} if isinstance(raw, str) else raw
    names = ", ".join(known)
    if not isinstance(options, Mapping):
        raise BadValue(f"should be one of {names}, or a map of a name and options; not {show(raw)}")
    name = options.get("name", default)
    if meant := next((key for key in options if key in known), None):
        raise BadValue(f"write the options beside the name, as in {{name: {meant}, ..}}", (meant,))
    if not isinstance(name, str):
        raise BadValue(f"should be one of {names}, not {show(name)}", ("name",))
    name = plugins.absolute(name, folder or Path.cwd())
    return name, {key: value for key, value in options.items() if key != "name"}


def _loaded(what: str, name: str, load: Callable[[str], Any], known: Collection[str]) -> Any:
    """Return the class of this name. Raises BadValue."""
    try:
        return load(name)
    except KeyError:
        there = f"; there are {', '.join(known)}; one of your own is written FILE.py:CLASS"
        elsewhere = _ELSEWHERE.sub("", name.lower())
        hint = did_you_mean(name, known) or did_you_mean(elsewhere, known) or there
        raise BadValue(f"unknown {what} {show(name)}{hint}") from None
    except InputError as error:
        raise BadValue(str(error)) from None


def check_policy(raw: object, folder: Path | None = None) -> Named:
    """Return name and complete options of the policy, and their problems.

    ``folder``: where the file of a policy such as ``mine.py:MyPolicy`` is looked for (None: here).
    """
    known = policies.all_names()
    try:
        name, given = _named(raw, DEFAULT_POLICY, known, folder)
        kind = _loaded("policy", name, policies.options_type, known)
        options, findings = _check_options(name, kind, given)
    except BadValue as error:
        return "", {}, [(("policy", *error.path), str(error))]
    return name, options, [(("policy", *path), message) for path, message in findings]


def _check_options(
    name: str, kind: Any, given: Mapping[str, Any]
) -> tuple[dict[str, Any], list[Finding]]:
    fields = {field.name: field for field in dataclasses.fields(kind)}
    hints = typing.get_type_hints(kind)
    findings: list[Finding] = []
    values: dict[str, Any] = {}
    for key, value in given.items():
        if key not in fields:
            findings.append(((key,), _unknown_option(name, key, list(fields))))
            continue
        try:
            values[key] = typed(value, hints[key])
        except BadValue as error:
            findings.append(((key, *error.path), str(error)))
    missing = dataclasses.MISSING
    for key, field in fields.items():
        if key not in given and field.default is field.default_factory is missing:
            findings.append(((), f"policy {name} needs {key}; add it"))
    try:
        options = kind(**values)
    except (TypeError, ValueError) as error:
        return {}, findings or [((), str(error))]
    try:
        problems = list(options.problems()) if hasattr(options, "problems") else []
    except Exception as error:
        raise BadValue(str(plugins.failure(kind, name, "problems", error))) from error
    findings += [((key,), message) for key, message in problems if (key,) not in dict(findings)]
    return msgspec.json.decode(msgspec.json.encode(options, enc_hook=str)), findings


def _unknown_option(name: str, key: str, known: list[str]) -> str:
    if (meant_here := OPTIONS_ELSEWHERE.get(key.lower().replace("-", "_"))) in known:
        return f"unknown option of {name}; here it is {meant_here}"
    if not known:
        return f"unknown option of {name}, which has no options; leave it out"
    return unknown_key(key, known).replace("unknown key", f"unknown option of {name}")


def option_names(policy: str) -> list[str]:
    """Return the names of a policy's options."""
    try:
        return [field.name for field in dataclasses.fields(policies.options_type(policy))]
    except (KeyError, InputError):  # which check_policy reports
        return []


def check_sampler(raw: object, folder: Path, space: Space | None) -> Named:
    """Return the name and the complete options of the sampler, and their problems.

    ``folder``: where a file such as that of ``mine.py:MySampler`` is looked for. ``space``: None if it has problems.
    """
    try:
        name, options = _named(raw, DEFAULT_SAMPLER, samplers.names(), folder)
        if name in sequence.NAMES:
            why = f"{name} has no options; leave it out"
            findings: list[Finding] = [(("sampler", key), why) for key in options]
            if space is not None:
                findings += [((key,), why) for key, why in sequence.problems(name, space)]
            return name, {}, findings
        kind = _loaded("sampler", name, samplers.load, samplers.names())
        startup = typed(options.pop("startup", kind.startup), Annotated[int, msgspec.Meta(ge=0)])
    except BadValue as error:
        return DEFAULT_SAMPLER, {}, [(("sampler", *error.path), str(error))]
    findings = [(("sampler", key), why) for key, why in plugins.option_problems(kind, options)]
    if space is not None and not findings:
        try:
            samplers.make(name, space, options)
        except (InputError, TypeError, ValueError) as error:
            findings.append((("sampler",), str(error).partition("\n")[0]))
    return name, {"startup": startup, **options}, findings


def check_log_to(raw: object, folder: Path) -> tuple[dict[str, Any], list[Finding]]:
    """Return each logger's options by its name, and their problems.

    ``raw``: a name, a map of names and options, or a list of such.
    """
    found: dict[str, Any] = {}
    findings: list[Finding] = []
    for item in raw if isinstance(raw, list) else [raw]:
        try:
            named = (
                {item: None}
                if isinstance(item, str)
                else typed(item, dict[str, dict[str, Any] | None])
            )
            for name, options in named.items():
                name = plugins.absolute(name, folder)
                kind = _loaded("logger", name, loggers.load, loggers.names())
                found[name] = dict(options or {})
                problems = plugins.option_problems(kind, found[name])
                findings += [(("log_to",), f"{name}: {key} {why}") for key, why in problems]
        except BadValue as error:
            findings.append((("log_to",), f"{error}, as in [tensorboard, {{mlflow: {{uri: ..}}}}]"))
    return found, findings
