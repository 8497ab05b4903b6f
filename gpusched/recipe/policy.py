"""The policy, the sampler and the loggers of a recipe: names and options, against the classes that are named."""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gpusched import plugins, policies
from gpusched.errors import InputError
from gpusched.loggers import base as loggers
from gpusched.recipe.document import Finding
from gpusched.recipe.messages import OPTIONS_ELSEWHERE, in_words, unknown_key
from gpusched.recipe.recipe import DEFAULT_POLICY, DEFAULT_SAMPLER
from gpusched.samplers import memory, sequence
from gpusched.space.space import Space
from gpusched.text import nearest, show


def check_policy(
    raw: object, folder: Path | None = None
) -> tuple[str, dict[str, Any], list[Finding]]:
    """Return name and complete options of the policy, and what is wrong with them.

    ``folder``: where the file of a policy such as ``mine.py:MyPolicy`` is looked for (None: here).
    """
    if isinstance(raw, str):
        raw = {"name": raw}
    if not isinstance(raw, Mapping):
        example = "policy: asha or policy: {name: asha, R: 81}"
        return (
            "",
            {},
            [(("policy",), f"should be a name or a map, as in {example}; not {show(raw)}")],
        )
    name = raw.get("name", DEFAULT_POLICY)
    if not isinstance(name, str):
        message = f"should be one of {', '.join(policies.all_names())}, not {show(name)}"
        return "", {}, [(("policy", "name"), message)]
    name = plugins.absolute(name, folder or Path.cwd())
    try:
        policies.policy_type(name)
    except KeyError:
        return "", {}, [(("policy",), _unknown_policy(name))]
    except InputError as error:
        return "", {}, [(("policy",), str(error))]
    given = {key: value for key, value in raw.items() if key != "name"}
    options, findings = _check_options(name, given)
    return name, options, [(("policy", *path), message) for path, message in findings]


def _unknown_policy(name: str) -> str:
    known = policies.all_names()
    meant = nearest(name, known)
    there = f"there are {', '.join(known)}; one of your own is written FILE.py:CLASS"
    return f"unknown policy {show(name)}; {f'did you mean {meant}?' if meant else there}"


def _check_options(name: str, given: Mapping[str, Any]) -> tuple[dict[str, Any], list[Finding]]:
    kind = policies.options_type(name)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    hints = typing.get_type_hints(kind)
    unknown = [key for key in given if key not in fields]
    findings: list[Finding] = [
        ((key,), _unknown_option(name, key, list(fields))) for key in unknown
    ]
    values: dict[str, Any] = {}
    wrong: list[Finding] = []
    for key in given:
        if key in fields:
            values[key], found = _check_value(hints[key], given[key])
            wrong += [((key, *path), message) for path, message in found]
    for key, field in fields.items():
        no_default = field.default is field.default_factory is dataclasses.MISSING
        if key not in given and no_default:
            wrong.append(((), f"policy {name} needs {key}"))
    if wrong:
        return {}, [*findings, *wrong]
    try:
        options = kind(**values)
        findings += [((key,), message) for key, message in _problems(options)]
    except ValueError as error:
        return {}, [*findings, ((), str(error))]
    return dataclasses.asdict(options), findings


def _problems(options: Any) -> list[tuple[str, str]]:
    return list(options.problems()) if hasattr(options, "problems") else []


def _check_value(hint: Any, value: object) -> tuple[Any, list[Finding]]:
    """Check a value through JSON: strict about numbers and text, but a list may become a tuple."""
    from pydantic import ConfigDict, TypeAdapter, ValidationError

    adapter: Any = TypeAdapter(hint, config=ConfigDict(allow_inf_nan=False))
    try:
        return adapter.validate_json(json.dumps(value), strict=True), []
    except ValidationError as error:
        first = error.errors()[0]
        return None, [((), in_words(first, None, ()))]


def _unknown_option(name: str, key: str, known: list[str]) -> str:
    if (meant_here := OPTIONS_ELSEWHERE.get(key.lower().replace("-", "_"))) in known:
        return f"unknown option of {name}; here it is {meant_here}"
    owners = [other for other in policies.names() if other != name and key in option_names(other)]
    if owners and not any(key.lower() == option.lower() for option in known):
        last = f" and {owners[-1]}" if len(owners) > 1 else owners[-1]
        return f"is an option of {', '.join(owners[:-1])}{last}, not of {name}; leave it out"
    if not known:
        return f"unknown; {name} has no options"
    return unknown_key(key, known).replace("unknown key", f"unknown option of {name}")


