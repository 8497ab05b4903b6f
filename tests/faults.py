"""A simulated machine on which things go wrong: trials that crash, are lost or hang, devices that do not come back.

It outlives the driver: after a simulated crash of the daemon another driver continues with it (``reconcile``).
Random numbers are keyed by what they are about (seed, trial, incarnation), never by the order in which things happen:
every policy meets the same crashes on the same configuration.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

from msgspec.structs import replace

from gpusched.core.commands import Command, ConfirmRelease, Kill, Launch
from gpusched.core.events import (
    DevicesReleased,
    Event,
    Outcome,
    QuarantineChanged,
    Reported,
    TrialExited,
)
from gpusched.executors.base import LiveTrial
from gpusched.sim.executor import SimExecutor
from gpusched.sim.physics import Run, parse_scaling
from gpusched.sim.setup import Setup

#: A device that cannot be readmitted yet is looked at again after this time.
LOOK_AGAIN_S = 1.0
NEVER_STEP = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Chances of something going wrong.

    ``crash``: in each step, through the configuration's own fault. ``lost``, ``hang``: in each step, through the
    machine's. ``quarantine``: for each device at each release. ``readmit_s``: after which it is clean again
    (None: never).
    """

    crash: float = 0.0
    lost: float = 0.0
    hang: float = 0.0
    quarantine: float = 0.0
    readmit_s: float | None = None

    def crash_step(self, seed: int, trial: int) -> int:
        """The step in which this configuration crashes, whenever it gets there."""
        return _first(self.crash, f"{seed}/crash/{trial}")

    def fault_steps(self, seed: int, trial: int, incarnation: int) -> tuple[int, int]:
        """In which step of its own the incarnation is lost, and in which it hangs."""
        key = f"{seed}/{trial}/{incarnation}"
        return _first(self.lost, f"lost/{key}"), _first(self.hang, f"hang/{key}")

    def is_stuck(self, seed: int, device: str, release: int) -> bool:
        """Tell whether a device does not come back from its n-th release."""
        if not self.quarantine:
            return False
        return Random(f"{seed}/stuck/{device}/{release}").random() < self.quarantine


def _first(chance: float, key: str) -> int:
    """Draw the first time that something happens which has this chance each time."""
    if chance <= 0:
        return NEVER_STEP
    return 1 + int(math.log1p(-Random(key).random()) / math.log1p(-chance))


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """Something that goes wrong at a given time: for tests."""

    at: float
    kind: Literal["crash", "lost", "hang", "quarantine", "readmit"]
    trial: int = 0
    device: str = ""
    reason: str = "simulated"


