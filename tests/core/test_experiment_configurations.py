"""Sources of configurations: a sampler that learns is asked in time, and a person's own are not counted."""

from __future__ import annotations

from typing import Self

import pytest

from gpusched import policies
from gpusched.core.commands import Launch, Suggest
from gpusched.core.decisions import Start
from gpusched.core.events import Event, Suggested, UserAsked
from tests.helpers import Script


class Learning(Script):
    """A search under a sampler that learns; each question is answered at once, or when ``answer`` is called."""

    def __init__(self, policy: str, atoms: int = 8, **rules: int) -> None:
        super().__init__(devices=atoms, policy=policies.make(policy, {}), draw=None, **rules)
        self.launched: list[Launch] = []
        self.asked: list[int] = []
        self.start()

    def feed(self, event: Event) -> Self:
        commands = super().feed(event).take()
        self.launched += [command for command in commands if isinstance(command, Launch)]
        self.asked += [command.n for command in commands if isinstance(command, Suggest)]
        return self

    def answer(self) -> None:
        n = self.asked.pop()
        self.feed(Suggested(at=self.now, n=n, hparams={"n": n}, by="tpe"))


@pytest.mark.parametrize("policy", ["asha", "hypersched", "fifo"])
def test_every_atom_trains_under_a_sampler_that_learns(policy: str) -> None:
    search = Learning(policy)
    while search.asked and len(search.launched) < 8:
        search.answer()
    assert [launch.trial for launch in search.launched] == list(range(8))


def test_no_loser_is_woken_while_the_sampler_thinks() -> None:
    """The atom waits for the configuration that is coming."""
    search = Learning("hypersched", atoms=2, max_atoms=1)
    search.answer()
    search.answer()
    for trial, metric in ((0, 0.9), (0, 0.9), (1, 0.1), (1, 0.1)):
        search.wait(1.0).report(trial, metric)
    search.exited(1, saved=2).released("d1")
    assert search.asked, "the sampler thinks"
    assert [launch.trial for launch in search.launched] == [0, 1]
    search.answer()
    assert [launch.trial for launch in search.launched] == [0, 1, 2]


def test_a_sampler_that_learns_may_be_asked_for_more_once_the_limit_is_raised() -> None:
    search = Learning("fifo", atoms=1, max_trials=1)
    search.answer()
    state = search.state
    assert not state.can_draw
    assert state.configurations.may_have_next(2)
    assert not state.configurations.may_have_next(1)
    state.configurations.suggested[1] = None
    assert not state.configurations.may_have_next(2), "it has said that there is none"


def test_configurations_that_a_person_tried_are_not_counted_as_drawn() -> None:
    """With three allowed, a ``try`` left room for two."""
    script = Script(devices=1, max_trials=3).wants(Start(1)).start().drop()
    script.feed(UserAsked(verb="try", at=0.0, hparams={"lr": 0.5})).drop()
    for trial in range(4):
        script.wants(Start(1)).report(trial, 0.5).drop()
        script.exited(trial, "finished").drop().released("d0").drop()
    assert len(script.state.trials) == 4
    assert not script.state.can_draw
    assert script.state.draws_left == 0
