"""The ways to end a search early, from the outside: signals, and what people ask."""

from __future__ import annotations

import os
import signal

import pytest

from gpusched.core.decisions import Kill
from gpusched.core.events import UserAsked
from gpusched.daemon.session import Client
from gpusched.folder.paths import ExperimentPaths
from gpusched.journal.log import Journal
from tests.e2e.sandbox import Sandbox, wait_until


def asked(sandbox: Sandbox) -> list[tuple[str, list[float]]]:
    """What the journal says was asked, and the grace of the kills that followed at once."""
    journal = Journal.open(ExperimentPaths(sandbox.experiment).journal)
    found = [
        (entry.event.verb, [c.grace_s for c in entry.commands if isinstance(c, Kill)])
        for entry in journal.entries()
        if isinstance(entry.event, UserAsked)
    ]
    journal.close()
    return found


@pytest.fixture
def training(sandbox: Sandbox) -> Sandbox:
    """A search of one trial that does not leave by itself."""
    recipe = sandbox.recipe("stubborn.py", max_trials=1, devices="cpu:1", grace="60s")
    assert sandbox.gpusched("run", recipe, "--detach").code == 0
    sandbox.wait_for(lambda view: view["trials"] and view["trials"][0]["step"] == 1)
    return sandbox


def kill(sandbox: Sandbox, *before: str) -> None:
    """Ask for these, then for the end of every process; return when the search is over."""
    client = Client.connect(ExperimentPaths(sandbox.experiment).socket)
    assert client is not None
    with client:
        for verb in (*before, "kill"):
            client.ask(verb)
    wait_until((sandbox.experiment / "final.json").exists, "the end")


def test_two_signals_that_arrive_at_once_are_a_stop_and_a_cancel(training: Sandbox) -> None:
    daemon = training.daemon()
    for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGCONT):
        os.kill(daemon, number)
    kill(training)
    assert [verb for verb, _ in asked(training)] == ["stop", "cancel", "kill"]


def test_a_kill_is_journaled_before_it_is_carried_out(training: Sandbox) -> None:
    kill(training, "stop", "cancel")
    assert asked(training) == [("stop", []), ("cancel", [60.0]), ("kill", [0.0])]
