"""The judge of a rehearsal, on rows made by hand: each kind of finding, and none for a trial that trains as it should.

Rows that real ranks write are judged in ``tests/cli/test_rehearse.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gpusched.doctor.rehearsal import RehearsedLaunch, RehearsedTrial, judge

Rows = list[dict[str, Any]]
WAY = ((1, 1), (1, 1), (2, 2), (1, 1))
"""Atoms and ranks of the launches, of two reports each."""


def row(step: int, atoms: int = 1, rank: int = 0) -> dict[str, Any]:
    """What a right script writes down: a rate that falls by the epoch and follows the atoms, 8 samples an epoch."""
    rate = 0.1 * 0.9 ** (step - 1)
    updates = 4 // atoms
    return {
        "step": step,
        "ranks": atoms,
        "metrics": {"loss": 1.0 / step, "time": 3.0 + rank},
        "updates": updates,
        "base": [rate] * updates,
        "rates": [rate * atoms] * updates,
        "target": [float(atoms)],
        "scaled": True,
        "fixed": False,
        "inputs": [10.0 * step + rank] * updates,
        "drawn": [{"length": 8, "count": 8 // atoms, "samples": list(range(rank, 8, atoms))}],
        "start": [step - 1.0, 0.0],
        "end": [float(step), 0.0],
        "untracked": [],
        "loose": 0,
        "shared": [],
    }


def moved() -> list[list[Rows]]:
    """Rows by launch, report and rank."""
    launches, step = [], 0
    for atoms, ranks in WAY:
        reports = []
        for _ in range(2):
            step += 1
            reports.append([row(step, atoms, rank) for rank in range(ranks)])
        launches.append(reports)
    return launches


def judged(change: Callable[[list[list[Rows]]], None], shared: Any = ()) -> list[tuple[str, bool]]:
    rows = moved()
    change(rows)
    launches = [
        RehearsedLaunch(atoms, reports) for (atoms, _), reports in zip(WAY, rows, strict=True)
    ]
    left = [[row(step)] for step in range(1, 9)]
    left[0][0]["shared"] = shared
    alone = RehearsedTrial([RehearsedLaunch(1, left)])
    return [(found.kind, found.is_error) for found in judge(RehearsedTrial(launches), alone)]


def each(launch: int, **values: Any) -> Callable[[list[list[Rows]]], None]:
    """Set these in every row of a launch; a function makes a value of the step."""

    def change(rows: list[list[Rows]]) -> None:
        for ranks in rows[launch]:
            for one in ranks:
                for name, value in values.items():
                    one[name] = value(one["step"]) if callable(value) else value

    return change


def unscaled(step: int) -> list[float]:
    return [0.1 * 0.9 ** (step - 1)] * 2


def scaled(step: int) -> list[float]:
    return [0.2 * 0.9 ** (step - 1)] * 2


def test_a_right_trial_has_no_finding() -> None:
    assert judged(lambda rows: None) == []


AGAIN = [{"length": 8, "count": 8, "samples": [0, 0, 1, 1, 2, 2, 3, 3]}]


@pytest.mark.parametrize(
    ("change", "kind", "is_error"),
    [
        (each(0, inputs=[0.5]), "not repeatable", False),
        (each(1, start=[0.0, 0.0]), "parameters not restored", True),
        (each(1, start=[2.0, 1.0]), "parameters not restored", True),
        (each(1, end=[9.0, 0.0], untracked=["SGD"]), "optimizer not tracked", True),
        (each(1, end=[9.0, 0.0]), "state not tracked", True),
        (each(1, base=[0.1] * 4), "learning rate", True),
        (each(1, rates=[0.2] * 4), "learning rate", True),
        (each(1, drawn=AGAIN), "samples", True),
        (each(1, inputs=[0.5] * 4), "order of samples", False),
        (each(1, metrics={"loss": 7.0}), "metric", True),
        (each(1, updates=0), "report before training", True),
        (each(2, inputs=[5.0, 6.0]), "same samples", True),
        (each(2, drawn=[{"length": 8, "count": 8, "samples": list(range(8))}]), "samples", True),
        (each(2, drawn=[{"length": 8, "count": 1, "samples": [0]}]), "samples", True),
        (each(2, base=[0.5, 0.5], rates=[1.0, 1.0]), "learning rate", True),
        (each(2, rates=unscaled, scaled=False), "learning rate", True),
        (each(2, start=[0.0, 0.0]), "parameters not restored", True),
        (each(3, base=[0.5] * 4), "learning rate", True),
    ],
)
def test_each_kind_of_finding(
    change: Callable[[list[list[Rows]]], None], kind: str, is_error: bool
) -> None:
    assert judged(change) == [(kind, is_error)]


@pytest.mark.parametrize(
    "change",
    [
        each(2, drawn=[{"length": 8, "count": 900, "samples": [0]}]),  # too many to be written down
        each(2, base=scaled, rates=scaled, scaled=False),  # by the script itself
        each(2, rates=unscaled, scaled=False, fixed=True),  # by a fixed global batch
    ],
)
def test_what_is_right_in_another_way_is_left_alone(
    change: Callable[[list[list[Rows]]], None],
) -> None:
    assert judged(change) == []


@pytest.mark.parametrize("is_read", [True, False])
def test_a_file_that_both_write_is_named(is_read: bool) -> None:
    shared = [["writes log.txt, as trial 0 does", is_read]]
    assert judged(lambda rows: None, shared=shared) == [("shared file", is_read)]


@pytest.mark.parametrize(
    ("place", "says"),
    [
        (0, "the script fails: no"),
        (1, "after a pause the script fails: no"),
        (2, "on 2 atoms the script fails: no"),
        (3, "back on 1 atom the script fails: no"),
    ],
)
def test_a_failure_says_when(place: int, says: str) -> None:
    launches = [RehearsedLaunch(atoms, []) for atoms, _ in WAY[:place]]
    launches.append(RehearsedLaunch(WAY[place][0], [], "no"))
    (found,) = judge(RehearsedTrial(launches), None)
    assert (found.text, found.to_json()["error"]) == (says, True)
