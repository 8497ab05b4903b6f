"""The judge of a rehearsal, on rows made by hand: each kind of finding, and none for a trial that trains as it should.

Rows that real ranks write are judged in ``tests/cli/test_rehearse.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from gpusched.doctor.findings import Judgement, RehearsedLaunch, RehearsedTrial
from gpusched.doctor.rehearsal import judge

Rows = list[dict[str, Any]]
WAY = ((1, 1), (1, 1), (2, 2), (1, 1))
"""Atoms and ranks of the launches, of two reports each."""


def row(step: int, atoms: int = 1, rank: int = 0) -> dict[str, Any]:
    """Write down what a right script does: a rate that falls by the epoch and follows the atoms, 8 samples an epoch."""
    rate = 0.1 * 0.9 ** (step - 1)
    updates = 4 // atoms
    return {
        "step": step,
        "ranks": atoms,
        "metrics": {"loss": 1.0 / step, "time": 3.0 + rank},
        "values": 2.0,
        "held": False,
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
    }


def moved() -> list[list[Rows]]:
    """Rows by launch, report and rank."""
    launches, step = [], 0
    for atoms, ranks in WAY:
        reports = []
        for _ in range(2):
            step += 1
            reports.append([row(step, atoms, rank) for rank in range(ranks)])
            if len(launches) > 1:  # of one model on both sizes
                for one in reports[-1]:
                    one |= {"held": True, "metrics": {"loss": 0.25, "time": 3.0}}
        launches.append(reports)
    return launches


def held_against(alone: list[Rows], rows: list[list[Rows]]) -> Judgement:
    """Judge the launches of a trial beside the reports of one that was left alone."""
    launches = [
        RehearsedLaunch(atoms, reports) for (atoms, _), reports in zip(WAY, rows, strict=False)
    ]
    return judge(RehearsedTrial(launches), RehearsedTrial([RehearsedLaunch(1, alone)]))


def judgement(change: Callable[[list[list[Rows]]], None]) -> Judgement:
    change(rows := moved())
    return held_against([[row(step)] for step in range(1, 9)], rows)


def judged(change: Callable[[list[list[Rows]]], None]) -> list[tuple[str, bool]]:
    return [(found.kind, found.is_error) for found in judgement(change).findings]


def each(launch: int, **values: Any) -> Callable[[list[list[Rows]]], None]:
    """Set these in every row of a launch; a function makes a value of the step."""

    def change(rows: list[list[Rows]]) -> None:
        for ranks in rows[launch]:
            for one in ranks:
                for name, value in values.items():
                    one[name] = value(one["step"]) if callable(value) else value

    return change


def first(launch: int, **values: Any) -> Callable[[list[list[Rows]]], None]:
    """Set these in the rows of the first report of a launch."""
    return lambda rows: [one.update(values) for one in rows[launch][0]]  # type: ignore[func-returns-value]


def unscaled(step: int) -> list[float]:
    return [0.1 * 0.9 ** (step - 1)] * 2


def scaled(step: int) -> list[float]:
    return [0.2 * 0.9 ** (step - 1)] * 2


def apart_by(distance: float) -> Callable[[list[list[Rows]]], None]:
    """Have the second rank's first step on two atoms lead elsewhere."""

    def change(rows: list[list[Rows]]) -> None:
        for ranks in rows[2]:
            for rank, one in enumerate(ranks):
                one["moved"] = [1.0, 0.5 + rank * distance]

    return change


def test_a_right_trial_has_no_finding_and_says_what_was_compared() -> None:
    found = judgement(lambda rows: None)
    assert found.findings == []
    assert found.verdicts == {
        ("after a pause", "learning rate"): ("same", ""),
        ("after a pause", "samples"): ("same", ""),
        ("after a pause", "parameters"): ("same", ""),
        ("after a pause", "metrics"): ("same", "loss"),
        ("on 2 atoms", "parameters"): ("same", "as they were saved"),
        ("on 2 atoms", "samples"): ("same", "each of an epoch once"),
        ("on 2 atoms", "learning rate"): ("same", "times 2"),
        ("on 2 atoms", "metrics"): ("same", "loss"),
        ("back on 1 atom", "learning rate"): ("same", ""),
    }


def test_a_difference_that_rounding_may_explain_is_told_with_its_size() -> None:
    """One transition of a replay buffer is another after a pause."""
    found = judgement(each(1, end=lambda step: [float(step), 0.008]))
    assert found.verdicts["after a pause", "parameters"] == ("same", "apart by 0.8% of their way")


