"""Reading a recipe file with the command line's overrides into a checked ``Recipe``; all problems at once.

Order: read the YAML, apply overrides, read each key by itself, then check the space, the policy, the script and what
must fit together. A later check looks only at keys that passed the earlier ones, so that one mistake is told once.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path as FilePath
from typing import Any

from gpusched import plugins, policies
from gpusched.errors import RecipeError
from gpusched.recipe import checks
from gpusched.recipe.classes import check_log_to, check_policy, check_sampler, option_names
from gpusched.recipe.messages import ELSEWHERE, Path, unknown_key
from gpusched.recipe.recipe import NAMED, Recipe, keys
from gpusched.recipe.yaml import (
    Document,
    Finding,
    Problem,
    SourcePlace,
    Unreadable,
    read_text,
    read_yaml,
)
from gpusched.space import forms
from gpusched.space.space import (
    ALL,
    FOLDER,
    ID,
    Space,
    SpaceError,
    completed,
    names_in,
    parse_space,
)
from gpusched.text import nearest, show

_MEANT = re.compile(r"unknown key; (?:did you mean|here it is) (\w+)")
#: In the place of needed keys that are wrong, so that the others can be checked.
_STAND_INS: Mapping[str, Any] = {"script": "-", "deadline_s": 1.0, "metric": "-", "space": {}}


def load_recipe(
    path: FilePath, overrides: Sequence[str] = (), *, policy: str | None = None, **flags: str | None
) -> Recipe:
    """Read and check a recipe file.

    ``overrides`` are ``key.key=value`` with a YAML value; ``flags`` are keys that ``gpusched run`` has options for. A
    policy named by option keeps those options of the recipe's policy that it knows too.

    Raises RecipeError with all problems, each ``recipe.yaml:LINE: dotted.key: problem; remedy``, and InputError if
    the file does not exist or is not text.
    """
    path = FilePath(path)
    document = _read(path)
    # The policy first: an option set for it on the command line must be one that it has.
    if policy is not None:
        _apply_flag(document, "policy", policy)
    for text in overrides:
        _override(document, text)
    for key, value in flags.items():
        if value is not None:
            _apply_flag(document, key, value)
    _find_module(document, path.absolute().parent)
    findings = _unknown_keys(document.data)
    told = {problem.path for problem in document.problems}
    wrong = {path[0] for path in told if path} | {path[0] for path, _ in findings}
    fields: dict[str, Any] = {}
    for name in [name for name in document.data if name not in wrong]:
        try:
            fields[keys()[name].field] = keys()[name].read(document.data[name])
        except ValueError as error:
            findings.append(((name, *getattr(error, "path", ())), str(error)))
    recipe, more = _check_values(fields, path.absolute(), document.data)
    for where, message in (*findings, *more):
        if where not in told:
            document.complain(where, message)
    if document.problems:  # in the order of the file, the command line's last
        ordered = sorted(document.problems, key=lambda problem: problem.place.line or 1 << 30)
        raise RecipeError(list(dict.fromkeys(map(str, ordered))))
    return recipe


def _find_module(document: Document, folder: FilePath) -> None:
    """Name the file of ``module: pkg.train`` as the script; that of a package is its ``__main__``."""
    module = document.data.get("module")
    if not isinstance(module, str):
        return
    if "script" in document.data:
        why = "script names what is run as well; leave one of the two out"
        document.complain(("module",), why)
        return
    cwd = checks.absolute(folder, str(document.data.get("cwd") or "."))
    file = _home_of(module.partition(".")[0], folder, cwd).joinpath(*module.split("."))
    if file.is_dir():
        file, document.data["module"] = file / "__main__", f"{module}.__main__"
    document.data["script"] = f"{file}.py"
    document.places[("script",)] = document.places[("module",)]


def _home_of(package: str, *folders: FilePath) -> FilePath:
    """Return where a package lies: in one of these folders, in ``src`` there, else where it is installed."""
    found = None
    with suppress(ImportError, ValueError):
        found = importlib.util.find_spec(package)
    places = (found and found.submodule_search_locations) or ()
    homes = [one / below for below in (".", "src") for one in folders]
    homes += [FilePath(place).parent for place in places]
    return next((home for home in homes if (home / package).is_dir()), folders[0])


def _read(path: FilePath) -> Document:
    origin = str(path)
    try:
        document = read_yaml(read_text(path), origin)
    except Unreadable as error:
        raise RecipeError([f"{origin}:{error.line}: {error}"]) from None
    if document.data is None:
        why = "is empty; a recipe has at least script, deadline, metric and space"
        raise RecipeError([f"{origin}:1: {why}"])
    if not isinstance(document.data, dict):
        raise RecipeError([f"{origin}:1: should be a map of keys, not {show(document.data)}"])
    return document


# ------------------------------------------------------------ overrides


def _override(document: Document, text: str) -> None:
    """Apply ``a.b=value``."""
    place = SourcePlace(f"--set {text if len(text) <= 60 else text[:57] + '...'}")
    key, equals, value = text.partition("=")
    names = key.strip().split(".")
    if not equals or not all(names):
        problem = "write --set key=value, as in --set policy.R=27"
        document.problems.append(Problem(place, (), problem))
        return
    _set(document, tuple(names), value, place)


def _apply_flag(document: Document, key: str, text: str) -> None:
    place = SourcePlace(f"--{key} {text[:60]}")
    if key == "policy" and (plugins.is_file(text) or text in policies.all_names()):
        # Options that both policies have are kept, so that one recipe compares several.
        before = document.data.get("policy")
        known = option_names(name := plugins.absolute(text, FilePath.cwd()))
        options = before.items() if isinstance(before, dict) else ()
        document.data["policy"] = {
            "name": name,
            **{option: value for option, value in options if option in known},
        }
        _replace(document, ("policy",), place)
    else:
        _set(document, (key,), text, place)


def _set(document: Document, path: Path, text: str, place: SourcePlace) -> None:
    try:
        value = read_yaml(text, place.origin, path)
    except Unreadable as error:
        document.problems.append(Problem(place, path, str(error)))
        return
    for problem in value.problems:
        document.problems.append(Problem(place, problem.path, problem.message))
    branch: dict[str, Any] = document.data
    for depth, name in enumerate(path[:-1], 1):
        inner = branch.setdefault(str(name), {})
        if path[:depth] in {(named,) for named in NAMED} and isinstance(inner, str):
            inner = {"name": inner}
        if not isinstance(inner, dict):
            where = ".".join(map(str, path[:depth]))
            document.problems.append(
                Problem(place, path, f"{where} is not a map of keys; set {where} as a whole")
            )
            return
        branch[str(name)] = inner
        document.places.setdefault(path[:depth], place)
        branch = inner
    branch[str(path[-1])] = value.data
    _replace(document, path, place)


def _replace(document: Document, path: Path, place: SourcePlace) -> None:
    """Note that a key of the file, with all in it, was set on the command line."""
    for known in [known for known in document.places if known[: len(path)] == path]:
        del document.places[known]
    document.places[path] = place


# ------------------------------------------------------------ checks


def _unknown_keys(data: Mapping[str, Any]) -> list[Finding]:
    """Return keys that are unknown, with those that were meant, and keys that are missing."""
    findings: list[Finding] = [
        ((name,), _misplaced(name, data) or unknown_key(name, sorted(keys())))
        for name in data
        if name not in keys()
    ]
    # A key under another name is not missing as well.
    meant = {name for _, message in findings for name in _MEANT.findall(message)}
    for name, about in keys().items():
        if about.is_needed and name not in {*data, *meant}:
            why = f"missing; every recipe needs it, as in {name}: {about.example}"
            findings.append(((name,), why))
    return findings


def _misplaced(key: str, data: Mapping[str, Any]) -> str:
    """Return a hint for another tool's name of a key, a hyperparameter, or an option of the policy; else nothing."""
    space, value = data.get("space"), data[key]
    has_form = isinstance(value, Mapping) and any(form in value for form in forms.NAMES)
    if has_form or (isinstance(space, Mapping) and key in space):
        return f"is a hyperparameter; write it as space: {{{key}: ...}}"
    if key.lower() in ELSEWHERE:
        return f"unknown key; here it is {ELSEWHERE[key.lower()]}"
    known = any(key in option_names(name) for name in policies.names())
    return f"is an option of the policy; write it as policy: {{{key}: ...}}" if known else ""


