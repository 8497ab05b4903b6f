"""A policy's options are checked against the dataclass it declares: with options made for this test."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from types import ModuleType
from typing import Any, Literal

import pytest

from gpusched import policies
from gpusched.cli.validate import _options
from gpusched.recipe.classes import check_policy
from tests.recipe.conftest import Load


@dataclass(frozen=True, kw_only=True)
class Options:
    budget: float
    sizes: tuple[int, ...] = (1, 2)
    table: dict[str, float] = field(default_factory=dict)
    kind: Literal["quick", "exact"] = "quick"
    limit: int | None = None
    names: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.limit == 13:
            raise ValueError("limit 13 brings bad luck")

    def problems(self) -> Iterator[tuple[str, str]]:
        if self.budget <= 0:
            yield "budget", "must be above 0"


@dataclass(frozen=True)
class Nothing:
    pass


class Made:
    options_type: type[Any] = Options

    def __init__(self, options: Options) -> None:
        self.options = options


class Bare:
    options_type: type[Any] = Nothing


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("made_policies")
    module.__dict__.update(Made=Made, Bare=Bare)
    monkeypatch.setitem(sys.modules, "made_policies", module)
    registry = {
        **policies.REGISTRY,
        "made": ("made_policies", "Made"),
        "bare": ("made_policies", "Bare"),
    }
    monkeypatch.setattr(policies, "REGISTRY", registry)


def test_defaults_are_filled_in_and_lists_become_what_is_declared() -> None:
    """A list was a list in a simulation, and a tuple in a live search, whose options come from a file."""
    raw = {"name": "made", "budget": 3, "sizes": [4], "table": {"a": 1}, "names": ["b"]}
    values = {"budget": 3.0, "table": {"a": 1.0}, "kind": "quick", "limit": None, "names": ["b"]}
    name, options, problems = check_policy(raw)
    assert (name, options, problems) == ("made", {"sizes": [4], **values}, [])
    for read in (options, json.loads(json.dumps(options))):
        assert asdict(policies.make(name, read).options) == {"sizes": (4,), **values}


@pytest.mark.parametrize(
    ("options", "findings"),
    [
        ({}, [(("policy",), "policy made needs budget; add it")]),
        ({"budget": 0}, [(("policy", "budget"), "must be above 0")]),
        ({"budget": True}, [(("policy", "budget"), "should be a number, not true")]),
        ({"budget": 1, "limit": 13}, [(("policy",), "limit 13 brings bad luck")]),
        ({"budget": 1, "limit": 1.5}, [(("policy", "limit"), "should be a whole number, not 1.5")]),
        (
            {"budget": 1, "sizes": "1"},
            [(("policy", "sizes"), "should be a list such as [a, b], not '1'")],
        ),
        (
            {"budget": 1, "kind": "exat"},
            [(("policy", "kind"), "should be quick or exact, not 'exat'; did you mean exact?")],
        ),
        (
            {"budget": 1, "cooldown": 2},
            [
                (
                    ("policy", "cooldown"),
                    "unknown option of made; known are budget, kind, limit, names, sizes, table",
                )
            ],
        ),
    ],
)
def test_findings(options: dict[str, object], findings: list[object]) -> None:
    assert check_policy({"name": "made", **options})[2] == findings


def test_a_policy_without_options() -> None:
    assert check_policy("bare") == ("bare", {}, [])
    [(_, message)] = check_policy({"name": "bare", "x": 1})[2]
    assert message == "unknown option of bare, which has no options; leave it out"


@pytest.mark.parametrize("name", policies.names())
def test_every_registered_policy_has_valid_defaults(name: str) -> None:
    """But for what nobody can know for the user: the bounds of the metric."""
    bounds = {"metric_min": 0, "metric_max": 1} if name in ("earlyterm", "pop") else {}
    found, options, findings = check_policy({"name": name, **bounds})
    assert (found, findings) == (name, [])
    assert policies.make(name, options) is not None


def test_options_that_are_not_at_their_defaults_are_summed_up(load: Load) -> None:
    other = "{name: hermes, milestones: [0.5]}"
    told = [_options(load(f"policy: {written}\n")) for written in ("hermes", other)]
    assert told == ["", "milestones=[0.5]"]
