"""The policies by name, and all that a policy of a user's own needs to import.

Importing this imports none of the policies: some need NumPy and SciPy. ``base.py`` holds what several share,
``extrapolation.py`` says how learning curves may continue.
"""

from __future__ import annotations

import importlib
import typing
from collections.abc import Iterable, Mapping
from dataclasses import is_dataclass
from numbers import Integral
from typing import Any

import msgspec

from gpusched import plugins
from gpusched.core.decisions import (
    BadOption,
    Complete,
    Decision,
    LeaveFree,
    Options,
    Pause,
    Policy,
    Resize,
    Resume,
    Start,
    Stop,
    TrialView,
    View,
    WakeAt,
)
from gpusched.errors import InputError
from gpusched.text import no_trial

__all__ = [
    "BadOption",
    "Complete",
    "Decision",
    "LeaveFree",
    "Options",
    "Pause",
    "Policy",
    "Resize",
    "Resume",
    "Start",
    "Stop",
    "TrialView",
    "View",
    "WakeAt",
]

#: Methods of a policy that gpusched calls: those that answer with decisions, and the others.
DECIDING = ("on_report", "on_capacity", "on_exit", "on_wake")
TELLING = ("notes", "explain", "problems")
#: Entry points of this group are policies of installed packages.
GROUP = "gpusched.policies"

#: name -> (module, class)
REGISTRY: Mapping[str, tuple[str, str]] = {
    "fifo": ("gpusched.policies.fifo", "Fifo"),
    "asha": ("gpusched.policies.asha", "Asha"),
    "hypersched": ("gpusched.policies.hypersched", "HyperSched"),
    "foresight": ("gpusched.policies.foresight", "Foresight"),
    "bandit": ("gpusched.policies.bandit", "Bandit"),
    "earlyterm": ("gpusched.policies.earlyterm", "EarlyTerm"),
    "pop": ("gpusched.policies.pop", "Pop"),
    "seer": ("gpusched.policies.seer", "Seer"),
    "hermes": ("gpusched.policies.hermes", "Hermes"),
}
#: Those under which a trial has one number of atoms all its life.
OF_ONE_SIZE = ("fifo", "asha", "bandit", "earlyterm", "pop", "hermes")


def names() -> tuple[str, ...]:
    """Return the names of the policies that come with gpusched, in the order of the documentation."""
    return tuple(REGISTRY)


def all_names() -> tuple[str, ...]:
    """Return ``names()`` and those of installed packages."""
    return (*REGISTRY, *(name for name in plugins.installed(GROUP) if name not in REGISTRY))


def label(name: str) -> str:
    """Return a name that is short and fit for a folder: ``MyPolicy`` of ``/home/me/mine.py:MyPolicy``."""
    return name.rpartition(":")[2]


def policy_type(name: str) -> type[Policy]:
    """Return a policy's class. Raises KeyError for an unknown name, InputError for a class that cannot be used."""
    if name not in REGISTRY:
        return plugins.load(name, GROUP, Policy)
    module, attribute = REGISTRY[name]
    found: type[Policy] = getattr(importlib.import_module(module), attribute)
    return found


def options_type(name: str) -> type[Any]:
    """Return the frozen dataclass of a policy's options. Raises as ``policy_type`` does."""
    kind = policy_type(name).options_type
    if not is_dataclass(kind):
        raise InputError(
            f"options_type of {name} is not a dataclass; derive it from gpusched.policies.Options, with "
            "@dataclass(frozen=True, kw_only=True)"
        )
    return kind


def make(name: str, options: Mapping[str, object]) -> Policy:
    """Make a policy with options that have been validated. Raises InputError where a user's class cannot be made."""
    kind, options_kind = policy_type(name), options_type(name)
    given = options_kind(**_declared(options_kind, options))
    if name in REGISTRY:
        return kind(given)
    try:
        made = kind(given)
    except Exception as error:
        raise plugins.failure(kind, name, "__init__(options)", error) from error
    if not hasattr(made, "options"):
        made.options = given  # a class need not call Policy.__init__
    plugins.guard(made, name, DECIDING, _checked)
    plugins.guard(made, name, TELLING, lambda answer, *_, **_named: list(answer))
    return made


def _declared(kind: type[Any], options: Mapping[str, object]) -> dict[str, Any]:
    """Return the options with each list and map as their class declares it: a file knows no tuple."""
    hints, found = typing.get_type_hints(kind), dict[str, Any](options)
    for name in hints.keys() & found.keys():
        if isinstance(found[name], list | tuple | dict):
            found[name] = msgspec.convert(found[name], hints[name], str_keys=True)
    return found


def _checked(answer: Any, view: View, *_: Any, **_named: Any) -> list[Decision]:
    """Return the decisions of a user's policy.

    Raises BadAnswer for an answer without decisions, or with one that can never be carried out.
    """
    if isinstance(answer, str) or not isinstance(answer, Iterable):
        raise plugins.BadAnswer(
            f"{answer!r}, not a list of decisions, such as [Start(1, 'why')]; [] changes nothing"
        )
    decisions = list(answer)
    for decision in decisions:
        if not isinstance(decision, Decision):
            raise plugins.BadAnswer(f"{decision!r}, which is no decision, as Start(1, 'why') is")
        atoms, trial = getattr(decision, "atoms", 1), getattr(decision, "trial", None)
        if not isinstance(atoms, Integral) or atoms < 1:
            raise plugins.BadAnswer(f"{decision!r}: atoms must be a whole number, 1 or more")
        if trial is not None and trial not in view.trials:
            numbered = isinstance(trial, Integral)
            why = (
                no_trial(int(trial), len(view.trials))
                if numbered
                else "name a trial by its trial.id"
            )
            raise plugins.BadAnswer(f"{decision!r}: {why}")
    return decisions
