"""One rank, a real socket, real files: what a report's answer makes of the script."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from itertools import count
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import gpusched
from gpusched.protocol import Report, Saved
from gpusched.worker import backing as backing_module
from gpusched.worker import trial as trial_module
from tests.rig import PATIENCE_S, wait_until
from tests.worker.fakes import Bench, at_step, daemon, if_it_leaves, remarks, run_rank, run_ranks
from tests.worker.models import descend, linear, with_a_layer


def train() -> list[Any]:
    """A script of the usual shape; what it saw: the epochs, and the rate and weight it ended with."""
    trial = gpusched.init()
    assert gpusched.init() is trial
    model = trial.wrap(nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    loader = trial.loader(TensorDataset(torch.arange(20.0).view(10, 2) / 20), batch_size=4)
    seen: list[int] = []

    def found() -> list[Any]:
        weights = model.weight.detach().flatten().tolist()
        return [seen, optimizer.param_groups[0]["lr"], weights]

    if_it_leaves(found)
    for epoch in trial.steps(6, model=model, opt=optimizer, sched=schedule):
        for (x,) in loader:
            descend(optimizer, model(x + 0.1 * torch.rand_like(x)).square().mean())
        trial.report(accuracy=epoch / 10)
        schedule.step()
        seen.append(epoch)
    return found()


def weights(ended: Any) -> Any:
    return pytest.approx(ended.value[2], abs=1e-7)


def test_a_trial_that_nobody_stops(bench: Bench) -> None:
    with daemon(bench) as fake:
        ended = run_rank(train, bench)
        told = [(f.seq, f.step, f.metrics) for f in fake.of_kind(Report)]
        assert fake.saved() == [6]
        (saved,) = fake.of_kind(Saved)
    assert ended.value[:2] == [[0, 1, 2, 3, 4, 5], 0.1 / 64]
    assert told == [(n + 1, n + 1, {"accuracy": n / 10}) for n in range(6)]
    assert [line["k"] for line in bench.reports()] == [1, 2, 3, 4, 5, 6]
    assert all(line["s"] > 0 for line in bench.reports())
    assert saved.size_bytes > 1000
    assert bench.last_word() == {"why": "finished", "step": 6, "saved_step": 6}


def test_yield_at_the_end_of_an_epoch_saves_what_follows_the_report(bench: Bench) -> None:
    """Paused after 3 steps and resumed: the same curve to the last bit as without; the scheduler's step is in."""
    whole = run_rank(train, bench.beside("whole"))
    with daemon(bench, at_step(**{"yield": 3})):
        first = run_rank(train, bench, incarnation=1)
    assert first.value[:2] == [[0, 1, 2], 0.1 / 8]
    assert bench.last_word(1) == {"why": "yielded", "step": 3, "saved_step": 3}
    assert bench.checkpoints() == ["step-00000003"]
    second = run_rank(train, bench, incarnation=2)
    assert second.value[:2] == [[3, 4, 5], whole.value[1]]
    assert second.value[2] == weights(whole)
    told = [(line["i"], line["n"], line["k"]) for line in bench.reports()]
    assert told == [(1 + (n > 3), n, n) for n in range(1, 7)]


@pytest.mark.parametrize("form", ["steps", "range"])
def test_what_follows_the_loop_runs_once_when_training_is_over(bench: Bench, form: str) -> None:
    """A tail that writes a final model, through three launches; the last report is answered by "yield" in a search."""

    def script() -> None:
        trial = with_a_layer()
        for _ in trial.steps(4) if form == "steps" else range(trial.step, 4):
            trial.report(accuracy=1)
        with (bench.root / "tail").open("a") as file:
            file.write(f"{trial.step}\n")

    last = {"yield": 4} if form == "steps" else {"save": 4}
    for incarnation, told in enumerate(({"yield": 1}, {"leave": 2}, {"yield": 3}, last), 1):
        with daemon(bench, at_step(**told)):
            run_rank(script, bench, incarnation)
    assert (bench.root / "tail").read_text() == "4\n"
    assert bench.last_word(4) == {"why": "finished", "step": 4, "saved_step": 4}