@pytest.mark.parametrize(("lost", "outcome"), [(30, "same"), (50, "WRONG")])
def test_parameters_of_which_adam_moves_some_by_rounding_errors_have_lost_no_state(
    lost: int, outcome: str
) -> None:
    def change(rows: list[list[Rows]]) -> None:
        each(1, start=lambda step: [step - 1.0] * 100)(rows)
        each(1, end=lambda step: [step - 2.0] * lost + [step + 0.01] * (100 - lost))(rows)

    change(rows := moved())
    alone = [
        [row(step) | {"start": [step - 1.0] * 100, "end": [float(step)] * 100}]
        for step in range(1, 9)
    ]
    found = held_against(alone, rows)
    assert found.verdicts["after a pause", "parameters"][0] == outcome
    assert found.verdicts["after a pause", "metrics"] == ("not compared", "the parameters differ")


def test_every_mistake_is_listed_beside_what_could_not_be_compared() -> None:
    """A note hides no mistake: the runs differ, and yet the rate is wrong, and the metric counts the ranks."""

    def change(rows: list[list[Rows]]) -> None:
        each(0, inputs=[0.5])(rows)
        each(1, base=[0.1] * 4)(rows)
        each(2, metrics={"loss": 0.5})(rows)

    found = judgement(change)
    kinds = [(one.kind, one.is_error) for one in found.findings]
    assert kinds == [("not repeatable", False), ("learning rate", True), ("metric", True)]
    assert found.verdicts["after a pause", "parameters"][0] == "not compared"


AGAIN = [{"length": 8, "count": 8, "samples": [0, 0, 1, 1, 2, 2, 3, 3]}]


@pytest.mark.parametrize(
    ("change", "kind", "is_error"),
    [
        (each(0, inputs=[0.5]), "not repeatable", False),
        (each(1, start=[0.0, 0.0]), "parameters not restored", True),
        (each(1, start=[2.0, 1.0]), "parameters not restored", True),
        (each(1, end=[9.0, 0.0]), "state not tracked", True),
        (each(1, end=[9.0, 0.0], updates=0), "less training", True),
        (first(1, updates=5), "more training", False),
        (each(1, inputs=[10.0] * 4), "samples", True),
        (each(1, inputs=[10.0] * 4, end=[9.0, 0.0]), "samples", True),  # not the optimizer
        (each(2, metrics={"loss": 0.5, "time": 9.0}), "metric", True),
        (each(2, metrics={"loss": 0.27}), "metric", True),
        (each(2, metrics={"loss": 0.251}), "metric", False),
        (each(2, values=1.0), "learning rate", True),
        (each(2, fixed=True, rates=unscaled, scaled=False), "learning rate", True),
        (each(1, base=[0.1] * 4), "learning rate", True),
        (each(1, rates=[0.2] * 4), "learning rate", True),
        (each(1, drawn=AGAIN), "samples", True),
        (each(1, inputs=[0.5] * 4), "order of samples", False),
        (each(1, metrics={"loss": 7.0}), "metric", True),
        (first(1, end=[9.0, 0.0], updates=0), "report before training", True),
        (each(2, inputs=[5.0, 6.0]), "same samples", True),
        (apart_by(1e-4), "ranks train apart", True),
        (each(2, drawn=[{"length": 8, "count": 8, "samples": list(range(8))}]), "samples", True),
        (each(2, drawn=[{"length": 8, "count": 1, "samples": [0]}]), "samples", True),
        (each(2, base=[0.5, 0.5], rates=[1.0, 1.0]), "learning rate", True),
        (each(2, rates=unscaled, scaled=False), "learning rate", True),
        (each(2, base=scaled, rates=[0.4] * 2), "learning rate", True),  # by the script as well
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
        each(2, rates=unscaled, scaled=False, fixed=True, values=1.0),  # by a fixed global batch
        each(2, rates=unscaled, scaled=False, values=1.0),  # by the script, without a word of it
        each(2, metrics=lambda step: {"loss": 0.25 + 0.02 * (step - 5.5)}),  # noise
        first(1, updates=0),  # a report at the top of the loop
    ],
)
def test_what_is_right_in_another_way_is_left_alone(
    change: Callable[[list[list[Rows]]], None],
) -> None:
    assert judged(change) == []


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
    (found,) = judge(RehearsedTrial(launches), RehearsedTrial(())).findings
    assert (found.text, found.to_json()["error"]) == (says, True)


def test_a_failure_of_two_launches_is_told_once() -> None:
    again = [RehearsedLaunch(1, [[row(1)]]), *[RehearsedLaunch(1, [], "it broke")] * 2]
    found = judge(RehearsedTrial(again), RehearsedTrial([RehearsedLaunch(1, [[row(1)]])]))
    assert [one.text for one in found.findings] == ["after a pause the script fails: it broke"]


def test_what_follows_the_loop_fails_in_the_trial_left_alone() -> None:
    alone = RehearsedTrial([RehearsedLaunch(1, [[row(1)]], "NameError: no test set")])
    (found,) = judge(RehearsedTrial([RehearsedLaunch(1, [[row(1)]])]), alone).errors
    assert found.text == "left alone the script fails: NameError: no test set"


