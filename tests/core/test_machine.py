"""Every policy through ``machine.Anything``: a few examples always, many in ``make torture``."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from gpusched import policies
from tests.core.machine import Anything


def _run(name: str, examples: int, steps: int, ends_after: int = 40) -> None:
    own = {"policy_name": name, "ends_after": ends_after}
    machine = type(f"Anything_{name}", (Anything,), own)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("name", policies.names())
def test_anything_may_happen(name: str) -> None:
    _run(name, examples=12, steps=40)


@pytest.mark.parametrize("name", policies.names())
def test_it_may_end_early_and_go_on(name: str) -> None:
    _run(name, examples=10, steps=40, ends_after=8)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", policies.names())
def test_anything_may_happen_for_long(name: str) -> None:
    _run(name, examples=1500, steps=120)