def option_names(policy: str) -> list[str]:
    """Return the names of a policy's options."""
    try:
        return [field.name for field in dataclasses.fields(policies.options_type(policy))]
    except (KeyError, InputError):  # which check_policy reports
        return []


# ------------------------------------------------------------ the sampler


def check_sampler(
    raw: object, folder: Path, space: Space | None, repeats: int
) -> tuple[str, dict[str, Any], list[Finding]]:
    """Return the name and the complete options of the sampler, and what is wrong with them.

    ``folder``: where a file such as that of ``mine.py:MySampler`` is looked for. ``space``: None if it has problems.
    """
    if isinstance(raw, str):
        raw = {"name": raw}
    if not isinstance(raw, Mapping) or not isinstance(raw.get("name", DEFAULT_SAMPLER), str):
        message = f"should be one of {', '.join(memory.names())}, or a map of name and options; not {show(raw)}"
        return DEFAULT_SAMPLER, {}, [(("sampler",), message)]
    name = plugins.absolute(raw.get("name", DEFAULT_SAMPLER), folder)
    options = {key: value for key, value in raw.items() if key != "name"}
    if name in sequence.NAMES:
        findings: list[Finding] = [(("sampler", key), f"{name} has no options") for key in options]
        if space is not None:
            findings += [((key,), why) for key, why in sequence.problems(name, space, repeats)]
        return name, {}, findings
    try:
        kind = memory.load(name)
    except KeyError:
        return DEFAULT_SAMPLER, {}, [(("sampler",), _unknown_sampler(name))]
    except InputError as error:
        return DEFAULT_SAMPLER, {}, [(("sampler",), str(error))]
    return name, {"startup": kind.startup, **options}, list(_check_memory(kind, options, repeats))


def _check_memory(
    kind: type[memory.Suggester], options: Mapping[str, Any], repeats: int
) -> Iterator[Finding]:
    startup = options.get("startup", 0)
    if not isinstance(startup, int) or isinstance(startup, bool) or startup < 0:
        why = "should be a number of configurations to draw at random first"
        yield ("sampler", "startup"), f"{why}, not {show(startup)}"
    own = {key: value for key, value in options.items() if key != "startup"}
    for key, why in plugins.option_problems(kind, own):
        yield ("sampler", key), why
    if repeats > 1:
        yield ("repeats",), "goes with sampler: random or grid only"


def _unknown_sampler(name: str) -> str:
    known = memory.names()
    meant = nearest(name, known)
    there = f"there are {', '.join(known)}; one of your own is written FILE.py:CLASS"
    return f"unknown sampler {show(name)}; {f'did you mean {meant}?' if meant else there}"


# ------------------------------------------------------------ the loggers


def check_log_to(raw: object, folder: Path) -> tuple[dict[str, Any], list[Finding]]:
    """Return each logger's options by its name, and what is wrong with them.

    ``raw``: a name, a map of names and options, or a list of such.
    """
    found: dict[str, Any] = {}
    findings: list[Finding] = []
    for item in raw if isinstance(raw, list) else [raw]:
        named = {item: None} if isinstance(item, str) else item
        if not isinstance(named, Mapping) or not all(
            isinstance(name, str) and isinstance(options, Mapping | None)
            for name, options in named.items()
        ):
            example = "[tensorboard, {mlflow: {uri: sqlite:///mlflow.db}}]"
            message = f"should be names of loggers, or maps of name and options, as in {example}"
            findings.append((("log_to",), f"{message}; not {show(item)}"))
            continue
        for name, options in named.items():
            name = plugins.absolute(name, folder)
            if name in found:
                findings.append((("log_to",), f"{name} is there twice"))
            found[name] = dict(options or {})
            findings += [(("log_to",), why) for why in _logger_problems(name, found[name])]
    return found, findings


def _logger_problems(name: str, options: Mapping[str, Any]) -> Iterator[str]:
    try:
        kind = loggers.load(name)
    except KeyError:
        meant = nearest(name, loggers.names())
        there = f"there are {', '.join(loggers.names())}; one of your own is written FILE.py:CLASS"
        yield f"unknown logger {show(name)}; {f'did you mean {meant}?' if meant else there}"
    except InputError as error:
        yield str(error)
    else:
        yield from (f"{name}: {key} {why}" for key, why in plugins.option_problems(kind, options))
