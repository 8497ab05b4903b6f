"""Learning-curve forecasts away from the daemon's loop: ``Forecast`` commands in, ``Forecasted`` events out.

* ``ChildForecaster``, for live runs: a child process (``child``) that answers one curve at a time.
* ``InlineForecaster``, for simulations: the same numbers, at once, optionally late by a simulated delay.

What a fit says depends on the curve, the seed, the trial and the step alone. It is journaled and never made again. Of a
trial only the newest request waits: an older one is out of date. Every request is answered; the answer is empty if it
was overtaken, could not be fitted, or if its process died.
"""

from __future__ import annotations

import functools
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import asdict

from gpusched.core.commands import Forecast
from gpusched.core.events import Event, Forecasted
from gpusched.driver.child import LOOK_EVERY_S, Answer, Child, serve
from gpusched.executors.base import FOREVER

if TYPE_CHECKING:
    from gpusched.policies.curves.predictor import CurvePredictor
    from gpusched.recipe.recipe import Recipe


def make_forecaster(recipe: Recipe) -> ChildForecaster | None:
    """Return the forecaster that the policy's option ``predictor`` asks for; None if the policy forecasts nothing."""
    predictor = recipe.policy_options.get("predictor")
    return ChildForecaster(predictor, recipe.seed) if isinstance(predictor, str) else None


# ---------------------------------------------------------------- live


class ChildForecaster:
    """A ``Helper`` with a process that answers one question after the other."""

    def __init__(self, predictor: str, seed: int) -> None:
        module = "gpusched.driver.forecaster"
        self._child = Child[Forecast]("forecasts", module, predictor, str(seed))
        self._waiting: dict[int, Forecast] = {}
        self._given_up: list[Forecast] = []
        #: Problems, for the daemon's log.
        self.complaints: deque[str] = deque(maxlen=20)

    @property
    def pending(self) -> int:
        """Requests that have no answer yet."""
        return len(self._waiting) + len(self._given_up) + (self._child.job is not None)

    def submit(self, command: Forecast, _trials: object = ()) -> None:
        """Have a curve fitted."""
        overtaken = self._waiting.pop(command.trial, None)
        if overtaken is not None:
            self._given_up.append(overtaken)
        self._waiting[command.trial] = command
        self._feed()

    def poll(self, now: float) -> Sequence[Event]:
        """Return the forecasts that are done."""
        done: list[Event] = [
            _event(command, forecast or {}, now) for command, forecast in self._child.answers()
        ]
        self.complaints.extend(self._child.complaints)
        self._child.complaints.clear()
        self._feed()
        done += [_event(command, {}, now) for command in self._given_up]
        self._given_up.clear()
        return done

    def next_look_at(self, now: float) -> float:
        return now + LOOK_EVERY_S if self.pending else FOREVER

    def _feed(self) -> None:
        if not self._child.is_usable:
            self._given_up += self._waiting.values()
            self._waiting.clear()
        elif self._waiting and self._child.job is None:
            command = self._waiting.pop(next(iter(self._waiting)))
            self._child.ask(command, asdict(command))

    def close(self) -> None:
        """End the process; forecasts that are not done are lost."""
        self._child.close()


def _event(command: Forecast, forecast: Mapping[str, float], now: float) -> Forecasted:
    return Forecasted(at=now, trial=command.trial, step=command.step, forecast=dict(forecast))


# ---------------------------------------------------------------- simulated


class InlineForecaster:
    """A ``Helper`` in this process. ``delay_s``: simulated seconds until the answer."""

    def __init__(
        self, predictor: str | CurvePredictor, seed: int = 0, *, delay_s: float = 0.0
    ) -> None:
        from gpusched.policies.curves.predictor import make_predictor

        self._predictor = make_predictor(predictor) if isinstance(predictor, str) else predictor
        self._seed, self._delay_s = seed, delay_s
        self._now = 0.0
        self._done: deque[tuple[float, Forecasted]] = deque()

    def submit(self, command: Forecast, _trials: object = ()) -> None:
        from gpusched.policies.curves.predictor import forecast

        found = forecast(command, self._predictor, self._seed)
        self._done.append((self._now + self._delay_s, _event(command, found, self._now)))

    def poll(self, now: float) -> Sequence[Event]:
        self._now = now
        due: list[Event] = []
        while self._done and self._done[0][0] <= now:
            _, event = self._done.popleft()
            event.at = now
            due.append(event)
        return due

    def close(self) -> None:
        """Nothing to end."""

    def next_look_at(self, now: float) -> float:
        return FOREVER


# ---------------------------------------------------------------- the process


def _fitter(predictor_name: str, seed: int) -> Callable[[Answer], Mapping[str, object]]:
    from gpusched.policies.curves.predictor import forecast, make_predictor

    predictor = make_predictor(predictor_name)

    def answer(fields: Answer) -> Mapping[str, object]:
        fields["curve"] = tuple(fields["curve"])
        return forecast(Forecast(**fields), predictor, seed)

    return answer


if __name__ == "__main__":
    serve(functools.partial(_fitter, sys.argv[1], int(sys.argv[2])))
