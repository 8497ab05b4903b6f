"""The first look at the GPUs of an experiment: first readings, whose pids NVML names, idle baselines.

The only part that waits for the driver after the GPUs were found, and with limits: 30 s for first readings, 30 s for
the test of pids inside a container. A GPU that does not answer in time is busy until it does.

*Whose pids.* The driver knows no pid namespaces: in a container NVML may name pids of the host, or of the container, or
none. Outside one there is nothing to test. Inside, a child opens a CUDA context on a GPU that is ours and empty, and is
looked for in NVML's list. Where it does not show up under its own pid, processes cannot be told apart, and a release is
confirmed by the empty process tree, memory, and the list being as it was before: said once, cured by ``--pid=host``.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from gpusched.devices.gpu import GpuUsage
from gpusched.devices.helper import World
from gpusched.devices.holders import Processes
from gpusched.devices.unit import Doing, Out, Unit
from gpusched.devices.witness import CallWitness

FIRST_READING_TIMEOUT_S = 30.0
READING_TIMEOUT_S = 10.0
CONTEXT_GONE_TIMEOUT_S = 20.0
LEAVING_TIMEOUT_S = 10.0
"""Time to wait for processes that have ended and whose contexts the driver is still taking down."""
POLL_S = 0.05

Finding = Literal["visible", "hidden", "absent", "unknown"]


class ContextProcess(Protocol):
    """A process with a CUDA context."""

    @property
    def pid(self) -> int: ...

    def close(self) -> None:
        """End it, and wait until it is gone."""
        ...


StartContext = Callable[[str], ContextProcess]


class Opening:
    """Brings units from "never read" to FREE, HELD by a trial that outlived the last daemon, or out."""

    def __init__(
        self,
        units: Sequence[Unit],
        processes: Processes,
        world: World,
        say: Callable[[str], None],
        start_context: StartContext | None,
    ) -> None:
        self._units = units
        self._processes = processes
        self._world = world
        self._say = say
        self._start_context: StartContext = start_context or ContextChild

    def run(self) -> None:
        """Read, test, judge, learn."""
        first_readings(self._units, self._world, FIRST_READING_TIMEOUT_S)
        for unit in self._units:
            unit.verdict()  # notices what the driver gives
            if unit.usage is not None and not unit.usage.compute:
                unit.learn_if_idle()  # before a context of the test's own is on it
        self._test_pids()
        self._wait_for_the_leaving()
        for unit in self._units:
            self._judge(unit)

    def hear_witness(self, call: CallWitness) -> None:
        """Have CUDA tried on all GPUs that are free, and wait until its contexts are gone."""
        free = [unit for unit in self._units if unit.out is None and unit.doing is Doing.FREE]
        free = [unit for unit in free if not unit.gpu.parent] or free[:1]
        if not free:
            return
        witness = call(list(dict.fromkeys(unit.gpu.uuid for unit in free)))
        if witness is None:
            return
        while (said := witness.said()) is None:
            self._world.wait([], POLL_S)
        for unit in free:
            unit.condemn(said.get(unit.gpu.uuid, ""))
            self._wait_until_clean(unit)

    def _wait_for_the_leaving(self) -> None:
        """A search that is begun right after another one ended finds the last one's contexts: they go by themselves."""
        deadline = self._world.now() + LEAVING_TIMEOUT_S
        for unit in self._units:
            leaving = bool(unit.verdict().holders)
            while leaving and self._world.now() < deadline:
                verdict = unit.verdict()
                others = any(holder.whose != "gone" for holder in verdict.holders)
                if verdict.clean or others or self._fresh(unit) is None:
                    break
                self._world.wait([], POLL_S)

    def _judge(self, unit: Unit) -> None:
        unit.verdict()
        if unit.usage is not None and not unit.usage.error:
            shortfall = unit.means.shortfall(unit.gpu)
            if shortfall:
                self._say(shortfall)
            told_apart = unit.means.processes and unit.means.memory and self._processes.visible
            if unit.neighbours and not told_apart:
                shortfall = (
                    f"{unit.gpu.label} cannot be shared: the processes on it, or their memory, cannot be told apart "
                    f"here; set atoms_per_gpu: 1"
                )
            is_refused = not unit.means.enough or (unit.neighbours and not told_apart)
            if is_refused and unit.out is None:
                unit.out = Out(shortfall, self._world.now(), passing=False)
        unit.learn_if_idle()
        unit.examine()

    def _fresh(self, unit: Unit) -> GpuUsage | None:
        until = self._world.now() + READING_TIMEOUT_S
        return _reading(unit, self._world, unit.watch.request(), until)

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
            self._say(MEANING[finding].format(why=why))
        for unit in self._units:  # anew: until now everybody was called unseen
            self._fresh(unit)

    def _open_a_context(self) -> tuple[str, str]:
        free = next((u for u in self._units if u.out is None and u.verdict().clean), None)
        if free is None:
            return "unknown", "no GPU is free to test it on"
        finding, why = self_test(
            lambda: self._start_context(free.gpu.uuid), lambda: self._fresh(free)
        )
        self._wait_until_clean(free)
        return finding, why

    def _wait_until_clean(self, unit: Unit) -> None:
        """Wait until the contexts of our own tests are gone."""
        deadline = self._world.now() + CONTEXT_GONE_TIMEOUT_S
        while self._fresh(unit) is not None and not unit.verdict().clean:
            if self._world.now() >= deadline:
                break
            self._world.wait([], POLL_S)


