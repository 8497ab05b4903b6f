"""``gpusched whatif``: a recorded search gone on with, and what is said where that cannot be."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import time
from itertools import compress
from pathlib import Path

import numpy as np
import pytest

from gpusched.cli import main
from gpusched.cli.simulate import whatif_lines
from gpusched.core.decisions import NO_STEP_FITS, Start
from gpusched.errors import GpuschedError, InputError
from gpusched.folder.paths import ExperimentPaths
from gpusched.journal import timeline
from gpusched.sim.continuing import Future, Midway, Recorded, SeenTrial, TrialCurves
from gpusched.sim.physics import Delays, SimulatedCurve
from gpusched.sim.setup import Setup
from gpusched.sim.whatif import SHARES, AskedSearch, Interval, _forked
from gpusched.sim.workload import Synthetic
from scripts.kept import simulate_into
from tests.driver.test_crashes import SAMPLER
from tests.faults import FaultySetup, Incident
from tests.helpers import Script

DEADLINE_S = 6.0
DELAYS = Delays(launch_s=0.1, resize_s=0.2, save_s=0.05, exit_s=0.03, release_s=0.02)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A search with every kind of delay, four atoms and a device that breaks."""
    incidents = (Incident(at=2.0, kind="quarantine", device="sim:3"),)
    setup = FaultySetup(atoms=4, deadline_s=DEADLINE_S, delays=DELAYS, incidents=incidents, seed=3)
    result, folder = simulate_into(tmp_path_factory.mktemp("runs"), setup)
    return result, folder


def search(folder: Path, share: float | None = 0.5) -> AskedSearch:
    recorded = Recorded(ExperimentPaths(folder))
    return AskedSearch(recorded if share is None else recorded.until(share * DEADLINE_S))


@pytest.mark.parametrize(
    ("policy", "share"), [("hypersched", 0.2), ("hypersched", 0.7), ("asha", 0.36), ("fifo", 0.9)]
)
def test_gone_on_with_on_its_own_curves_a_search_ends_as_it_did(tmp_path, policy, share):
    setup = Setup(policy=policy, options={"R": 60}, atoms=3, deadline_s=DEADLINE_S, seed=1)
    result, folder = simulate_into(tmp_path, setup)
    assert search(folder, share).under(Synthetic()) == result.best


def test_reports_of_many_steps_are_continued_as_such():
    """A report of several steps is one report in a future too."""
    curve = {step: 1.0 - 1.0 / step for step in range(50, 501, 50)}
    seen = [SeenTrial(n, curve, 0.01) for n in range(3)]
    made = Future(TrialCurves(seen), [0]).curve(0)
    assert (made.stride, made.stride_at(500)) == (50, 50)
    assert math.isfinite(made.metric(550))


def test_a_report_of_many_steps_comes_when_all_of_them_are_trained():
    class Iterations(Synthetic):
        def curve(self, trial, hparams, seed):
            return SimulatedCurve(float, lambda step: 0.1, stride=100)

    script = Script(devices=1).wants(Start(1)).start().drop().wait(20.0)
    script.report(0, step=100, step_time_s=0.1).drop().wait(6.0).asked("unpause", 99).drop()
    (report,) = Midway(script.state, Iterations(), Delays()).poll(math.inf)
    assert report.at == pytest.approx(30.0)


def test_a_search_goes_on_from_the_middle_of_a_save(tmp_path):
    """The checkpoint with which a trial leaves may be the best model."""
    delays = Delays(launch_s=0.1, resize_s=0.2, save_s=0.4, exit_s=0.03, release_s=0.02)
    setup = Setup(policy="asha", atoms=2, deadline_s=DEADLINE_S, delays=delays, seed=1)
    _, folder = simulate_into(tmp_path, setup)
    cuts = [search(folder, share / 40) for share in range(20, 40)]
    leaves = [any(t.after and t.after.save for t in cut.state.trials.values()) for cut in cuts]
    assert any(leaves)
    for cut in compress(cuts, leaves):
        cut.under(Synthetic())


