"""Samplers suggest configurations: ``sequence`` by number alone, others by how earlier trials went, as ``optuna``'s.

Those with a memory run in a child process of the daemon (``driver.suggester``), which is told everything with every
question, so that it may die at any time. A sampler of your own is a class in a file of yours, named in the recipe as
``sampler: mine.py:MySampler``, or an entry point of a package in the group ``gpusched.samplers``.
"""

from __future__ import annotations

import json
import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from gpusched import plugins
from gpusched.errors import InputError
from gpusched.samplers import sequence
from gpusched.space.space import Space, flat, value_problems

GROUP = "gpusched.samplers"
#: Optuna's TPESampler.
TPE = "tpe"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A trial so far. More ``score`` is better whatever the recipe's ``mode``."""

    trial: int
    hparams: Mapping[str, Any]
    #: pending, starting, running, yielding, paused, completed, stopped or failed; failed too where the latest metric
    #: was not finite.
    state: str
    #: (step, score) of the reports; a long curve is thinned.
    curve: Sequence[tuple[int, float]]

    @property
    def score(self) -> float | None:
        """The best score; None without a report."""
        return max((score for _, score in self.curve), default=None)


class Sampler(ABC):
    """Suggests configurations by what is known: derive from it, and write ``suggest``.

    ``startup``: so many configurations are drawn at random before the first question.
    """

    startup = 0

    def __init__(self, space: Space) -> None:
        self.space = space

    @abstractmethod
    def suggest(
        self, n: int, seen: Sequence[Seen], random: random.Random
    ) -> Mapping[str, object] | None:
        """Return configuration ``n``, nested as the space, or a part of it: the rest is drawn. None ends the sequence.

        ``random`` is seeded by the recipe's seed and ``n``: the same question gets the same answer.
        """


def names() -> list[str]:
    """Return the names of all samplers, those of installed packages last."""
    return [*sequence.NAMES, TPE, *plugins.installed(GROUP)]


def load(name: str) -> type[Sampler]:
    """Return the class of a sampler with a memory.

    Raises KeyError for an unknown name, InputError for a class that cannot be used.
    """
    if name != TPE:
        return plugins.load(name, GROUP, Sampler)
    if find_spec("optuna") is None:
        raise InputError(f"{name} needs Optuna; install it with: pip install optuna")
    from gpusched.samplers.optuna import Tpe

    return Tpe


def make(name: str, space: Space, options: Mapping[str, Any]) -> Sampler:
    """Make a sampler. Raises InputError with the line where a user's class fails; what Optuna raises for options."""
    kind = load(name)
    if name == TPE:
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
    # Numbers of NumPy become Python's: neither JSON nor the space knows others.
    return json.loads(json.dumps(found and dict(found), default=lambda value: value.item()))


def answer(sampler: Sampler, question: Mapping[str, Any]) -> dict[str, object]:
    """Answer one question: check the suggestion against the space, and draw what it leaves out.

    A value whose condition does not hold, beside a parent that was drawn, is dropped.
    """
    n, seed, space = question["n"], question["seed"], sampler.space
    seen = [Seen(**{**one, "curve": [*map(tuple, one["curve"])]}) for one in question["seen"]]
    seen.sort(key=lambda trial: trial.trial)
    found = sampler.suggest(n, seen, random.Random(f"{seed}/suggest/{n}"))
    if found is None:
        return {"hparams": None}
    problems = value_problems(found, space.leaves) if found else ()
    wrong = [f"{'.'.join(path)} {why}" for path, why in problems]
    if wrong:
        raise InputError(f"suggested {dict(found)}: {'; '.join(wrong)}")
    return {"hparams": space.draw(seed, f"suggested {n}", flat(found, space.leaves))}
