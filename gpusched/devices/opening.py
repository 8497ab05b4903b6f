"""The first look at the GPUs of an experiment: first readings, whose pids NVML names, idle baselines.

The only part that waits for the driver after the GPUs were found, and with limits: 30 s for first readings, 30 s for
the test of ``pidcheck.py`` inside a container. A GPU that does not answer in time is busy until it does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from gpusched.devices import pidcheck
from gpusched.devices.clock import Clock
from gpusched.devices.gpu import Usage
from gpusched.devices.holders import Processes
from gpusched.devices.unit import Out, Unit

FIRST_READING_TIMEOUT_S = 30.0
READING_TIMEOUT_S = 10.0
CONTEXT_GONE_TIMEOUT_S = 20.0
LEAVING_TIMEOUT_S = 10.0
"""How long to wait for processes that have ended and whose contexts the driver is still taking down."""
POLL_S = 0.05

StartContext = Callable[[str], pidcheck.Child]


class Opening:
    """Brings units from "never read" to FREE, HELD by a trial that outlived the last daemon, or out."""

    def __init__(
        self,
        units: Sequence[Unit],
        processes: Processes,
        clock: Clock,
        say: Callable[[str], None],
        start_context: StartContext | None,
    ) -> None:
        self._units = units
        self._processes = processes
        self._clock = clock
        self._say = say
        self._never = threading.Event()
        self._start_context: StartContext = start_context or pidcheck.ContextChild

    def run(self) -> None:
        """Read, test, judge, learn."""
        for watch in {id(unit.watch): unit.watch for unit in self._units}.values():
            watch.begin(tuple(unit.gpu for unit in self._units if unit.watch is watch))
        deadline = self._clock.now() + FIRST_READING_TIMEOUT_S
        for unit in self._units:
            usage = self._wait_for(unit, 0, deadline, vitals=True)
            unit.verdict()  # notices what the driver gives
            if usage is not None and not usage.compute:
                unit.learn_if_idle()  # before a context of the test's own is on it
        self._test_pids()
        self._wait_for_the_leaving()
        for unit in self._units:
            self._judge(unit)

    def _wait_for_the_leaving(self) -> None:
        """A search that is begun right after another one ended finds the last one's contexts: they go by themselves."""
        deadline = self._clock.now() + LEAVING_TIMEOUT_S
        for unit in self._units:
            leaving = bool(unit.verdict().holders)
            while leaving and self._clock.now() < deadline:
                verdict = unit.verdict()
                others = any(holder.whose != "gone" for holder in verdict.holders)
                if verdict.clean or others or self._fresh(unit) is None:
                    break
                self._clock.wait(self._never, POLL_S)

    def _judge(self, unit: Unit) -> None:
        unit.verdict()
        if unit.usage is not None and not unit.usage.error:
            shortfall = unit.means.shortfall(unit.gpu)
            if shortfall:
                self._say(shortfall)
            if not unit.means.enough and unit.out is None:
                unit.out = Out(shortfall, self._clock.now(), passing=False)
        unit.learn_if_idle()
        unit.examine()

    def _wait_for(
        self, unit: Unit, ticket: int, deadline: float, *, vitals: bool = False
    ) -> Usage | None:
        """A reading that carries the ticket; None if the GPU is lost or it takes too long."""
        while self._clock.now() < deadline and unit.watch.lost is None:
            unit.watch.news.clear()
            usage = unit.usage
            if usage is not None and usage.ticket >= ticket and (unit.watch.vitals or not vitals):
                return usage
            self._clock.wait(unit.watch.news, max(0.0, deadline - self._clock.now()))
        return None

    def _fresh(self, unit: Unit) -> Usage | None:
        return self._wait_for(unit, unit.watch.request(), self._clock.now() + READING_TIMEOUT_S)

    def _test_pids(self) -> None:
        """Inside a container: do NVML's pids mean anything here?"""
        if self._processes.visible:
            return
        listed = [p.pid for u in self._units if u.usage for p in u.usage.compute]
        if any(self._processes.looks_ours(pid) for pid in listed):  # an adopted trial's rank
            finding, why = "visible", ""
        else:
            finding, why = self._open_a_context()
        self._processes.visible = finding == "visible"
        if finding != "visible":
            self._say(pidcheck.MEANING[finding].format(why=why))
        for unit in self._units:  # anew: until now everybody was called unseen
            self._fresh(unit)
            unit.watch.relax()

    def _open_a_context(self) -> tuple[str, str]:
        free = next((u for u in self._units if u.out is None and u.verdict().clean), None)
        if free is None:
            return "unknown", "no GPU is free to test it on"
        finding, why = pidcheck.self_test(
            lambda: self._start_context(free.gpu.uuid), lambda: self._fresh(free)
        )
        deadline = self._clock.now() + CONTEXT_GONE_TIMEOUT_S
        while not free.verdict().clean and self._clock.now() < deadline:
            if self._fresh(free) is None:
                break
            self._clock.wait(self._never, POLL_S)
        return finding, why
