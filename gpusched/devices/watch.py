"""The newest readings of a board, asked for through its helper: nothing here waits.

Whoever wants to know calls ``turn``: it takes the answer that has come, and asks the next question when that is due. So
readings are as fresh as they are looked at, and a helper that hangs delays nobody: the readings stay what they were and
grow old, and a caller that needs a newer one keeps seeing the old one.

Every reading carries the time at which it was *begun*: a release is judged only by readings begun after its request.

Pace: every second, at once after a request, and at each turn while a GPU drains, then of that GPU alone.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import replace

from gpusched.devices import health
from gpusched.devices.gpu import Gpu, GpuUsage, Vitals
from gpusched.devices.helper import Failed, GpuHelper, GpuSeen, Look, World
from gpusched.devices.holders import Holder, Processes
from gpusched.devices.nvml import NvmlLost
from gpusched.devices.release import WAITING

IDLE_PACE_S = 0.9
"""Somewhat less than the second after which everybody looks."""
VITALS_PACE_S = 1.9
VITALS_AGE_MAX_S = 5.0
"""Vitals are read every two seconds; older ones say nothing about a GPU that is to be given out."""
LOADS = 30
READING_MAX_S = 3.0
"""A reading that took longer is thrown away: its beginning and its end do not belong together."""
HANG_MAX_S = 30.0
"""A helper that has not answered for so long is killed, and another one asks."""
START_PACE_S = 1.0
NONE_DRAINS: Mapping[str, int | None] = {}


class Watch:
    """The readings of one board: the GPU itself, or its MIG slices."""

    def __init__(self, gpu: Gpu, helper: GpuHelper, processes: Processes, world: World) -> None:
        self.gpu = gpu
        #: The GPU or its slices, as far as anybody uses them; set before the first ``turn``.
        self.subjects: tuple[Gpu, ...] = ()
        self.usage: dict[str, GpuUsage] = {}
        self.vitals: Vitals | None = None
        self.first_vitals: Vitals | None = None
        #: Utilisation of the last minute, the oldest first; None where it could not be read.
        self.loads: deque[float | None] = deque(maxlen=LOADS)
        #: Why the GPU is out of reach, and not asked before ``rebind``: lost, or let go.
        self.lost: str | None = None
        self.errors_in_a_row = 0
        self.ill_read_in_a_row = 0
        #: Why no error events come.
        self.deaf = ""
        self._names: dict[int, Holder] = {}
        self.now = world.now
        self._processes = processes
        self._world = world
        self._helper: GpuHelper | None = helper
        self._killed: GpuHelper | None = None
        self._started_at = world.now()
        self._asked: Look | None = None
        self._full_due = self._vitals_due = world.now()
        self._requested_at = self._looked_at = -math.inf
        self._xids: list[int] = []
        self._heard: set[int] = set()
        self._is_closed = False

    # ---------------------------------------------------------------- requests

    def request(self, *, vitals: bool = False) -> float:
        """Have usage (and vitals) read at the next turn. Return a time that readings begun from now on alone reach."""
        self._full_due = now = self.now()
        if vitals:
            self._vitals_due = now
        self._requested_at = max(now, math.nextafter(self._looked_at, math.inf))
        return self._requested_at

    def rebind(self) -> None:
        """Ask anew through another helper: the GPU may have been reset."""
        self._end_helper()
        self.lost = self.first_vitals = None
        self.forget()
        self.request(vitals=True)

    def forget(self) -> None:
        """Drop the error events that came before: what comes again is told again."""
        self._heard.clear()
        self._xids.clear()

    def let_go(self, why: str) -> None:
        """Close the GPU, so that it can be reset: nothing is asked before ``rebind``."""
        self.lost = why
        self._end_helper()

    def close(self) -> None:
        self._is_closed = True
        self._end_helper()

    # ---------------------------------------------------------------- answers

    def who(self, pid: int) -> Holder:
        """Return the name of a process, as the helper found it out."""
        return self._names.get(pid) or Holder(pid, "gone")

    def illness(self, *, at_once: bool = False) -> str:
        """Say what only a person can cure. ``at_once``: only what even a running trial cannot live with."""
        if self.lost is not None:
            return self.lost
        if self.vitals is None:
            return ""
        ill = health.trouble(self.gpu.index, self.vitals, self.first_vitals)
        return ill.reason if ill and (ill.at_once or not at_once) else ""

    def unwell(self) -> str:
        """Say why a GPU that is free of processes may not be given out: ill, or of unknown health just now."""
        if ill := self.illness():
            return ill
        if self.vitals is None or self.now() - self.vitals.at > VITALS_AGE_MAX_S:
            return WAITING
        error = self.vitals.error
        return f"the GPU's health cannot be read: {error}" if error else ""

    def take_xids(self) -> list[int]:
        """Return the error numbers that have come since the last call: each once, until ``rebind``."""
        news, self._xids = self._xids, []
        return news

    @property
    def is_contained(self) -> bool:
        """NVML may hide the processes of others here."""
        return self._processes.contained

    @property
    def helpers(self) -> list[GpuHelper]:
        """The helper, to wait for its answer."""
        return [self._helper] if self._helper is not None else []

    def turn(self, ceilings: Mapping[str, int | None] = NONE_DRAINS) -> bool:
        """Take the answer that has come, or else ask again if that is due; return whether this turn asked.

        ``ceilings``: of each draining subject the memory in use above which nothing else need be asked; None: unknown.
        """
        now = self.now()
        if self._take():
            return False
        if self._asked is not None and now - self._asked.at > HANG_MAX_S:
            self._end_helper()
        if self._is_closed or self.lost is not None or self._asked is not None:
            return False
        is_full = now >= self._full_due
        wanted = bool(self.subjects) and bool(is_full or ceilings)
        helper = self._running_helper(now) if wanted else None
        if helper is None:
            return False
        self._asked = self._question(now, is_full, ceilings)
        helper.ask(self._asked)
        return True

    def _question(self, now: float, is_full: bool, ceilings: Mapping[str, int | None]) -> Look:
        vitals = now >= self._vitals_due
        self._looked_at = max(now, self._requested_at)
        draining = tuple(one for one in self.subjects if one.uuid in ceilings)
        known = {uuid: one for uuid, one in ceilings.items() if one is not None}
        if is_full:
            self._full_due = now + IDLE_PACE_S
        if vitals:
            self._vitals_due = now + VITALS_PACE_S
        return Look(
            self.gpu,
            self.subjects if is_full else draining,
            self._looked_at,
            {} if is_full else known,
            vitals=vitals,
            pids_visible=self._processes.visible,
        )

    def _running_helper(self, now: float) -> GpuHelper | None:
        """Return the helper, started anew once the last one is gone."""
        is_gone = self._killed is None or self._killed.is_gone()
        if self._helper is None and is_gone and now - self._started_at >= START_PACE_S:
            self._helper, self._killed = self._world.start(self._processes), None
            self._started_at = now
        return self._helper

    def _end_helper(self) -> None:
        if self._helper is not None:
            self._helper.kill()
            self._killed = self._helper
        self._helper = self._asked = None

    def _take(self) -> bool:
        """Take the answer; return whether there was one."""
        try:
            answer = self._helper.take() if self._helper is not None else None
        except EOFError:
            self._end_helper()
            return False
        if answer is None or self._asked is None:
            return False
        look, self._asked = self._asked, None
        match answer.value:
            case Failed():
                error = answer.value.error()
                if isinstance(error, NvmlLost):
                    self.let_go(f"the GPU is lost: {error}")  # so that it can be reset
                    return True
                failed = [GpuUsage(one.uuid, look.at, error=str(error)) for one in look.subjects]
                self._keep(GpuSeen(tuple(failed), None, (), (), self.deaf))
            case GpuSeen() if answer.took_s <= READING_MAX_S:
                self._keep(answer.value)
            case GpuSeen():
                self._hear(answer.value)
            case _:
                raise AssertionError(f"no answer to a look: {answer.value}")
        return True

    def _keep(self, seen: GpuSeen) -> None:
        self._hear(seen)
        self._names.update({holder.pid: holder for holder in seen.holders})
        for usage in seen.usage:
            before = self.usage.get(usage.uuid)
            if usage.is_partial and before is not None:  # for whoever asks what is waited for
                usage = replace(usage, processes=before.processes)
            self.usage[usage.uuid] = usage
        listed = {p.pid for usage in self.usage.values() for p in usage.processes or ()}
        for pid in self._names.keys() - listed:
            del self._names[pid]
        failed = any(usage.error for usage in seen.usage)
        self.errors_in_a_row = self.errors_in_a_row + 1 if failed else 0
        if (vitals := seen.vitals) is not None:
            self.vitals = vitals
            self.loads.append(vitals.utilisation)
            self.first_vitals = self.first_vitals or vitals
            self.ill_read_in_a_row = self.ill_read_in_a_row + 1 if vitals.error else 0

    def _hear(self, seen: GpuSeen) -> None:
        """Take the error events; those of a storm once."""
        self.deaf = seen.deaf
        self._xids += [number for number in seen.xids if number not in self._heard]
        self._heard.update(seen.xids)
