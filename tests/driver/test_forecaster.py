"""The processes that fit learning curves: nothing waits, nothing is lost, nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from gpusched.core.commands import Forecast
from gpusched.core.events import Forecasted
from gpusched.driver.assemble import make_helpers
from gpusched.driver.child import MAX_DEATHS
from gpusched.driver.forecaster import ChildForecaster, InlineForecaster
from gpusched.processes.identity import Identity, is_alive
from gpusched.sim.setup import Setup, experiment, recipe
from tests.helpers import children_of
from tests.rig import wait_until

CURVE = tuple(0.8 - 0.7 * 0.9**step for step in range(20))


def ask(trial: int = 3, step: int = 20) -> Forecast:
    return Forecast(trial, step, CURVE, horizon=60, target=0.75)


@pytest.fixture
def pool() -> Iterator[ChildForecaster]:
    made = ChildForecaster("shapes", seed=7)
    yield made
    made.close()


def wait(
    pool: ChildForecaster, count: int, *, also: Callable[[], None] = lambda: None
) -> list[Forecasted]:
    """Poll until so many answers are there."""
    found: list[Forecasted] = []

    def is_answered() -> bool:
        also()
        found.extend(pool.poll(12.5))
        return len(found) >= count

    wait_until(is_answered, f"{count} answers")
    return found


def children() -> list[psutil.Process]:
    return children_of("gpusched.driver.forecaster")


def test_the_answer_is_an_event_and_the_same_as_in_a_simulation(pool: ChildForecaster) -> None:
    pool.execute(ask())
    (event,) = wait(pool, 1)
    assert (event.at, event.trial, event.step) == (12.5, 3, 20)
    inline = InlineForecaster("shapes", seed=7)
    inline.execute(ask())
    (expected,) = inline.poll(12.5)
    assert event == expected
    assert 0.0 < event.forecast["reached_by_end"] <= 1.0


def test_asking_does_not_wait(pool: ChildForecaster) -> None:
    """Its process is stopped: who waited for anything of it would wait for ever."""
    pool.execute(ask(0))
    (process,) = children()
    process.suspend()
    for trial in range(1, 50):
        pool.execute(ask(trial))
    process.resume()
    assert sorted(event.trial for event in wait(pool, 50)) == list(range(50))


def test_no_process_before_the_first_question_and_none_afterwards() -> None:
    pool = ChildForecaster("shapes", seed=7)
    assert children() == []
    for trial in range(4):
        pool.execute(ask(trial))
    assert len(children()) == 1
    pool.close()
    assert children() == []


def test_it_ends_with_the_daemon() -> None:
    """However the daemon ended, and in the middle of a fit: a stopped process cannot see that its pipe has ended."""
    program = (
        "import os, signal, time\n"
        "from gpusched.driver.forecaster import ChildForecaster\n"
        "from gpusched.core.commands import Forecast\n"
        "from gpusched.processes.identity import start_time\n"
        "pool = ChildForecaster('shapes', 0)\n"
        "curve = tuple(0.8 - 0.5 * 0.9 ** step for step in range(20))\n"
        "pool.execute(Forecast(0, 20, curve, 40, 0.9))\n"
        "while not pool.poll(0.0): time.sleep(0.01)\n"
        "pid = pool._process.pid\n"
        "os.kill(pid, signal.SIGSTOP)\n"
        "print(pid, start_time(pid), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=False)
    assert done.returncode == -signal.SIGKILL
    fitter = Identity(*map(int, done.stdout.split()))
    wait_until(lambda: not is_alive(fitter), "the end of a fit whose daemon has died")


def test_of_a_trial_only_the_newest_question_waits(pool: ChildForecaster) -> None:
    pool.execute(ask(1, step=20))  # goes to the process at once
    pool.execute(ask(2, step=20))
    pool.execute(ask(2, step=30))
    answers = {(event.trial, event.step): event.forecast for event in wait(pool, 3)}
    assert answers[2, 20] == {}
    assert answers[2, 30]
    assert answers[1, 20]


def test_a_killed_process_costs_an_answer_and_is_replaced(pool: ChildForecaster) -> None:
    pool.execute(ask(1))
    os.kill(children()[0].pid, signal.SIGKILL)
    (lost,) = wait(pool, 1)
    assert lost.forecast == {}
    assert "status -9" in pool.complaints[0]
    pool.execute(ask(2))
    (answer,) = wait(pool, 1)
    assert answer.forecast


def test_after_too_many_deaths_everything_is_answered_empty() -> None:
    pool = ChildForecaster("no such predictor", seed=0)
    for trial in range(MAX_DEATHS + 3):
        pool.execute(ask(trial))
    events = wait(pool, MAX_DEATHS + 3)
    assert [event.forecast for event in events] == [{}] * (MAX_DEATHS + 3)
    assert children() == []
    pool.execute(ask(99))
    (event,) = wait(pool, 1)
    assert event.forecast == {}


def test_what_cannot_be_fitted_is_answered_empty_and_said(pool: ChildForecaster) -> None:
    broken = Forecast(1, 5, ("x", "y", "z", "u"), 9, 0.5)
    pool.execute(broken)
    (event,) = wait(pool, 1)
    assert event.forecast == {}
    assert "ValueError" in pool.complaints[0]
    pool.execute(ask(2))
    (event,) = wait(pool, 1)
    assert event.forecast


def helpers(setup: Setup) -> dict[type, Any]:
    of = recipe(setup)
    return make_helpers(of, experiment(setup, of))


def test_only_policies_that_forecast_have_a_forecaster() -> None:
    assert helpers(Setup(policy="asha")) == {}
    (made,) = helpers(Setup(policy="earlyterm", options={"predictor": "mcmc"})).values()
    made.close()


def test_the_daemon_does_not_pay_for_numpy() -> None:
    program = (
        "import sys, gpusched.driver.forecaster, gpusched.policies.pop, gpusched.policies.earlyterm; "
        "sys.exit('numpy' in sys.modules or 'scipy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
