"""The policies by name. Importing this imports none of them: some need NumPy and SciPy."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from gpusched.policies.base import Policy

#: name -> (module, class)
REGISTRY: Mapping[str, tuple[str, str]] = {
    "fifo": ("gpusched.policies.fifo", "Fifo"),
    "sha": ("gpusched.policies.sha", "Sha"),
    "hyperband": ("gpusched.policies.hyperband", "Hyperband"),
    "asha": ("gpusched.policies.asha", "Asha"),
    "hypersched": ("gpusched.policies.hypersched", "HyperSched"),
    "bandit": ("gpusched.policies.bandit", "Bandit"),
    "earlyterm": ("gpusched.policies.earlyterm", "EarlyTerm"),
    "pop": ("gpusched.policies.pop", "Pop"),
    "seer": ("gpusched.policies.seer", "Seer"),
    "hermes": ("gpusched.policies.hermes", "Hermes"),
    "profile": ("gpusched.policies.profile", "Profile"),
}


def names() -> tuple[str, ...]:
    """All policies, in the order of the documentation."""
    return tuple(REGISTRY)


def policy_type(name: str) -> type[Policy]:
    """The class of a policy. Raises KeyError for an unknown name."""
    module, attribute = REGISTRY[name]
    found: type[Policy] = getattr(importlib.import_module(module), attribute)
    return found


def options_type(name: str) -> type[Any]:
    """The frozen dataclass of a policy's options. Raises KeyError for an unknown name."""
    return policy_type(name).options_type


def make(name: str, options: Mapping[str, object]) -> Policy:
    """A policy with these options, which have been validated."""
    cls: Any = policy_type(name)
    policy: Policy = cls(cls.options_type(**options))
    return policy
