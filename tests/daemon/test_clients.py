"""Looking ends no search, whatever a policy of a user's own raises."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpusched.core.events import UserAsked
from gpusched.daemon import clients
from gpusched.daemon.clients import Clients, standing
from gpusched.driver.assemble import Assembled
from gpusched.folder.paths import ExperimentPaths
from gpusched.protocol import Ask, Refused
from gpusched.sim.setup import Setup, recipe
from tests.core import stages


def failing(*_: Any, **_more: object) -> Any:
    raise RuntimeError("mine.py:5: no such note\nMend it")


@pytest.fixture
def assembled(tmp_path: Path) -> Assembled:
    experiment = stages.running().experiment
    return Assembled(experiment, recipe(Setup(policy="asha")), ExperimentPaths(tmp_path))


def test_a_policy_that_cannot_say_its_notes_is_shown_without(
    assembled: Assembled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first dashboard ended the daemon of a search that had run well detached."""
    monkeypatch.setattr(assembled.experiment.policy, "notes", failing)
    view = standing(assembled)
    assert [row["id"] for row in view["trials"]] == [0]
    assert "the policy cannot say its notes: mine.py:5: no such note" in view["notes"]


def test_what_the_policy_is_doing_is_not_told_of_a_search_that_is_over(
    assembled: Assembled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assembled.experiment.policy, "notes", lambda state: ("exploring",))
    assert list(standing(assembled)["notes"]) == ["exploring"]
    monkeypatch.setattr(assembled.experiment.state, "finished", True)
    assert not standing(assembled)["notes"]


@pytest.mark.parametrize(
    "request_",
    [
        Ask("pause", trial=0),
        Ask("unpause", trial=0),
        Ask("stop_trial", trial=0),
        Ask("deadline", add_s=60.0),
        Ask("try", hparams={"lr": 0.1}),
    ],
    ids=lambda request: request.verb,
)
def test_what_comes_too_late_is_refused_with_what_to_do(
    assembled: Assembled, request_: Ask
) -> None:
    """A trial of a search that was ending was told to pause, and left for good."""
    search = assembled.experiment
    search.handle(UserAsked(at=5.0, verb="pause", trial=0))  # so that it may be unpaused
    search.handle(UserAsked(at=5.0, verb="stop"))
    told: list[Any] = []
    hub: Any = SimpleNamespace(register=lambda *_: None)
    peer: Any = SimpleNamespace(send=told.append)
    asked = Clients(assembled, hub, lambda: 6.0, tuple, tuple)
    asked.serve(request_, peer)
    assert isinstance(told[0], Refused)
    assert "is ending (stopped by the user); once it is over, 'gpusched resume " in told[0].error
    assert not asked.asked()


def test_what_cannot_be_shown_is_said_once(
    assembled: Assembled, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hub: Any = SimpleNamespace(register=lambda *_: None)
    watched = Clients(assembled, hub, lambda: 1.0, tuple, tuple)
    monkeypatch.setattr(clients.plain, "records", failing)
    for _ in range(2):
        watched.observe(SimpleNamespace(), ())
    told = capsys.readouterr()
    assert told.out.count("a line cannot be shown (RuntimeError: mine.py:5: no such note") == 1
    assert told.err.count("Traceback") == 1
