"""Scripting an experiment in a few lines: feed events, compare the whole list of commands; leftovers fail.

    script = Script(devices=2)
    script.wants(Start(1)).start()
    script.expect(SetTimer("deadline", 100.0), Launch(0, 1, ("d0",), {"n": 0}))
    script.report(0, 0.5)
    script.expect()                       # nothing: the trial goes on

``snapshot`` turns an experiment, policy included, into plain data, so that two of them can be compared whole.
"""

from __future__ import annotations

import contextlib
import enum
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import psutil
from sortedcontainers import SortedList

from gpusched.core import events as ev
from gpusched.core.commands import Command, Launch
from gpusched.core.decisions import Decision, TrialView, View
from gpusched.core.experiment import Experiment
from gpusched.core.rules import Rules
from gpusched.core.rung import Rung
from gpusched.core.state import State
from gpusched.core.trial import TrialRecord, TrialState
from gpusched.journal.rows import Entry, commands_from, commands_text, event_body, event_from
from gpusched.policies import base
from gpusched.policies.asha import Asha
from tests.events import exited, reported


def draw(n: int) -> Mapping[str, object]:
    """The n-th configuration of tests that do not care which."""
    return {"n": n}


class ScriptedPolicy(base.Policy):
    """Decides what it was told to, once each, and notes what it is told."""

    def __init__(self) -> None:
        self.on_next_report: list[Decision] = []
        self.on_next_exit: list[Decision] = []
        self.on_next_wake: list[Decision] = []
        self.capacity: deque[Decision] = deque()
        #: (trial, state) of every on_exit, and trials of every on_report.
        self.exits: list[tuple[int, TrialState]] = []
        self.reports: list[int] = []

    def on_report(self, view: View, trial: TrialView) -> Sequence[Decision]:
        self.reports.append(trial.id)
        return _taken(self.on_next_report)

    def on_capacity(self, view: View) -> Sequence[Decision]:
        return [self.capacity.popleft()] if self.capacity else []

    def on_exit(self, view: View, trial: TrialView) -> Sequence[Decision]:
        self.exits.append((trial.id, trial.state))
        return _taken(self.on_next_exit)

    def on_wake(self, view: View) -> Sequence[Decision]:
        return _taken(self.on_next_wake)


class SetTimer(NamedTuple):
    """Timer that the event set, as ``expect`` sees it."""

    timer: str
    at: float


class Finish(NamedTuple):
    """End of the search by the event, as ``expect`` sees it."""

    reason: str


def _taken(decisions: list[Decision]) -> list[Decision]:
    taken = list(decisions)
    decisions.clear()
    return taken