def first_readings(units: Sequence[Unit], world: World, timeout_s: float) -> None:
    """Have the units read from now on, and wait until each has usage and vitals, is lost, or takes too long."""
    watches = list({id(unit.watch): unit.watch for unit in units}.values())
    for watch in watches:
        watch.begin(tuple(dict.fromkeys(unit.gpu for unit in units if unit.watch is watch)))
        watch.turn()
    until = world.now() + timeout_s
    for unit in units:
        _reading(unit, world, 0, until, vitals=True)


def _reading(
    unit: Unit, world: World, ticket: int, until: float, *, vitals: bool = False
) -> GpuUsage | None:
    """Wait for a reading that carries the ticket; None if the GPU is lost or takes too long."""
    watch = unit.watch
    while world.now() < until and watch.lost is None:
        watch.turn()
        usage = unit.usage
        if usage is not None and usage.ticket >= ticket and (watch.vitals or not vitals):
            return usage
        world.wait(watch.helpers, min(POLL_S, max(0.0, until - world.now())))
    return None


# ---------------------------------------------------------------- whose pids NVML names

READY_TIMEOUT_S = 20.0

_CHILD = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
device, context = ctypes.c_int(), ctypes.c_void_p()
failed = (
    cuda.cuInit(0)
    or cuda.cuDeviceGet(ctypes.byref(device), 0)
    or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
)
print("failed" if failed else "ready", flush=True)
sys.stdin.read()
"""


class ContextChild:
    """A process that opens a CUDA context through the driver's own library, without torch, and waits.

    Raises OSError if it cannot be started or gets no context in time.
    """

    def __init__(self, uuid: str) -> None:
        environ = {**os.environ, "CUDA_VISIBLE_DEVICES": uuid, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", _CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environ,
        )
        try:
            if self._first_word() != b"ready":
                raise OSError("no CUDA context could be opened")
        except OSError:
            self.close()
            raise

    def _first_word(self) -> bytes:
        stream = self._process.stdout
        assert stream is not None
        if not select.select([stream], [], [], READY_TIMEOUT_S)[0]:
            raise OSError(f"no CUDA context within {READY_TIMEOUT_S:.0f} s")
        return stream.readline().strip()

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=10)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


def self_test(
    start: Callable[[], ContextProcess], look: Callable[[], GpuUsage | None]
) -> tuple[Finding, str]:
    """Open a context, look for it, close it. ``look`` gives a reading begun after it was called, or None.

    Also returns what went wrong if the test itself failed.
    """
    before = look()
    if before is None or before.processes is None:
        return "absent", ""
    try:
        child = start()
    except OSError as error:
        return "unknown", str(error)
    try:
        during = look()
    finally:
        child.close()
    if during is None or during.processes is None:
        return "unknown", "NVML did not answer"
    pids = {process.pid for process in during.compute}
    if child.pid in pids:
        return "visible", ""
    return ("hidden" if pids - {process.pid for process in before.compute} else "absent"), ""


MEANING = {
    "hidden": (
        "NVML names processes by pids of outside this container: whose they are cannot be told. A release is confirmed "
        "by the empty process tree, memory, and a list that is empty again. --pid=host lifts this"
    ),
    "absent": (
        "NVML names no processes of this container: a release is confirmed by the empty process tree and memory alone, "
        "and a stranger on a GPU is noticed by memory alone. --pid=host lifts this"
    ),
    "unknown": (
        "it could not be tested whether NVML names this container's processes ({why}); they are treated as if it does "
        "not. --pid=host lifts this"
    ),
}