def test_a_best_model_that_may_not_be_saved_yet_is_held_and_committed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two best steps one after the other, as saves have had their share: the second is told to be held."""
    monkeypatch.setattr("gpusched.worker.saving.SAVE_SHARE", 1e9)

    def script() -> None:
        trial = gpusched.init()
        model = nn.Linear(1, 1)
        trial.track(model=model)
        saver = trial._backing.saver
        assert saver is not None
        for epoch in range(5):
            with torch.no_grad():
                model.weight.fill_(float(epoch))
            trial.report(accuracy=[1, 3, 2, 2, 2][epoch])
            saver.wait()

    answers = {1: "save", 2: "hold", 5: "yield"}
    with daemon(bench, lambda report: answers.get(report.step, "continue")) as fake:
        run_rank(script, bench)
        assert fake.saved() == [1, 2, 5]
    assert bench.checkpoints() == ["step-00000002", "step-00000005"]


def test_a_held_model_is_committed_as_soon_as_saves_may_cost_time_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpusched.worker.saving.SAVE_SHARE", 1e9)
    monkeypatch.setattr("gpusched.worker.saving.HOLD_S", 0.0)

    def script() -> int | None:
        trial = with_a_layer()
        for _ in range(2):
            trial.report(accuracy=1)
        saver = trial._backing.saver
        assert saver is not None
        wait_until(lambda: saver.saved_step == 2, "the held copy on disk")
        return saver.saved_step

    with daemon(bench, at_step(hold=2)):
        assert run_rank(script, bench).value == 2


def test_a_trial_that_is_killed_or_fails_commits_the_best_model_that_it_holds(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best model is not lost with a trial that does not leave in good order."""
    monkeypatch.setattr("gpusched.worker.saving.SAVE_SHARE", 1e9)

    def script(ends: str) -> None:
        trial = with_a_layer()
        for _ in range(2):
            trial.report(accuracy=trial.step)
        if ends == "fails":
            raise ValueError("later")
        os.kill(os.getpid(), signal.SIGTERM)
        while True:
            time.sleep(1)

    for incarnation, (ends, step) in enumerate((("killed", 2), ("fails", 4)), 1):
        with daemon(bench, at_step(hold=step)) as fake:
            (ended,) = run_ranks(script, 1, bench, incarnation, (ends,))
            assert fake.saved() == [step]
        assert ("later" if ends == "fails" else "it died without a word") in ended.error
    assert bench.checkpoints() == ["step-00000002", "step-00000004"]


@pytest.mark.parametrize(("answer", "step"), [("yield", 1), ("save", 2)])
def test_who_is_killed_as_it_saves_ends_when_it_has(bench: Bench, answer: str, step: int) -> None:
    """The search's last call came while the model that it had ended for, or a script's last, was on its way."""

    def script() -> None:
        sync = os.fsync

        def slow(descriptor: int) -> None:
            if os.fsync is slow:
                os.fsync = sync
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(0.5)
            sync(descriptor)

        trial = with_a_layer()
        os.fsync = slow
        for _ in trial.steps(2):
            trial.report(accuracy=1)

    with daemon(bench, at_step(**{answer: step})) as fake:
        (ended,) = run_ranks(script, 1, bench)
        assert fake.saved() == [step]
    assert bench.checkpoints() == [f"step-{step:08d}"], ended.error


@pytest.mark.parametrize(
    ("how", "lengths"),
    [
        ("three in each", [6, 12, 18, *[None] * 15]),
        ("each third", [2, None]),
        ("each third, by 1", [6, None]),
        ("each, by 30", [180, *[None] * 5]),
        ("known", [None] * 6),
        ("endless", [None] * 6),
    ],
)
def test_a_loop_is_as_long_as_the_reports_of_its_bodies(
    bench: Bench, how: str, lengths: list[int | None]
) -> None:
    """Such a loop was over after as many reports as it has bodies, or three times as long as it is."""
    bench.prepare(max_steps=6 if how == "known" else None)
    by = int(how.partition("by ")[2] or 0)

    def script() -> None:
        trial = gpusched.init()
        trial.track()
        for epoch in trial.steps(sys.maxsize if how == "endless" else 6):
            if epoch == 6:
                break
            for _ in range(3 if "three" in how else "third" not in how or epoch % 3 == 2):
                trial.report(accuracy=1, step=by * (epoch + 1) if by else None)

    with daemon(bench) as fake:
        run_rank(script, bench)
    assert [report.length for report in fake.of_kind(Report)] == lengths