class Script:
    """An experiment under script. Invariants are checked and every event and command is sent through the codec."""

    def __init__(
        self,
        *,
        devices: int | Sequence[str] = 1,
        islands: Mapping[str, int] | None = None,
        policy: base.Policy | None = None,
        draw: Callable[[int], Mapping[str, object] | None] | None = draw,
        **rules: Any,
    ) -> None:
        rules = {
            "deadline_s": 1000.0,
            "scaling": "linear",
            "watch": False,
            "best_every_s": 0.0,
            **rules,
        }
        self.rules = Rules(**rules)
        self.policy: Any = policy or ScriptedPolicy()
        self.experiment = Experiment(self.rules, self.policy, draw)
        count = range(devices) if isinstance(devices, int) else ()
        self.devices = tuple(f"d{n}" for n in count) if isinstance(devices, int) else tuple(devices)
        self.islands = islands or {}
        self.now = 0.0
        self.events: list[ev.Event] = []
        self._commands: list[Command] = []
        #: Timers that were set, and the end.
        self._changes: set[SetTimer | Finish] = set()

    # ------------------------------------------------------------ comparing

    def expect(self, *expected: Command | SetTimer | Finish) -> Self:
        """Expect that the last event led to these commands, all and in this order; timers and the end in any place."""
        returned, self._commands = self._commands, []
        changes, self._changes = self._changes, set()
        commands = [one for one in expected if not isinstance(one, SetTimer | Finish)]
        assert returned == commands, _difference(returned, commands)
        others = {one for one in expected if isinstance(one, SetTimer | Finish)}
        assert changes == others, f"{changes} instead of {others}"
        return self

    def expect_nothing(self) -> Self:
        return self.expect()

    def take(self) -> list[Command]:
        """The commands returned since, for a look of one's own."""
        returned, self._commands = self._commands, []
        return returned

    def drop(self) -> Self:
        """Set-up: whatever it returned is not what the test is about."""
        self._commands, self._changes = [], set()
        return self

    # ------------------------------------------------------------ the policy's next decisions

    def wants(self, *decisions: Decision) -> Self:
        """Have the policy answer so when atoms are free, with one decision each time."""
        self.policy.capacity.extend(decisions)
        return self

    def decides(self, *decisions: Decision) -> Self:
        """Have the policy answer so to the next report."""
        self.policy.on_next_report.extend(decisions)
        return self

    # ------------------------------------------------------------ events

    def feed(self, event: ev.Event) -> Self:
        """An event. What the one before returned must have been expected, or dropped."""
        assert self._commands == [], _difference(self._commands, ())
        again = event_from(type(event).__name__, event.at, event_body(event))
        assert again == event
        self.events.append(event)
        before, was_over = dict(self.state.timers), self.state.finished
        self._commands = self.experiment.handle(event)
        self._changes = {SetTimer(*timer) for timer in self.state.timers.items() - before.items()}
        if self.state.finished and (not was_over or ev.is_reopened(event)):
            self._changes.add(Finish(self.state.stopping or ""))
        assert commands_from(commands_text(self._commands)) == self._commands
        self.experiment.check()
        return self

    def wait(self, seconds: float) -> Self:
        self.now += seconds
        return self

    def start(self) -> Self:
        return self.feed(ev.DevicesJoined(at=self.now, devices=self.devices, islands=self.islands))

    def up(self, trial: int, *, incarnation: int | None = None) -> Self:
        number = self._incarnation(trial, incarnation)
        return self.feed(ev.TrialUp(at=self.now, trial=trial, incarnation=number))

    def report(
        self,
        trial: int,
        metric: float | None = 0.5,
        *,
        step: int | None = None,
        seq: int | None = None,
        step_time_s: float = 1.0,
        incarnation: int | None = None,
    ) -> Self:
        known = self.experiment.state.trials.get(trial)
        event = reported(
            at=self.now,
            trial=trial,
            incarnation=self._incarnation(trial, incarnation),
            seq=seq if seq is not None else (known.seq if known else 0) + 1,
            step=step if step is not None else (known.step if known else 0) + 1,
            metric=metric,
            step_time_s=step_time_s,
        )
        return self.feed(event)

    def saved(
        self, trial: int, step: int, *, save_s: float = 0.1, incarnation: int | None = None
    ) -> Self:
        number = self._incarnation(trial, incarnation)
        return self.feed(
            ev.CheckpointSaved(
                at=self.now, trial=trial, incarnation=number, step=step, save_s=save_s
            )
        )

    def exited(
        self,
        trial: int,
        outcome: ev.Outcome = "yielded",
        *,
        saved: int | None = None,
        incarnation: int | None = None,
        **about: Any,
    ) -> Self:
        number = self._incarnation(trial, incarnation)
        return self.feed(
            exited(outcome, at=self.now, trial=trial, incarnation=number, saved_step=saved, **about)
        )

    def released(self, *devices: str) -> Self:
        return self.feed(ev.DevicesReleased(at=self.now, devices=devices))

    def quarantined(self, device: str, reason: str = "Xid 79") -> Self:
        return self.feed(ev.QuarantineChanged(at=self.now, device=device, reason=reason))

    def readmitted(self, device: str) -> Self:
        return self.feed(ev.QuarantineChanged(at=self.now, device=device))

    def timer(self, name: str) -> Self:
        self.now = max(self.now, self.state.timers.get(name, 0.0))
        return self.feed(ev.TimerFired(at=self.now, timer=name))

    def asked(self, verb: ev.Verb, trial: int | None = None) -> Self:
        return self.feed(ev.UserAsked(at=self.now, verb=verb, trial=trial))

    def reopened(self, deadline_s: float = 2000.0, checkpoints: Any = None, **limits: Any) -> Self:
        """The search goes on; ``checkpoints``: by trial, those on disk (None: all that the journal knows)."""
        known = {t.id: t.saved_step for t in self.state.trials.values() if t.saved_step}
        there = {str(trial): step for trial, step in (checkpoints or known).items()}
        return self.feed(
            ev.LimitsMoved(at=self.now, deadline_s=deadline_s, checkpoints=there, **limits)
        )

    def _incarnation(self, trial: int, given: int | None) -> int:
        return given if given is not None else self.trial(trial).incarnation

    # ------------------------------------------------------------ looking

    @property
    def state(self) -> State:
        return self.experiment.state

    def trial(self, trial: int) -> TrialRecord:
        return self.state.trials[trial]

    def device(self, name: str) -> str:
        return self.state.devices.slots[name].state.value