@pytest.mark.parametrize(
    ("values", "kind", "says"),
    [
        ({"inputs": [0.5] * 4}, "order of samples", "a replay buffer or an environment is lost"),
        ({"inputs": [], "updates": 1}, "less training", "a replay buffer, a counter"),
    ],
)
def test_a_replay_buffer_that_is_lost_is_found_by_what_differs(
    values: dict[str, Any], kind: str, says: str
) -> None:
    """As in DQN: nothing is drawn by a data loader; training is on what has been seen so far."""
    rows, alone = moved(), [[row(step)] for step in range(1, 9)]
    for reports in (*rows, alone):
        for ranks in reports:
            for one in ranks:
                one["drawn"] = []
    first(1, end=[9.0, 0.0], **values)(rows)
    found = held_against(alone, rows[:2])
    assert kind in [one.kind for one in found.findings]
    assert any(says in one.text for one in found.findings)


@pytest.mark.parametrize(("loss", "outcome"), [(1 / 3, "same"), (0.5, "WRONG")])
def test_metrics_are_compared_where_no_optimizer_steps(loss: float, outcome: str) -> None:
    """As where the script changes the parameters itself: ``p.data.add_(p.grad, alpha=-lr)``."""
    silent = {"updates": 0, "base": [], "rates": [], "inputs": [], "start": [], "end": []}
    rows, alone = moved()[:2], [[row(step) | silent] for step in range(1, 9)]
    for launch in range(2):
        each(launch, **silent)(rows)
    first(1, metrics={"loss": loss})(rows)
    found = held_against(alone, rows)
    assert found.outcome("after a pause", "metrics") == outcome
    assert "two runs" not in str(found.verdicts)


def test_samples_drawn_with_replacement_are_not_compared() -> None:
    """Such samples were called other ones after a pause."""
    rows, alone = moved(), [[row(step)] for step in range(1, 9)]
    for reports, of in ((rows[0], 0), (rows[1], 1), (alone, 2)):
        for ranks in reports:
            drawn = [of, of, 5, 5, 1, 2, 3, 4]
            ranks[0]["drawn"] = [{"length": 8, "count": 8, "samples": drawn}]
    found = held_against(alone, rows[:2])
    assert found.findings == []


def test_a_hyperparameter_that_nothing_reads_is_wrong() -> None:
    report = [row(1) | {"unread": ["lr"]}]
    (found,) = judge(RehearsedTrial([RehearsedLaunch(1, [report])]), RehearsedTrial(())).errors
    assert 'args: ["--lr=${lr}"]' in found.text


def test_a_speed_under_another_name_is_not_compared_and_hides_nothing() -> None:
    def fps(rows: list[list[Rows]]) -> None:
        for launch in rows:
            for report in launch:
                for one in report:
                    one["metrics"]["fps"] = 1000.0 * one["ranks"] + one["step"]

    alone = [[row(step) | {"metrics": {"loss": 1.0 / step, "fps": 7.0}}] for step in range(1, 9)]
    for wrong in (False, True):
        rows = moved()
        fps(rows)
        if wrong:
            each(1, end=lambda step: [step + 0.5, 0.0])(rows)
        found = held_against(alone, rows)
        assert "fps of two runs of the same configuration differ" in found.findings[0].text
        assert [one.kind for one in found.findings[1:]] == ["state not tracked"] * wrong


@pytest.mark.parametrize("is_held_back", [True, False])
def test_a_rate_by_iteration_that_a_larger_size_holds_back_is_wrong(is_held_back: bool) -> None:
    """A cosine falls slower at first: a report behind was within the rates of the report before."""

    def rates(first: int, stride: int, count: int) -> list[float]:
        return [0.05 + 0.05 * math.cos((first + stride * n) / 1000) for n in range(count)]

    rows, at = moved(), 0
    for launch, atoms in zip(rows, (1, 1, 2, 1), strict=True):
        for ranks in launch:
            stride = 1 if is_held_back else atoms
            base = rates(at, stride, 40 // atoms)
            for one in ranks:
                one |= {"base": base, "rates": [rate * atoms for rate in base]}
            at += 40 * stride // atoms
    alone = [[row(step)] for step in range(1, 9)]
    for step, ranks in enumerate(alone):
        ranks[0]["base"] = ranks[0]["rates"] = rates(40 * step, 1, 40)
    found = held_against(alone, rows)
    told = [one.text for one in found.errors]
    assert len(told) == is_held_back
    assert all("back on 1 atom" in text and "trial.schedule" in text for text in told)


def test_a_metric_of_a_share_is_wrong_however_near_the_shares_are() -> None:
    def shares(rows: list[list[Rows]], apart: float) -> None:
        for report in rows[2]:
            for rank, one in enumerate(report):
                one["metrics"] = {"loss": 0.255 + apart * rank}

    for apart, is_error in ((0.0, False), (0.002, True)):
        found = judgement(lambda rows, apart=apart: shares(rows, apart))
        assert [one.is_error for one in found.findings if one.kind == "metric"] == [is_error]
