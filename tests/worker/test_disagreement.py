"""Ranks of one trial that are not in the same call, or are gone: each says which, and in which line."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import gpusched
from gpusched.processes import stacks
from gpusched.worker import backing, group
from tests.rig import wait_until
from tests.worker.fakes import Bench, run_ranks, values
from tests.worker.models import with_a_layer


def test_ranks_that_do_not_come_are_told(bench: Bench) -> None:
    def waits() -> None:
        group.PATIENCE_S = 0.3
        trial = gpusched.init()
        if trial.rank == 0:
            trial.report(accuracy=1)
        else:
            dist.barrier()

    first = run_ranks(waits, 2, bench)[0]
    assert "rank 0 has waited 0 s in trial.report() (test_disagreement.py:" in first.error
    assert "move it out of any `if rank == 0`" in first.error


def test_the_best_state_is_saved_where_another_rank_ends_late(bench: Bench) -> None:
    """A best state was dropped without a word."""

    def script() -> None:
        backing.END_PATIENCE_S = 0.3
        trial = with_a_layer()
        trial.report(accuracy=1)
        if trial.rank == 1:
            wait_until(bench.last_word)

    first, _ = run_ranks(script, 2, bench)
    assert not first.error, first.error
    assert bench.last_word() == {"why": "finished", "step": 1, "saved_step": 1}


@pytest.mark.parametrize("fewer", [0, 1])
def test_a_rank_that_reports_less_often_ends_the_trial_badly(bench: Bench, fewer: int) -> None:
    def script() -> None:
        trial = gpusched.init()
        for _ in range(1 if trial.rank == fewer else 2):
            trial.report(accuracy=1)

    ended = run_ranks(script, 2, bench)
    assert f"rank {fewer} has come to its end" in ended[1 - fewer].error
    assert "trial.report() at line" in ended[1 - fewer].error
    assert bench.last_word() is None


def test_ranks_that_make_different_calls_are_told_where_each_is(bench: Bench) -> None:
    def script() -> None:
        trial = gpusched.init()
        for _ in trial.steps():
            if trial.rank == 0:
                trial.report(accuracy=1)

    lines, first = inspect.getsourcelines(script)
    line = first + next(n for n, text in enumerate(lines) if "report" in text)
    told = f"rank 0 is in trial.report() at line {line}, rank 1 is in the next of trial.steps()"
    for rank in run_ranks(script, 2, bench):
        assert "the ranks of this trial make different calls" in rank.error
        assert told in rank.error


def test_bodies_that_report_nothing_are_compared_ever_less_often(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop of iterations of a millisecond waited for all ranks in each."""
    asked: list[group.Call] = []
    exchange = group.Group.exchange

    def counted(self: group.Group, call: group.Call, *numbers: float) -> Any:
        asked.append(call)
        return exchange(self, call, *numbers)

    def script() -> int:
        for _ in gpusched.init().steps(1000):
            pass
        return asked.count(group.Call.STEPS)

    monkeypatch.setattr(group.Group, "exchange", counted)
    assert values(run_ranks(script, 2, bench)) == [10, 10]


def test_a_rank_that_is_killed_is_told_by_the_others(bench: Bench) -> None:
    def script() -> None:
        trial = gpusched.init()
        if trial.rank == 1:
            os._exit(1)
        trial.report(accuracy=1)

    first = run_ranks(script, 2, bench)[0]
    assert "another rank has gone while rank 0 was in trial.report()" in first.error


def test_a_report_of_rank_0_alone_is_found_within_steps_and_names_both_lines(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group, "LOOK_AFTER_S", 1.0)

    def script() -> None:
        stacks.listen_as_rank()
        trial = gpusched.init()
        model = trial.wrap(torch.nn.Linear(1, 1))
        trial.track(model=model)
        for _ in range(5):
            model(torch.ones(1, 1)).sum().backward()
            if trial.rank == 0:
                trial.report(accuracy=1)

    bench.paths.logs(1).mkdir(parents=True)
    ended = run_ranks(script, 2, bench)
    lines, first = inspect.getsourcelines(script)
    report = first + next(n for n, line in enumerate(lines) if "report" in line)
    assert f"trial.report() (test_disagreement.py:{report})" in ended[0].error
    assert f"but rank 1 waits in test_disagreement.py:{report - 2} in script" in ended[0].error
    assert "move it out of any `if rank == 0`" in ended[0].error


def test_a_rank_that_only_seems_to_wait_as_it_is_looked_at_is_waited_for(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the forward pass of DDP, while rank 0 has evaluated its share: a right trial failed."""
    first, second = tmp_path / "first", tmp_path / "second"

    def look(*_: object) -> str:
        is_second = first.exists()
        (second if is_second else first).touch()
        return "" if is_second else ", but rank 1 waits in train.py:9 in evaluate"

    monkeypatch.setattr(group, "LOOK_AFTER_S", 0.1)
    monkeypatch.setattr(group.Group, "_stuck_elsewhere", look)

    def script() -> None:
        trial = gpusched.init()
        if trial.rank == 1:
            wait_until(second.exists)
        trial.report(accuracy=1)

    values(run_ranks(script, 2, bench))