def _check_values(
    fields: Mapping[str, Any], file: FilePath, given: Collection[str]
) -> tuple[Recipe, list[Finding]]:
    """Return the recipe of the fields without problems, and the problems of their values.

    The recipe is to be used only if there are no problems: needed fields that are wrong have stand-ins. ``given``: all
    keys of the file.
    """
    folder, findings = file.parent, list[Finding]()
    found: dict[str, Any] = {"name": None, "cwd": None, **_STAND_INS, **fields}
    script = found["script"] = checks.absolute(folder, found["script"])
    found["name"] = found["name"] or _name_of(file)
    if found["cwd"] == checks.PRIVATE:
        found["cwd"] = FilePath(checks.PRIVATE)
    else:
        cwd = found["cwd"] = checks.absolute(folder, found["cwd"] or ".")
        if not os.access(cwd, os.X_OK) or not cwd.is_dir():
            why = f"{show(str(cwd))} is no folder that can be opened; make it, or leave cwd out"
            findings.append((("cwd",), why))
    draft = Recipe(**found)
    if "script" in fields:
        findings += checks.check_script(script, folder, fields.get("python"))
    if draft.python is not None:
        try:
            found["python"] = checks.find_python(fields["python"], folder, draft.launch)
        except ValueError as error:
            findings.append((("python",), str(error)))
    space = None
    if "space" in fields:
        space, wrong = _check_space(draft)
        findings += wrong
    if isinstance(earlier := fields.get("after"), str):
        found["after"] = ()
        try:
            if space is not None and "metric" in fields:
                earlier_folder = checks.absolute(folder, earlier)
                found["after"] = checks.read_after(earlier_folder, draft.metric, draft.mode, space)
        except ValueError as error:
            findings.append((("after",), str(error)))
    if "mode" not in given and checks.better_mode(draft.metric) == "min":
        why = f"{draft.metric} looks like a loss, but mode is max: add mode: min"
        findings.append((("metric",), f"{why} (or mode: max, if more of it is better)"))
    named = (
        check_sampler(draft.sampler_name, folder, space),
        check_policy(draft.policy_name, folder),
    )
    for kind, (name, options, wrong) in zip(("sampler", "policy"), named, strict=True):
        found[f"{kind}_name"], found[f"{kind}_options"] = name, options
        findings += wrong
    found["log_to"], wrong = check_log_to(draft.log_to or [], folder)
    findings += wrong
    if draft.atoms_per_gpu > 1 and draft.max_atoms is None:
        found["max_atoms"] = 1  # nccl takes one rank a GPU
    recipe = Recipe(**found)
    return recipe, [*findings, *_check_together(recipe)]


