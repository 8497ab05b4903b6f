"""Samplers with a memory: what they suggest depends on how earlier trials went.

They run in a child process of the daemon (``driver.suggester``), which is told what is new with every question, and
everything after its death, so that it may die at any time. A sampler of your own is a class in a file of yours, named
in the recipe as ``sampler: mine.py:MySampler``, or an entry point of a package in the group ``gpusched.samplers``.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from gpusched import plugins
from gpusched.errors import InputError
from gpusched.samplers import OPTUNA, Sampler, Seen, sequence
from gpusched.space.space import Space, check_first, flat

GROUP = "gpusched.samplers"


def names() -> list[str]:
    """Names of all samplers, those of installed packages last."""
    return [*sequence.NAMES, *OPTUNA, *plugins.installed(GROUP)]


def load(name: str) -> type[Sampler]:
    """Return the class of a sampler with a memory.

    Raises KeyError for an unknown name, InputError for a class that cannot be used.
    """
    if not _is_optunas(name):
        return plugins.load(name, GROUP, Sampler)
    if find_spec("optuna") is None:
        raise InputError(f"{name} needs Optuna; install it with: pip install 'gpusched[optuna]'")
    from gpusched.samplers.optuna import sampler_type

    return sampler_type(name)


def _is_optunas(name: str) -> bool:
    return name in OPTUNA or (name.isidentifier() and name.endswith("Sampler"))


def make(name: str, space: Space, options: Mapping[str, Any]) -> Sampler:
    """Make a sampler. Raises InputError, with the line, where a user's class fails then or later."""
    kind = load(name)
    if _is_optunas(name):
        return kind(space, **options)
    try:
        made = kind(space, **options)
    except Exception as error:
        raise plugins.failure(kind, name, "__init__(space)", error) from error
    made.space = space  # a class need not call Sampler.__init__
    plugins.guard(made, name, ("suggest",), _checked)
    return made


def _checked(found: Any, *_: Any, **_named: Any) -> Any:
    if found is not None and not isinstance(found, Mapping):
        raise plugins.BadAnswer(f"{found!r}, not a map from hyperparameters to values")
    return found


def answer(
    sampler: Sampler, known: dict[int, Seen], question: Mapping[str, Any]
) -> dict[str, object]:
    """Answer one question: complete the suggestion by drawing what it leaves out, and check it against the space.

    ``known``: the trials by number; what is new of them comes with the question.
    """
    n, seed, space = question["n"], question["seed"], sampler.space
    for new in question["new"]:
        curve = [(step, score) for step, score in new["curve"]]
        known[new["trial"]] = Seen(**{**new, "curve": curve})
    seen = [known[number] for number in sorted(known)]
    found = sampler.suggest(n, seen, random.Random(f"{seed}/suggest/{n}"))
    if found is None:
        return {"hparams": None}
    problems = check_first(space, seed, [found]) if found else ()
    wrong = [f"{'.'.join(map(str, path[1:]))} {why}" for path, why in problems]
    if wrong:
        raise InputError(f"suggested {dict(found)}: {'; '.join(wrong)}")
    return {"hparams": space.draw(seed, f"suggested {n}", flat(found, space.leaves))}
