"""Configurations that a person asks for: they start next, beside whatever the policy had in mind."""

from __future__ import annotations

import pytest

from gpusched import policies
from gpusched.core.decisions import Launch, SetTimer, Start
from gpusched.core.events import Tried
from tests.helpers import Script, launch
from tests.policies.contract import VARIANTS
from tests.policies.hand import Hand


def tried(script: Script, *, seed: int | None = None, **hparams: object) -> Script:
    return script.feed(Tried(at=script.now, hparams=hparams, seed=seed))


def test_it_starts_at_once_on_a_free_atom_with_its_seed() -> None:
    script = Script(devices=2).wants(Start(1)).start().drop()
    tried(script, lr=0.1, seed=7).expect(Launch(1, 1, ("d1",), {"lr": 0.1}, 7))


def test_it_waits_for_an_atom_and_is_next_before_the_sequence() -> None:
    script = Script().wants(Start(1)).start().drop().report(0).drop()
    tried(tried(script, lr=0.1), lr=0.2).expect_nothing()
    assert script.state.draws_left == float("inf")
    script.exited(0, "finished").drop().wants(Start(1)).released("d0")
    script.expect(Launch(1, 1, ("d0",), {"lr": 0.1}))
    script.exited(1, "finished").drop().released("d0").expect(Launch(2, 1, ("d0",), {"lr": 0.2}))
    script.exited(2, "finished").drop().wants(Start(1)).released("d0")
    script.expect(Launch(3, 1, ("d0",), {"n": 1}))


def test_it_starts_where_no_configuration_is_left() -> None:
    script = Script(devices=2, max_trials=1).wants(Start(1)).start().drop()
    assert script.state.draws_left == 0
    tried(script, lr=0.1).expect(Launch(1, 1, ("d1",), {"lr": 0.1}))


def test_a_search_that_is_ending_takes_none_and_one_that_goes_on_starts_those_it_had() -> None:
    script = Script().wants(Start(1)).start().drop().report(0).drop()
    tried(script, lr=0.1).drop().asked("stop").drop()
    tried(script, lr=0.2).drop().exited(0).drop().released("d0").drop()
    script.reopened().expect(SetTimer("deadline", 2000.0), Launch(1, 1, ("d0",), {"lr": 0.1}))
    assert not script.state.configurations.given


def test_a_relaunch_has_the_same_seed() -> None:
    script = tried(Script(devices=2).wants(Start(1)).start().drop(), lr=0.1, seed=7).drop()
    script.exited(1, "lost").drop().released("d1").expect(Launch(1, 2, ("d1",), {"lr": 0.1}, 7))
    assert launch(0, 1, "d0").seed is None


@pytest.mark.parametrize("name", [name for name in policies.names() if name != "profile"])
def test_every_policy_starts_it(name: str) -> None:
    hand = Hand(name, VARIANTS.get(name, [{}])[0], atoms=4, deadline_s=1000.0)
    hand.report(0, 0.5)
    hand.send(Tried(at=hand.now, hparams={"mine": 1}))
    for _ in range(300):
        if any(trial.hparams == {"mine": 1} for trial in hand.state.trials.values()):
            break
        hand.advance(hand.now + 1.0)
        trial = min(hand.live, key=lambda number: hand.trial(number).step)
        hand.report(trial, 0.1)
    hand.experiment.check()
    (mine,) = [t for t in hand.state.trials.values() if t.hparams == {"mine": 1}]
    assert mine.incarnation == 1