@pytest.mark.parametrize(
    ("bodies", "told"), [(1, [[None, None], [None]]), (4, [[4, 8], [12, *[None] * 9]])]
)
def test_a_pause_within_a_body_makes_no_loop_shorter(bench: Bench, bodies: int, told: Any) -> None:
    """Such a trial was complete after a few reports; one of a single epoch after its first."""

    def script() -> None:
        trial = gpusched.init()
        loader = trial.loader(range(12), batch_size=4)
        for _ in trial.steps(bodies, model=nn.Linear(1, 1)):
            for _ in loader:
                trial.report(accuracy=1)

    found = []
    for incarnation in (1, 2):
        with daemon(bench, at_step(**{"yield": 2})) as fake:
            run_rank(script, bench, incarnation)
        found.append([report.length for report in fake.of_kind(Report)])
    assert found == told


def test_a_second_loop_to_which_no_trial_comes_is_told(bench: Bench) -> None:
    """Train the head, then all: the search ended each trial with the first loop, and nothing said so."""

    def script() -> None:
        trial = with_a_layer()
        for steps in (2, 4):
            for _ in trial.steps(steps):
                trial.report(accuracy=1)

    for one, told in ((bench, 1), (bench.beside("known", max_steps=4), 0)):
        said = remarks(one, script)
        assert sum("followed by one of trial.steps(4)" in text for text in said) == told


@pytest.mark.parametrize(
    ("by", "first", "steps", "most"),
    [(1, 1, 6, None), (1, 1, 60, 6), (10, 20, 6, None), (1, 1, 12, None)],
    ids=["its length", "R", "counted", "each second"],
)
def test_a_loop_that_a_loader_outlives_is_the_same_over_pauses(
    bench: Bench, by: int, first: int, steps: int, most: int | None
) -> None:
    """A pause in the middle of an epoch repeats no iteration, and what follows the loop runs."""
    bench.prepare(max_steps=most)
    tail, every = bench.root / "tail", 2 if steps == 12 else 1

    def script() -> None:
        trial = gpusched.init()
        loader = trial.loader(range(8), batch_size=2)
        trial.track(model=nn.Linear(1, 1))
        batches = (batch for _ in count() for batch in loader)
        for iteration in trial.steps(steps):
            (bench.root / f"seen-{iteration}").touch(exist_ok=False)
            next(batches)
            if iteration % every == every - 1:
                trial.report(accuracy=1, step=by * (iteration + 1) if every == 1 else None)
        tail.touch()

    plan = ({"yield": first}, {"yield": 3 * by}, {"save": 4 * by, "leave": 6 * by})
    for incarnation, asked in enumerate(plan, 1):
        with daemon(bench, at_step(**asked)) as fake:
            run_rank(script, bench, incarnation)
        assert {report.length for report in fake.of_kind(Report)} <= {6 * by, None}
    assert len(list(bench.root.glob("seen-*"))) == 6 * every
    assert tail.exists()


def test_a_slow_disk_does_not_hold_training_up(bench: Bench) -> None:
    """The disk answers when training is over: saves that are asked for meanwhile are left out."""

    def script() -> int:
        over, sync = threading.Event(), os.fsync

        def slow(descriptor: int) -> None:
            if threading.current_thread().name == "gpusched-save":
                assert over.wait(PATIENCE_S)
            sync(descriptor)

        os.fsync = slow
        trial = with_a_layer()
        for _ in trial.steps(limit=5):
            trial.report(accuracy=1)
            if trial.step == 5:
                over.set()
        return trial.step

    with daemon(bench, lambda report: "save") as fake:
        assert run_rank(script, bench).value == 5
        assert fake.saved() == [1, 5]


def often(every: int = 2) -> list[Any]:
    """Reports inside the epoch; the samples it was given."""
    trial = gpusched.init()
    weight = nn.Linear(1, 1)
    trial.track(model=weight)
    loader = trial.loader(TensorDataset(torch.arange(10)), batch_size=2)
    seen = []
    try:
        for epoch in trial.steps(limit=2):
            for number, (x,) in enumerate(loader):
                seen.append((epoch, x.tolist()))
                if number % every == every - 1:
                    trial.report(accuracy=0.5)
            trial.report(accuracy=0.5)
    except SystemExit:
        return [*seen, "left"]
    return seen


def test_a_yield_in_mid_epoch_saves_at_once_and_goes_on_with_the_next_sample(bench: Bench) -> None:
    whole = run_rank(often, bench.beside("whole")).value
    with daemon(bench, at_step(save=1, **{"yield": 2})):
        first = run_rank(often, bench).value
    assert first == [*whole[:4], "left"]
    assert bench.last_word(1) == {"why": "yielded", "step": 2, "saved_step": 2}
    with daemon(bench, at_step(**{"yield": 3})):
        second = run_rank(often, bench, incarnation=2).value
    assert second == [*whole[4:5], "left"]
    third = run_rank(often, bench, incarnation=3).value
    assert third == whole[5:]
    assert [line["k"] for line in bench.reports()] == [1, 2, 3, 4, 5, 6]