class FaultyExecutor(SimExecutor):
    """A machine with ``faults``, to which ``incidents`` happen."""

    def __init__(
        self,
        *arguments: Any,
        faults: Faults | None = None,
        incidents: Sequence[Incident] = (),
        **more: Any,
    ) -> None:
        super().__init__(*arguments, **more)
        self._faults = faults or Faults()
        #: Of each launch: what goes wrong with it, and in which step.
        self._trouble: dict[Run, tuple[str, int]] = {}
        self._hung: set[Run] = set()
        self._broken: set[str] = set()
        self._releases: Counter[str] = Counter()
        #: When the release of a device is told.
        self._confirming: dict[str, float] = {}
        #: Of each trial: its reports, and the end of its latest launch that has ended.
        self._told: defaultdict[int, list[Reported]] = defaultdict(list)
        self._ends: dict[int, TrialExited] = {}
        for incident in incidents:
            self._push(incident.at, "incident", incident)

    def execute(self, command: Command) -> None:
        if isinstance(command, Kill):
            run = self._run(command.trial, command.incarnation)
            if run in self._hung:
                self._cut(run, "killed", None, after_s=command.grace_s)
                return
        if isinstance(command, ConfirmRelease):  # asked for twice, by a resumed daemon, told once
            at = max(self._now, self._pool.clean_at(command.devices))
            new = [name for name in command.devices if self._confirming.get(name, -1.0) < at]
            self._confirming.update(dict.fromkeys(new, at))
            self._push(at, "release", tuple(new))
            return
        super().execute(command)

    def reconcile(self, live: Sequence[LiveTrial]) -> Sequence[Event]:
        return list(self._missed(live))

    def _missed(self, live: Sequence[LiveTrial]) -> Iterator[Event]:
        """Tell what a daemon was not told, or forgot in a crash before its journal was synced."""
        for one in live:
            number, story = one.trial, self.stories.get(one.trial)
            run = story.run if story is not None else None
            if run is None or run.incarnation < one.incarnation:
                about: Any = {"outcome": "lost", "error": "it was never started", "unbegun": True}
                yield TrialExited(at=self._now, trial=number, incarnation=one.incarnation, **about)
                continue
            later = self._told[number][one.last_seq :]
            yield from (replace(report, at=self._now) for report in later)
            if run.waiting and not later:
                self._answer(run)  # the worker has taken silence for "go on"
            end = self._ends.get(number)
            if end is not None and end.incarnation == run.incarnation:
                yield replace(end, at=self._now)

    def _launch(self, command: Launch) -> None:
        broken = self._broken.intersection(command.devices)
        assert not broken, f"{command}: {min(broken)} is broken"
        super()._launch(command)
        run = self._run(command.trial, command.incarnation)
        if run is None or run in self._trouble:
            return
        lost, hang = self._faults.fault_steps(self._seed, command.trial, command.incarnation)
        crash = self._faults.crash_step(self._seed, command.trial)
        found = (("crash", crash), ("lost", run.step + lost), ("hang", run.step + hang))
        self._trouble[run] = min(found, key=lambda one: one[1])

    def _step_ended(self, run: Run) -> Reported | None:
        if run in self._hung:
            return None
        how, step = self._trouble.get(run, ("", NEVER_STEP))
        if run.leaving or run.step + 1 < step:
            if (report := super()._step_ended(run)) is not None:
                self._told[report.trial].append(report)
            return report
        run.step += 1
        self._go_wrong(run, how, f"simulated {how} in step {run.step}")
        return None

    def _go_wrong(self, run: Run, how: str, why: str) -> None:
        if how == "hang":
            self._hung.add(run)
            run.waiting = False
            return
        outcome: Outcome = "failed" if how == "crash" else "lost"
        self._cut(run, outcome, why)

    def _exited(self, run: Run, *how: Any) -> TrialExited:
        end = self._ends[run.story.trial] = super()._exited(run, *how)
        return end

    def _happen(self, kind: Any, what: Any) -> Iterator[Event]:
        if kind == "readmit":
            yield from self._readmit(what)
        elif kind == "incident":
            yield from self._strike(what)
        else:
            yield from super()._happen(kind, what)

    def _released(self, names: tuple[str, ...]) -> Iterator[Event]:
        for name in names:
            if self._confirming.get(name, math.inf) <= self._now:
                del self._confirming[name]
        for event in super()._released(names):
            assert isinstance(event, DevicesReleased)
            stuck = [name for name in event.devices if self._is_stuck(name)]
            free = tuple(name for name in event.devices if name not in stuck)
            if free:
                yield DevicesReleased(at=event.at, devices=free)
            for name in stuck:
                self._broken.add(name)
                yield QuarantineChanged(at=self._now, device=name, reason="simulated: not released")
                if self._faults.readmit_s is not None:
                    self._push(self._now + self._faults.readmit_s, "readmit", name)

    def _is_stuck(self, name: str) -> bool:
        self._releases[name] += 1
        return self._faults.is_stuck(self._seed, name, self._releases[name])

    def _readmit(self, name: str) -> Iterator[Event]:
        if not self._pool.is_clean(name, self._now):
            self._push(self._now + LOOK_AGAIN_S, "readmit", name)
        elif name in self._broken:
            self._broken.remove(name)
            yield QuarantineChanged(at=self._now, device=name)

    def _strike(self, incident: Incident) -> Iterator[Event]:
        if incident.kind == "quarantine":
            assert any(device.id == incident.device for device in self.inventory()), incident
            if incident.device not in self._broken:
                self._broken.add(incident.device)
                yield QuarantineChanged(
                    at=self._now, device=incident.device, reason=incident.reason
                )
        elif incident.kind == "readmit":
            yield from self._readmit(incident.device)
        else:
            story = self.stories.get(incident.trial)
            run = story.run if story is not None else None
            if run is not None and not run.leaving:
                self._go_wrong(run, incident.kind, incident.reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultySetup(Setup):
    """A run on such a machine. Failed trials do not end it."""

    faults: Faults = field(default_factory=Faults)
    incidents: tuple[Incident, ...] = ()
    max_failures: int = 1_000_000

    def machine(self) -> FaultyExecutor:
        return FaultyExecutor(
            self.load(),
            self.atoms,
            scaling=parse_scaling(self.scaling)[1],
            delays=self.delays,
            faults=self.faults,
            incidents=self.incidents,
            seed=self.seed,
        )