def test_where_a_sampler_learns_a_future_draws_at_random(tmp_path):
    """A sampler that is asked has nobody to answer it there: no configuration would begin."""
    (tmp_path / "near.py").write_text(SAMPLER)
    sampler = {"sampler": f"{tmp_path}/near.py:Near", "sampler_options": {"startup": 2}}
    _, folder = simulate_into(tmp_path, Setup(policy="asha", atoms=2, deadline_s=6.0, **sampler))
    cut = search(folder).recorded
    known = len(cut.state.trials)
    cut.finish(Synthetic())
    assert len(cut.state.trials) > known + 1


def test_more_time_helps_and_the_same_question_has_the_same_answer(recorded):
    _, folder = recorded
    (now, later), again = (search(folder).ask([DEADLINE_S], futures=5) for _ in range(2))
    assert (now.add_s, later.add_s) == (0.0, DEADLINE_S)
    assert later.gain.median > 0
    assert now.gain.low == now.gain.high == 0.0
    assert later.best.low <= later.best.median <= later.best.high
    assert again == [now, later]


def test_a_search_that_is_over_is_asked_before_its_end(recorded):
    result, folder = recorded
    over = search(folder, None)
    assert over.recorded.is_over
    assert over.recorded.best.metric == result.best
    assert over.state.stopping is None
    assert over.ask([DEADLINE_S], futures=4)[1].gain.median > 0


def test_a_trial_that_leaves_early_for_want_of_time_is_not_the_end(tmp_path):
    """What all others had trained from then on was forecast once more."""
    slow = tmp_path / "slow.py"
    slow.write_text(
        "SPACE = {'is_slow': {'choice': [0, 1]}}\n"
        f"def train(hparams, step): return step, {0.7 * DEADLINE_S} if hparams['is_slow'] else 0.1\n"
    )
    setup = Setup(workload=f"{slow}:train", atoms=2, deadline_s=DEADLINE_S)
    told = Recorded(ExperimentPaths(simulate_into(tmp_path, setup)[1])).state
    assert any(trial.reason.endswith(NO_STEP_FITS) for trial in told.trials.values())
    assert told.now > DEADLINE_S - 0.5


def test_the_command_says_it_and_journals_nothing(recorded, capsys):
    _, folder = recorded
    before = timeline.read(folder / "journal.db")
    assert main(["whatif", str(folder), "--add", "3s", "--limit", "10m", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"experiment", "metric", "best", "answers", "over"} <= found.keys()
    assert list(whatif_lines(found))[1].startswith("+3 s: probably score ")
    assert timeline.read(folder / "journal.db") == before


def mistaken():
    raise InputError("mine.py:7: on_report failed")


@pytest.mark.parametrize(
    ("work", "status", "told"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGINT), -2, ""),
        (mistaken, 1, "mine.py:7: on_report failed\n"),
    ],
    ids=["Ctrl-C", "a policy of one's own"],
)
def test_a_future_ends_without_a_traceback(capfd, work, status, told):
    with pytest.raises(GpuschedError, match=f"ended with status {status}"):
        _forked(work)
    assert capfd.readouterr().err == told


def test_the_limit_is_kept(recorded, monkeypatch):
    """However long a future takes: the answer is refused, and says what there was time for."""
    _, folder = recorded
    monkeypatch.setattr(Recorded, "finish", lambda *_: time.sleep(60))
    with pytest.raises(InputError, match=r"enough for 0; give a longer --limit"):
        search(folder).ask([], until=time.monotonic() + 0.2)


@pytest.mark.parametrize(
    ("deadline_s", "said"),
    [(0.05, "there are 0 trials with finite reports"), (0.35, "a forecast needs 3 trials")],
)
def test_too_little_is_said_to_be_too_little(tmp_path, capsys, deadline_s, said):
    _, folder = simulate_into(tmp_path, Setup(atoms=2, deadline_s=deadline_s))
    assert main(["whatif", str(folder)]) == 2
    assert said in capsys.readouterr().err


