"""The sampler of a recipe: its name and options, against the space and the class that is named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gpusched import plugins
from gpusched.errors import InputError
from gpusched.recipe.document import Finding
from gpusched.recipe.recipe import DEFAULT_SAMPLER
from gpusched.samplers import memory, sequence
from gpusched.space.space import Space
from gpusched.text import nearest, show


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
        return DEFAULT_SAMPLER, {}, [(("sampler",), _unknown(name))]
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
    for key, why in memory.option_problems(kind, own):
        yield ("sampler", key), why
    if repeats > 1:
        yield ("repeats",), "goes with sampler: random or grid only"


def _unknown(name: str) -> str:
    known = memory.names()
    meant = nearest(name, known)
    there = f"there are {', '.join(known)}; one of your own is written FILE.py:CLASS"
    return f"unknown sampler {show(name)}; {f'did you mean {meant}?' if meant else there}"