def in_charge(obey: bool = True) -> list[Any]:
    trial = gpusched.init()
    model = nn.Linear(1, 1, bias=False)
    model.weight.data.zero_()
    trial.track(model=model)
    seen = []
    for step in range(trial.step, 6):
        with torch.no_grad():
            model.weight += 1
        trial.should_yield()
        trial.report(accuracy=step)
        model.weight.data += 10
        seen.append(model.weight.item())
        if trial.should_yield() and obey:
            seen.append("cleaned up")
            break
    return seen


def test_a_script_in_charge_leaves_by_itself_and_after_saving(bench: Bench) -> None:
    with daemon(bench, at_step(**{"yield": 2})):
        assert run_rank(in_charge, bench).value == [11.0, 22.0, "cleaned up"]
    assert bench.last_word() == {"why": "yielded", "step": 2, "saved_step": 2}
    assert run_rank(in_charge, bench, incarnation=2).value[0] == 33.0


def in_charge_of_steps() -> list[int]:
    trial = gpusched.init(in_charge=True)
    seen = []
    for epoch in trial.steps(4, model=nn.Linear(1, 1)):
        seen.append(epoch)
        trial.report(accuracy=epoch)
        if trial.should_yield():
            break
    return seen


def test_a_script_in_charge_goes_on_with_the_epoch_after_the_one_it_left_in(bench: Bench) -> None:
    with daemon(bench, at_step(**{"yield": 2})):
        assert run_rank(in_charge_of_steps, bench).value == [0, 1]
    with daemon(bench, at_step(**{"yield": 4})):
        assert run_rank(in_charge_of_steps, bench, incarnation=2).value == [2, 3]
    assert run_rank(in_charge_of_steps, bench, incarnation=3).value == []
    assert [line["k"] for line in bench.reports()] == [1, 2, 3, 4]


def test_a_script_in_charge_is_not_ended_by_report(bench: Bench) -> None:
    with daemon(bench, at_step(leave=2)):
        assert run_rank(in_charge, bench, 1, False).value == [11.0, 22.0, 33.0, 44.0, 55.0, 66.0]
    assert bench.last_word() == {"why": "yielded", "step": 2, "saved_step": None}
    assert len(bench.reports()) == 2


def test_a_model_trained_after_its_last_report_is_not_taken_for_the_reported_one(
    bench: Bench,
) -> None:
    def script() -> None:
        trial = gpusched.init()
        model, optimizer = linear()
        trial.track(model=model, opt=optimizer)
        for _ in range(2):
            descend(optimizer, model(torch.ones(1, 1)).sum())
            if trial.step == 0:
                trial.report(accuracy=1)

    ended = run_rank(script, bench)
    assert "step 1 is not saved: the model was trained on after its last report" in ended.stderr
    assert bench.checkpoints() == []
    assert bench.last_word() == {"why": "finished", "step": 1, "saved_step": None}


class Clock:
    """Goes on only when it is told to; an object to track whose saving takes seven seconds of it."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def state_dict(self) -> dict[str, int]:
        self.now += 7.0
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None: ...

    def item(self) -> int:
        """Be a metric that a GPU computes for ten milliseconds more."""
        self.now += 0.01
        return 1


@pytest.mark.parametrize(("every", "first", "other"), [(1, 0.06, 0.26), (3, 0.186667, 0.253333)])
def test_step_time_is_all_but_saves(bench: Bench, every: int, first: float, other: float) -> None:
    """Of a report each third epoch the time was that of the last alone, a third of what a step takes."""

    def script() -> None:
        clock = Clock()
        trial_module.time = backing_module.time = clock
        trial = gpusched.init()
        clock.now += 0.3
        trial.track(clock=clock)
        for epoch in trial.steps(limit=6):
            clock.now += 0.05
            if epoch % every == every - 1:
                trial.report(accuracy=clock, step=epoch + 1)
            clock.now += 0.2

    with daemon(bench, lambda report: "save"):
        run_rank(script, bench)
    assert [line["s"] for line in bench.reports()] == [first, *[other] * (6 // every - 1)]
