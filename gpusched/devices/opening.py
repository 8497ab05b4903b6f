"""The first look at the GPUs of an experiment: first readings, CUDA tried out, whose pids NVML names, idle baselines.

The only part that waits for the driver after the GPUs were found, and with limits: 30 s for first readings, 90 s for
the witness. A GPU that does not answer in time is busy until it does.

*Whose pids.* The driver knows no pid namespaces: in a container NVML may name pids of the host, or of the container, or
none. Outside one there is nothing to find out. Inside, the witness, which has a context on each GPU that is ours and
empty, is looked for in NVML's list. Where it does not show up under its own pid, processes cannot be told apart, and a
release is confirmed by the empty process tree, memory, and the list being as it was before: said once, cured by
``--pid=host``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from gpusched.devices.gpu import GpuUsage
from gpusched.devices.helper import World
from gpusched.devices.holders import Processes
from gpusched.devices.unit import Unit
from gpusched.devices.watch import Watch
from gpusched.devices.witness import CallWitness, Testimony

FIRST_READING_TIMEOUT_S = 30.0
READING_TIMEOUT_S = 10.0
CONTEXT_GONE_TIMEOUT_S = 20.0
LEAVING_TIMEOUT_S = 10.0
"""Time to wait for processes that have ended and whose contexts the driver is still taking down."""
POLL_S = 0.05

Finding = Literal["visible", "hidden", "absent", "unknown"]

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


class Opening:
    """Brings units from "never read" to FREE, HELD by a trial that outlived the last daemon, or out."""

    def __init__(
        self,
        units: Sequence[Unit],
        processes: Processes,
        world: World,
        say: Callable[[str], None],
        call_witness: CallWitness | None,
    ) -> None:
        self._units = units
        self._processes = processes
        self._world = world
        self._say = say
        self._call_witness = call_witness

    def run(self) -> None:
        """Read, try out, judge, learn."""
        first_readings(self._units, self._world, FIRST_READING_TIMEOUT_S)
        for unit in self._units:
            unit.verdict()  # notices what the driver gives
            unit.learn()  # before a context of the witness is on it
        self._wait_for_the_leaving()
        self._hear_witness()
        for unit in self._units:
            self._judge(unit)

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
                self._pass_time()

    def _hear_witness(self) -> None:
        """Have CUDA tried on all GPUs that are free, and wait until its contexts are gone."""
        free = [unit for unit in self._units if unit.out is None and unit.fit_for_use().clean]
        free = [unit for unit in free if not unit.gpu.parent] or free[:1]
        before = {unit.gpu.uuid: _pids(unit.usage) for unit in free}
        witness, said = None, dict[str, str]()
        if self._call_witness is not None and free:
            witness = self._call_witness(list(before))
            while (told := witness.said()) is None:
                self._pass_time()
            said.update(told)
        if not self._processes.visible:
            working = [unit for unit in free if not said.get(unit.gpu.uuid)]
            finding, why = self._find_out_pids(witness, working, before)
            why = why or next(filter(None, said.values()), "no GPU is free to test it on")
            self._processes.visible = finding == "visible"
            if finding != "visible":
                self._say(MEANING[finding].format(why=why))
        if witness is not None:
            witness.close()
        for unit in free:
            unit.condemn(said.get(unit.gpu.uuid, ""))
        for unit in self._units if self._processes.contained else free:
            self._fresh(unit)  # until now everybody was called unseen
        if witness is not None:
            for unit in free:
                self._wait_until_clean(unit)
        if self._processes.contained:
            self._wait_for_the_leaving()

    def _find_out_pids(
        self,
        witness: Testimony | None,
        working: Sequence[Unit],
        before: Mapping[str, set[int]],
    ) -> tuple[Finding, str]:
        """Inside a container: do NVML's pids mean anything here? Also returns why that is unknown, if that is said."""
        if any(self._processes.looks_ours(pid) for u in self._units for pid in _pids(u.usage)):
            return "visible", ""  # a rank of an adopted trial
        if not working:
            return "unknown", ""
        if witness is None:
            return "unknown", "no script was named to try CUDA for"
        unit = working[0]
        if (usage := self._fresh(unit)) is None:
            return "unknown", "NVML did not answer"
        pids = _pids(usage)
        if witness.pid in pids:
            return "visible", ""
        return ("hidden" if pids - before[unit.gpu.uuid] else "absent"), ""

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
                unit.take_out(shortfall, passing=False)
        unit.learn()
        unit.examine()
        if unit.usage is None and unit.out is None:
            unit.take_out(unit.verdict().why, passing=True)

    def _fresh(self, unit: Unit) -> GpuUsage | None:
        since = unit.watch.request()
        until = self._world.now() + READING_TIMEOUT_S
        return _reading(unit, _watches(self._units), self._world, since, until)

    def _wait_until_clean(self, unit: Unit) -> None:
        """Wait until the contexts of the witness are gone."""
        deadline = self._world.now() + CONTEXT_GONE_TIMEOUT_S
        while self._fresh(unit) is not None and not unit.verdict().clean:
            if self._world.now() >= deadline:
                break
            self._pass_time()

    def _pass_time(self) -> None:
        """Wait a moment. The readings of all GPUs stay fresh, or those of the others would look like silence."""
        for watch in _watches(self._units):
            watch.turn()
        self._world.wait([], POLL_S)


def _watches(units: Sequence[Unit]) -> list[Watch]:
    return list(dict.fromkeys(unit.watch for unit in units))


def first_readings(units: Sequence[Unit], world: World, timeout_s: float) -> None:
    """Have the units read from now on, and wait until each has usage and vitals, is lost, or takes too long."""
    watches = _watches(units)
    for watch in watches:
        watch.subjects = tuple(dict.fromkeys(unit.gpu for unit in units if unit.watch is watch))
        watch.turn()
    until = world.now() + timeout_s
    for unit in units:
        _reading(unit, watches, world, 0.0, until, vitals=True)


def _reading(
    unit: Unit,
    watches: Sequence[Watch],
    world: World,
    since: float,
    until: float,
    *,
    vitals: bool = False,
) -> GpuUsage | None:
    """Wait for a reading begun at ``since`` or later; None if the GPU is lost or takes too long.

    ``watches``: of all GPUs, whose readings stay fresh meanwhile.
    """
    watch = unit.watch
    while world.now() < until and watch.lost is None:
        for one in watches:
            one.turn()
        if unit.has_read_since(since) and (watch.vitals or not vitals):
            return unit.usage
        world.wait(watch.helpers, min(POLL_S, max(0.0, until - world.now())))
    return None


def _pids(usage: GpuUsage | None) -> set[int]:
    return {process.pid for process in usage.compute} if usage is not None else set()