def test_no_score_is_forecast_where_no_checkpoint_has_been_saved_yet(recorded):
    cut = search(recorded[1])
    cut.state.best = None
    with pytest.raises(InputError, match="no checkpoint has been saved yet"):
        cut.ask([], futures=10)


@pytest.mark.parametrize(
    ("values", "interval"),
    [
        (range(11), (5, 0, 8)),
        ([0] * 5 + [1, 2, 3, 4, 50], (0.5, 0, 3)),
        ([-9, *[0] * 8, 9], (0, 0, 0)),
        ([5], (5, 5, 5)),
    ],
)
def test_an_interval_is_the_shortest_with_80_percent(values, interval):
    found = Interval.of(np.array(values, dtype=float))
    assert (found.median, found.low, found.high) == interval


def test_answers_are_worded():
    def answered(add_s, median, low, high):
        best = {"median": 0.9 + median, "low": 0.9 + low, "high": 0.9 + high}
        gain = {"median": median, "low": low, "high": high}
        return {"add_s": add_s, "futures": 200, "best": best, "gain": gain}

    found = {
        **{"experiment": "digits", "metric": "accuracy", "mode": "max", "best": 0.9},
        **{"at_s": 600.0, "deadline_s": 1200.0, "over": False, "interrupted": False},
        "answers": [answered(0.0, 0.0, 0.0, 0.0), answered(1200.0, 0.004, 0.0, 0.009)],
    }
    assert list(whatif_lines(found)) == [
        "digits: accuracy 0.9000 with 10 min 00 s left",
        "at the deadline: probably 0.9000 (0.9000 to 0.9000) (80% of 200 futures)",
        "+20 min 00 s: probably accuracy 0.9040 (0.9000 to 0.9090), 0.004 better than without",
    ]
    *_, last = whatif_lines({**found, "over": True, "answers": found["answers"][:1]})
    assert last == "the search is over; --add 1h forecasts what one hour more would have bought"
    first, *_ = whatif_lines({**found, "interrupted": True})
    assert first == "digits: accuracy 0.9000 with 10 min 00 s left when it was interrupted"


# ---------------------------------------------------------------- curves, continued


def seen(trial: int, scores: list[float], **more) -> SeenTrial:
    return SeenTrial(trial, dict(enumerate(scores, 1)), 1.0 + trial, **more)


def rising(end: float, steps: int) -> list[float]:
    return [end * (1 - math.exp(-step / 20)) for step in range(1, steps + 1)]


def family() -> TrialCurves:
    return TrialCurves([seen(n, rising(0.5 + 0.05 * n, 40 if n % 2 else 8)) for n in range(8)])


def test_steps_that_were_seen_are_as_they_were():
    curves = family()
    curve = Future(curves, [1, 1]).curve(5)
    assert [curve.metric(step) for step in (1, 8, 40)] == [rising(0.75, 40)[n] for n in (0, 7, 39)]
    assert curve.step_time_s(3) == 6.0


def test_a_curve_goes_on_about_as_it_would_have():
    curves = family()
    ends = [Future(curves, [1, n]).curve(5).metric(80) for n in range(40)]
    low, high = np.quantile(ends, [0.05, 0.95])
    assert low < rising(0.75, 80)[-1] < high
    assert high - low < 0.4


def test_the_same_key_gives_the_same_curve_whichever_was_asked_first():
    curves = family()
    once, again = Future(curves, [1, 7]), Future(curves, [1, 7])
    again.curve(99).metric(200)
    assert once.curve(2).metric(100) == again.curve(2).metric(100)
    assert once.curve(2).metric(100) != Future(curves, [1, 8]).curve(2).metric(100)