def _name_of(file: FilePath) -> str:
    """Return the recipe's file name as a name of an experiment."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", file.stem).strip("._-")
    return name[:64] or "search"


def _check_space(recipe: Recipe) -> tuple[Space | None, list[Finding]]:
    """Return the space, and its problems, or those of keys that depend on it."""
    try:
        space = parse_space(recipe.space)
    except SpaceError as error:
        return None, [(("space", *path), message) for path, message in error.problems]
    findings = list(_check_arguments(recipe, space))
    for place, values in enumerate(recipe.try_first):
        wrong = completed(space, recipe.draw_seed, f"first {place}", values)[1]
        findings += [(("try_first", place, *path), message) for path, message in wrong]
    return space, findings


def _check_arguments(recipe: Recipe, space: Space) -> Iterator[Finding]:
    """Check that every ``${name}`` is of the space and in ``args``, where each option is an argument with its value."""
    args, known = recipe.args, [name for name, _ in space.describe()]
    for name, value in recipe.env.items():
        if given := {*known, ALL, ID, FOLDER}.intersection(names_in(value or "")):
            why = f"${{{min(given)}}} stands for a value in args alone; pass it there"
            yield ("env", name), f"{why}, or set os.environ in the script"
    leaves = {f"${{{'.'.join(path)}}}": leaf for path, leaf in space.leaves.items()}
    for place, argument in enumerate(args):
        option = args[place - 1] if place else ""
        if not re.fullmatch(r"--?[A-Za-z][\w.-]*", option):
            if found := re.match(r"(--[A-Za-z][\w.-]*) ", argument):
                why = f"is one argument, blank included; write {found[1]}=.., each option by itself"
                yield ("args", place), f"{show(argument)} {why}"
        elif (leaf := leaves.get(argument)) and leaf.conditions and "'-" not in str(leaf.form):
            why = f"is left out where its key is absent, and {option} is not"
            yield ("args", place), f"{argument} {why}; write one argument, '{option}={argument}'"
        for name in names_in(argument):
            is_whole = name == ALL and argument.strip() == f"${{{name}}}"
            if is_whole or name in (*known, ID, FOLDER):
                continue
            meant = nearest(name, [*known, ALL, ID, FOLDER])
            hint = f"did you mean {meant}?" if meant else f"there are {', '.join(known[:20])}"
            message = f"${{{name}}}: the space has no such key; {hint} ($${{ stands for ${{)"
            yield ("args", place), message


def _check_together(recipe: Recipe) -> Iterator[Finding]:
    """Yield problems of keys that are right alone and wrong together."""
    if recipe.atoms_per_gpu > 1:
        if recipe.devices.startswith("cpu"):
            yield ("atoms_per_gpu",), "an atom on the CPU is one slot; leave atoms_per_gpu out"
        elif recipe.max_atoms != 1 or max(recipe.sizes, default=1) > 1:
            wrong = "sizes" if recipe.max_atoms == 1 else "max_atoms"
            yield (wrong,), f"a trial on a share of a GPU has one atom; leave {wrong} out"
        return
    if recipe.max_atoms is not None and recipe.sizes and min(recipe.sizes) > recipe.max_atoms:
        below = f"{recipe.max_atoms} is below the smallest of sizes, {min(recipe.sizes)}"
        yield ("max_atoms",), f"{below}; raise max_atoms or add a smaller size"
