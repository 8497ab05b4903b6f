"""Learning-curve forecasts away from the daemon's loop: ``Forecast`` commands in, ``Forecasted`` events out.

* ``ChildForecaster``, for live runs: a child process (``child``) that answers one curve at a time.
* ``InlineForecaster``, for simulations: the same numbers, at once.

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
from gpusched.driver.child import Answer, Child, serve

if TYPE_CHECKING:
    from gpusched.policies.curves.predictor import CurvePredictor


class ChildForecaster(Child[Forecast]):
    """A ``Helper`` with a process that answers one question after the other."""

    def __init__(self, predictor: str, seed: int) -> None:
        super().__init__("forecasts", "gpusched.driver.forecaster", predictor, str(seed))
        self._waiting: dict[int, Forecast] = {}
        self._given_up: list[Forecast] = []

    def execute(self, command: Forecast) -> None:
        """Have a curve fitted."""
        overtaken = self._waiting.pop(command.trial, None)
        if overtaken is not None:
            self._given_up.append(overtaken)
        self._waiting[command.trial] = command
        self._feed()

    def poll(self, until: float) -> Sequence[Event]:
        """Return the forecasts that are done."""
        done = [_event(command, found or {}, until) for command, found in self.answers()]
        self._feed()
        done += [_event(command, {}, until) for command in self._given_up]
        self._given_up.clear()
        return done

    def _feed(self) -> None:
        if not self.is_usable:
            self._given_up += self._waiting.values()
            self._waiting.clear()
        elif self._waiting and self.job is None:
            command = self._waiting.pop(next(iter(self._waiting)))
            self.ask(command, asdict(command))


def _event(command: Forecast, forecast: Mapping[str, float], now: float) -> Forecasted:
    return Forecasted(at=now, trial=command.trial, step=command.step, forecast=dict(forecast))


class InlineForecaster:
    """A ``Helper`` in this process, for virtual time."""

    def __init__(self, predictor: str | CurvePredictor, seed: int = 0) -> None:
        from gpusched.policies.curves.predictor import make_predictor

        self._predictor = make_predictor(predictor) if isinstance(predictor, str) else predictor
        self._seed = seed
        self._done: list[tuple[Forecast, dict[str, float]]] = []
        self.complaints: deque[str] = deque()

    def execute(self, command: Forecast) -> None:
        from gpusched.policies.curves.predictor import forecast

        self._done.append((command, forecast(command, self._predictor, self._seed)))

    def poll(self, until: float) -> Sequence[Event]:
        done, self._done = self._done, []
        return [_event(command, found, until) for command, found in done]

    def close(self) -> None:
        """Nothing to end."""


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