def test_new_configurations_lie_among_those_seen_and_beyond_the_best_at_times():
    curves = family()
    ends = [Future(curves, [1, n]).curve(100).metric(8) for n in range(200)]
    best = max(rising(0.85, 8))
    assert 0.0 < sum(end > best for end in ends) / 200 < 0.25
    assert np.median(ends) == pytest.approx(rising(0.675, 8)[-1], abs=0.05)


def test_a_new_configuration_differs_from_those_seen_though_no_two_report_at_the_same_steps():
    """A script whose step is an iteration: an epoch has as many as the batch size leaves."""
    strides = (7, 11, 13, 17)
    curves = TrialCurves(
        [
            SeenTrial(n, {step: 0.1 * n + step / 1e3 for step in range(stride, 120, stride)}, 1.0)
            for n, stride in enumerate(strides)
        ]
    )
    seen_scores = {score for one in curves.seen.values() for score in one.curve.values()}
    for n in range(20):
        newcomer = Future(curves, [1, n]).curve(50)
        assert seen_scores.isdisjoint(map(newcomer.metric, strides)), "a copy of one seen"


def test_a_perplexity_is_forecast_though_it_began_at_a_million():
    """The scale was the way from there: all forecasts were 0."""

    def falling(end: float, steps: int) -> list[float]:
        return [-end * (1e6 / end) ** math.exp(-step / 4) for step in range(1, steps + 1)]

    curves = TrialCurves([seen(n, falling(20 + 3 * n, 40 if n % 2 else 8)) for n in range(8)])
    ends = [Future(curves, [1, n], mode="min").curve(1).metric(80) for n in range(20)]
    assert min(ends) >= 1, "no perplexity is below"
    assert 15 < np.median(ends) < 30
    assert Future(curves, [1, 1], mode="min").curve(1).metric(40) == pytest.approx(23, rel=0.01)


def test_an_accuracy_in_percent_is_forecast_as_one_in_shares():
    """Forecasts were up to 190%."""
    shares = family()
    percents = {n: [100 * y for y in one.curve.values()] for n, one in shares.seen.items()}
    curves = TrialCurves([seen(*of) for of in percents.items()], is_share=True)
    for n in range(40):
        known, new = (Future(curves, [1, n]).curve(trial).metric(80) for trial in (5, 99))
        assert known == pytest.approx(100 * Future(shares, [1, n]).curve(5).metric(80))
        assert max(known, new) <= 100
    assert [bool(re.search(SHARES, name)) for name in ("val/acc", "accumulated")] == [True, False]


def test_a_trial_ends_where_the_script_has_ended_others():
    """A plain loop of 12 epochs tells nobody its length: trials were forecast to train on until the deadline."""
    ended = [seen(n, rising(0.5, steps), ending="finished") for n, steps in enumerate((9, 12))]
    curves = TrialCurves([*ended, *(seen(n, rising(0.5, n)) for n in (5, 12, 20))])
    lengths = [Future(curves, [1, 1]).curve(n).length for n in (0, 1, 5, 12, 20)]
    assert lengths == [9, 12, 12, 12, None]


def test_failures_and_divergence_are_drawn_like_the_rest():
    fine = [seen(n, rising(0.5, 12)) for n in range(3)]
    curves = TrialCurves([*fine, seen(3, [], ending="failed")])
    drawn = [Future(curves, [1, n]).curve(50) for n in range(100)]
    assert 10 < sum(curve.ending == "failed" for curve in drawn) < 45
    diverged = TrialCurves([seen(0, [0.1, 0.2, math.nan]), *fine[1:]])
    assert math.isnan(Future(diverged, [1, 1]).curve(0).metric(9))
    # One that has diverged is not the best possible, neither where it has nor as the origin of a newcomer.
    assert math.isnan(Future(diverged, [1, 1]).curve(0).metric(3))
    newcomers = [Future(diverged, [1, n]).curve(50).metric(3) for n in range(30)]
    assert any(map(math.isnan, newcomers))
    assert not any(score > 0.9 for score in newcomers)
