"""``view.build``: what it promises to ``status --json``, its bounds, its words, and that it is cheap."""

from __future__ import annotations

import json

import pytest

from gpusched.core.events import DevicesJoined, QuarantineChanged, TrialExited, UserAsked
from gpusched.dashboard import view as views
from gpusched.dashboard.model import from_json, thinned, to_json
from gpusched.devices.base import Reading
from tests.counting import calls_of
from tests.dashboard.scene import VIEWS, Scene


@pytest.fixture(scope="module")
def crowd() -> Scene:
    """A search that has drawn more than a thousand trials."""
    scene = Scene(atoms=8, deadline_s=4000.0, fails=tuple(range(300, 340)))
    scene.experiment.check = lambda: None  # type: ignore[method-assign]  # O(trials), and not the matter here
    return scene.play(450)


def test_json_there_and_back_is_the_same_view() -> None:
    view = Scene(kind="gpu", fails=(2,), broken=(1,)).play(20).view()
    text = json.dumps(to_json(view), allow_nan=False)
    assert from_json(json.loads(text)) == view


def test_what_is_not_finite_is_none() -> None:
    scene = Scene(broken=(0,)).play(5)
    trial = scene.view().trial(0)
    assert trial is not None
    assert trial.step >= 1
    assert trial.metric is None
    assert trial.best_metric is None
    assert set(trial.curve) == {None}
    assert trial.metrics["accuracy"] == "nan"


def test_a_crowd_is_cut_to_the_relevant_and_all_are_counted(crowd: Scene) -> None:
    state, view = crowd.experiment.state, crowd.view()
    shown = {trial.id for trial in view.trials}
    assert len(state.trials) > 1000
    assert len(shown) == len(view.trials) == views.LIMIT
    assert view.trials_total == len(state.trials)
    assert (
        view.trial_counts["failed"]
        == sum(t.state.value == "failed" for t in state.trials.values())
        > 0
    )
    assert set(state.live) <= shown
    assert state.best is not None
    assert state.best.trial in shown
    failed = [t.id for t in state.trials.values() if t.state.value == "failed"]
    assert set(failed[-views.FAILURES :]) <= shown
    paused = sorted(state.paused.values(), key=lambda trial: -trial.best_score)
    assert {trial.id for trial in paused[:100]} <= shown
    best = [trial.best_metric for trial in view.trials if trial.best_metric is not None]
    assert best == sorted(best, reverse=True)


def test_a_crowd_is_viewed_in_milliseconds(crowd: Scene) -> None:
    # Measured: 57,439 calls, 8 ms. Twice a second that is 2% of a core; the bound catches another order of magnitude.
    assert calls_of(lambda: json.dumps(to_json(crowd.view()))) < 500_000


@pytest.mark.parametrize("count", [0, 1, 2, 199, 200, 201, 5000])
@pytest.mark.parametrize("most", [1, 40, 200])
def test_long_curves_are_thinned_from_end_to_end(count: int, most: int) -> None:
    thin = thinned(range(count), most)
    assert len(thin) == min(count, most)
    assert sorted(set(thin)) == thin
    assert thin[:1] == list(range(count))[:1]
    assert most == 1 or thin[-1:] == list(range(count))[-1:]


def test_it_says_where_the_experiment_stands() -> None:
    scene = Scene(deadline_s=20.0)
    assert scene.view(daemon_pid=None).state == "interrupted"
    assert scene.play(5).view().state == "running"
    scene.tell(UserAsked(at=5.1, verb="stop"))
    view = scene.view()
    assert (view.state, view.ending) == ("stopping", "stopped by the user")
    over = scene.play().view(daemon_pid=None, now=1e6)
    assert (over.state, over.now_s) == ("finished", round(scene.experiment.state.now, 3))


def test_time_goes_on_between_events() -> None:
    scene = Scene(deadline_s=60.0).play(10)
    assert scene.view(now=12.5).time_left_s == 47.5
    assert scene.view(now=3.0).now_s == round(scene.experiment.state.now, 3)
    assert scene.view(now=100.0).time_left_s == 0.0


def test_devices_say_why_they_cannot_be_used() -> None:
    scene = Scene().play(5)
    trial = next(t for t in scene.experiment.state.live.values() if t.state.value == "running")
    scene.tell(TrialExited(at=5.05, trial=trial.id, incarnation=trial.incarnation, outcome="lost"))
    (name,) = trial.devices
    reading = Reading(device=name, holders=("python (pid 8812)",))
    view = scene.view(readings=[reading])
    device = next(device for device in view.devices if device.id == name)
    assert device.state == "draining"
    mine = trial.id
    assert (
        device.reason
        == f"still held by python (pid 8812) after trial {mine} left; trial {mine} is next"
    )
    (calm,) = [device for device in scene.view().devices if device.id == name]
    assert (
        calm.reason
        == f"trial {mine} has left, its release is being confirmed; trial {mine} is next"
    )
    scene.tell(QuarantineChanged(at=5.1, device=name, reason="4.1 GiB\x1b[31m still held"))
    device = next(device for device in scene.view().devices if device.id == name)
    assert (device.state, device.trial, device.reason) == (
        "quarantined",
        None,
        "4.1 GiB still held",
    )
    ill, labels = {"GPU-9": "held by pid 7"}, {"GPU-9": "GPU 3"}
    scene.tell(DevicesJoined(at=5.2, devices=("GPU-9",), unusable=ill, labels=labels))
    assert scene.view(daemon_pid=None).devices[-1].name == "GPU 3", "nobody reads its name now"


def test_the_recorded_views_have_the_keys_of_today() -> None:
    """The pictures of ``test_app`` are drawn from these."""
    now = to_json(Scene().play(4).view(now=4.0))
    for path in VIEWS.glob("*.json"):
        assert now.keys() >= json.loads(path.read_text()).keys(), path.name
