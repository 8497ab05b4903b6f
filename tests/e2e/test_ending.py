"""The ways to end a search early, from the outside: signals, and what people ask."""

from __future__ import annotations

import signal

import psutil
import pytest

from gpusched.core.decisions import Kill
from gpusched.core.events import UserAsked
from gpusched.daemon.session import Client
from gpusched.journal.log import Journal
from tests.e2e.sandbox import Sandbox
from tests.rig import wait_until


def asked(sandbox: Sandbox) -> list[tuple[str, list[float]]]:
    """What the journal says was asked, and the grace of the kills that followed at once."""
    journal = Journal.open(sandbox.paths.journal)
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


def ended(sandbox: Sandbox) -> list[tuple[str, list[float]]]:
    wait_until((sandbox.experiment / "final.json").exists, "the end")
    return asked(sandbox)


def client(sandbox: Sandbox) -> Client:
    client = Client.connect(sandbox.paths.socket)
    assert client is not None
    return client


def test_signals_and_requests_count_in_the_order_in_which_they_arrived(training: Sandbox) -> None:
    daemon = psutil.Process(training.daemon())
    with client(training) as line:
        line.ask("view")  # the daemon has taken the connection: a later request is read in one turn
        daemon.suspend()
        wait_until(lambda: daemon.status() == psutil.STATUS_STOPPED, "a stopped daemon")
        daemon.send_signal(signal.SIGTERM)
        daemon.send_signal(signal.SIGINT)
        line.send("kill")
        daemon.resume()
        assert line.receive()
    assert [verb for verb, _ in ended(training)] == ["stop", "cancel", "kill"]


def test_a_kill_is_journaled_before_it_is_carried_out(training: Sandbox) -> None:
    with client(training) as line:
        for verb in ("stop", "cancel", "kill"):
            line.ask(verb)
    assert ended(training) == [("stop", []), ("cancel", [60.0]), ("kill", [0.0])]