def _difference(returned: Sequence[Command], expected: Sequence[Command]) -> str:
    lines = [*("", "returned:"), *map(repr, returned), "expected:", *map(repr, expected)]
    return "\n  ".join(lines)


def rungs_of(policy: base.Policy) -> Sequence[Rung]:
    """The rungs of a policy that compares trials at such."""
    return policy.ladder.rungs if isinstance(policy, Asha) else ()


def launch(trial: int, incarnation: int, *devices: str) -> Launch:
    """The launch of a trial of the default ``draw``."""
    return Launch(trial, incarnation, devices, draw(trial))


# ---------------------------------------------------------------- snapshots


#: Follows from the rest; asking changes it.
REMEMBERED = {"_draw", "_next"}


def snapshot(experiment: Experiment) -> Any:
    """Everything the experiment and its policy hold but what is only remembered to be quick, as plain data."""
    state = {key: value for key, value in vars(experiment.state).items() if key not in REMEMBERED}
    idle = [experiment.idle.by_reason, experiment.idle.since]
    return _Snapshot().plain([state, vars(experiment.policy), idle])


def replayed(experiment: Experiment, entries: Iterable[Entry]) -> Experiment:
    """Tell an experiment what a journal holds: the same must follow, and each launch of a trial counts one up."""
    launched: dict[int, int] = {}
    for entry in entries:
        assert experiment.handle(entry.event) == entry.commands, entry.seq
        experiment.check()
        for command in entry.commands:
            if isinstance(command, Launch):
                assert command.incarnation == launched.get(command.trial, 0) + 1
                launched[command.trial] = command.incarnation
    return experiment


def difference(one: Any, other: Any, where: str = "it") -> str:
    """The first place where two snapshots differ."""
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        if len(one) != len(other):
            return f"{where}: {len(one)} against {len(other)} entries: {one} | {other}"
        for place, (mine, others) in enumerate(zip(one, other, strict=True)):
            if mine != others:
                name = f".{mine[0]}" if isinstance(mine, tuple) and mine else f"[{place}]"
                return difference(mine, others, where + name)
    return f"{where}: {one} | {other}"


class _Snapshot:
    """One walk through an object graph. What is met again (trials, rungs) is named by its number."""

    def __init__(self) -> None:
        self._met: dict[int, tuple[int, object]] = {}

    def plain(self, value: Any) -> Any:
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, float):
            return repr(value)  # so that NaN equals NaN, and 0.0 is not -0.0
        if isinstance(value, enum.Enum):
            return str(value)
        if isinstance(value, Mapping):
            return [(self.plain(key), self.plain(item)) for key, item in value.items()]
        if isinstance(value, set | frozenset):
            return sorted((self.plain(item) for item in value), key=repr)
        if isinstance(value, list | tuple | deque | SortedList):
            return [self.plain(item) for item in value]
        if isinstance(value, random.Random):
            return self.plain(value.getstate())
        if hasattr(value, "tolist"):
            return self.plain(value.tolist())
        if callable(value) or hasattr(value, "__next__"):
            return f"<{type(value).__name__}>"
        return self._object(value)

    def _object(self, value: Any) -> Any:
        name = type(value).__name__
        about = getattr(value, "__struct_config__", getattr(value, "__dataclass_params__", None))
        frozen = about is not None and about.frozen
        if not frozen:
            if id(value) in self._met:
                return f"<{name} {self._met[id(value)][0]}>"
            self._met[id(value)] = (len(self._met), value)
        slots = [slot for kind in type(value).__mro__ for slot in getattr(kind, "__slots__", ())]
        names = [*slots, *getattr(value, "__dict__", ())]
        names = [name for name in names if name not in REMEMBERED]
        found = [(name, getattr(value, name)) for name in names if hasattr(value, name)]
        assert found or frozen, f"a snapshot of {value!r} would be empty"
        return [name, *((name, self.plain(item)) for name, item in found)]


def children_of(module: str) -> list[psutil.Process]:
    """Our running children with this module on their command line; other tests may have left zombies of theirs.

    A process has no command line for a moment when its parent already goes on: ``exec`` lets go of the parent first.
    """
    found = []
    for process in psutil.Process().children():
        with contextlib.suppress(psutil.ZombieProcess, psutil.NoSuchProcess):
            while not process.cmdline():
                time.sleep(0.001)
            if module in process.cmdline():
                found.append(process)
    return found
