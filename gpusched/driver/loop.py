"""The one loop, live and simulated: events from the executor, through the search, to commands.

    executor.poll ──▶ Experiment.handle ──▶ journal.append ──▶ journal.commit ──▶ executor.execute
                                    └─ a report that changes nothing is answered at once ─▶ acknowledge

Order of effects: an event and the commands it caused are journaled and synced, *then* carried out, as is what a person
asks. People are told of an event when it is in the journal. A report whose answer is "go on" has no effect outside and
is answered before. When the disk is full nothing more is carried out; the trials train on, and the sync is tried
again until it succeeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from gpusched import failpoints
from gpusched.core.commands import (
    Command,
    ConfirmRelease,
    Kill,
    Launch,
    Save,
    Suggest,
    Yield,
)
from gpusched.core.events import (
    DaemonResumed,
    Event,
    LimitsMoved,
    QuarantineChanged,
    Reported,
    TimerFired,
    TrialExited,
    UserAsked,
)
from gpusched.core.experiment import Experiment
from gpusched.core.trial import InvalidTransition
from gpusched.errors import DamagedState
from gpusched.executors.base import FOREVER, Executor, Helper, LiveTrial
from gpusched.journal.log import DiskFull, Journal
from gpusched.journal.rows import Entry

#: Reports that wait for no effect are committed at least this often. No report is answered meanwhile; at 3,200 reports
#: a second that takes 5 ms.
COMMIT_EVERY_S = 0.5
#: Interval at which a full disk is tried again.
RETRY_EVERY_S = 1.0
#: Interval at which a suggester that has been asked is polled.
LOOK_EVERY_S = 0.05

#: May return a call that tells people: it is made when the event is on disk.
Observer = Callable[[Event, Sequence[Command]], Callable[[], None] | None]


class Driver:
    """Runs a search on an executor.

    ``suggester`` carries out ``Suggest`` in place of the executor. ``spare`` gives back reserved room for the journal
    on a full disk; False: all is given. ``fence`` raises Fenced where another daemon has taken over.
    """

    def __init__(
        self,
        experiment: Experiment,
        executor: Executor,
        journal: Journal | None = None,
        *,
        suggester: Helper | None = None,
        observer: Observer | None = None,
        check: bool = False,
        spare: Callable[[], bool] = lambda: False,
        fence: Callable[[], None] | None = None,
    ) -> None:
        self.experiment = experiment
        self._state = experiment.state
        self.executor = executor
        self.journal = journal
        self._suggester = suggester
        self._observer = observer
        self._check = check
        self._spare = spare
        self._fence = fence
        #: When to commit next.
        self._commit_at = FOREVER
        self._effects: list[Command] = []
        self._waiting: list[Reported] = []
        self._untold: list[Callable[[], None]] = []
        #: Why nothing can be journaled at present; None: all is well.
        self.stalled: str | None = None

    # ------------------------------------------------------------ the loop

    def run(self) -> None:
        """Run until the search is over."""
        while not self._state.finished or self.stalled is not None:
            self.turn()
        if self.journal is not None:
            self.journal.commit()

    def turn(self, at_most: float = FOREVER) -> None:
        """Wait for something to happen, for a timer, or until ``at_most``; deal with it."""
        until = min(at_most, self._wakes_at, self._commit_at)
        events: list[Event] = []
        if self._suggester is not None:
            now = self.executor.now()
            events += self._suggester.poll(now)
            if events:
                until = now
            elif self._state.awaits_configuration:
                until = min(until, now + LOOK_EVERY_S)
        self.handle([*events, *self.executor.poll(until)])
        now = self.executor.now()
        if now >= self._wakes_at:
            self.handle(list(self._due(now)))
        if now >= self._commit_at:
            self._settle()

    @property
    def _wakes_at(self) -> float:
        """The time of the next timer of the search."""
        if self._state.finished:
            return FOREVER
        return min(self._state.timers.values(), default=FOREVER)

    def handle(self, events: Sequence[Event]) -> None:
        """Deal with events: journal, sync, then act. Public: the daemon feeds in what people ask."""
        for event in events:
            commands = self.experiment.handle(event)
            if self._check:
                self.experiment.check()
            if all(type(command) is Save and command.hold for command in commands):
                # A copy put aside is told to nobody, and a search in which every step is better asks for many.
                for command in commands:
                    self._execute(command)
                if type(event) is Reported:
                    self.executor.acknowledge(event)  # first of all: the trial waits for it
            else:
                self._effects += commands
                if type(event) is Reported:
                    self._waiting.append(event)
            if self.journal is not None:
                self.journal.append(event, commands)
            if self._observer is not None and (tell := self._observer(event, commands)):
                self._untold.append(tell)
        is_asked = any(isinstance(event, UserAsked | LimitsMoved) for event in events)
        if self._effects or is_asked or (events and self._state.finished):
            self._settle()
        elif self.journal is None:
            self._tell()
        elif events and self.stalled is None:
            self._commit_at = min(self._commit_at, events[-1].at + COMMIT_EVERY_S)

    def _settle(self) -> None:
        """Commit to the journal, then tell of it and carry out what waits for it."""
        if not self._commit():
            self._kill_unsynced()
            return
        if self._fence is not None and self._effects:
            self._fence()  # raises Fenced: another daemon carries them out
        self._tell()
        effects, self._effects = self._effects, []
        waiting, self._waiting = self._waiting, []
        moot = []
        for command in effects:
            if type(command) is Launch and self._state.trials[command.trial].doom is not None:
                # It waited for a full disk until it was to be killed; its devices may be others' now.
                moot.append(_unbegun(self.executor.now(), command))
            else:
                self._execute(command)
        for report in waiting:
            self.executor.acknowledge(report)
        if moot:
            self.handle(moot)

    def _tell(self) -> None:
        untold, self._untold = self._untold, []
        for tell in untold:
            tell()

    def _kill_unsynced(self) -> None:
        """End what is to die also where the disk is full: a daemon that dies now finds those trials gone, no more."""
        for command in [each for each in self._effects if type(each) is Kill]:
            self._effects.remove(command)
            self._execute(command)

    def _commit(self) -> bool:
        """Commit the journal; False if the disk is full, to be tried again. Any other failure to write is fatal.

        After a failed fsync nothing on that disk can be trusted (Rebello et al., ATC'20): fail-stop, resume re-reads.
        """
        while self.journal is not None:
            try:
                self.journal.commit()
                break
            except DiskFull as error:
                if not self._spare():
                    self.stalled = f"the journal cannot be written: {error}"
                    self._commit_at = self.executor.now() + RETRY_EVERY_S
                    return False
        self._commit_at, self.stalled = FOREVER, None
        return True

    def _execute(self, command: Command) -> None:
        name = type(command).__name__
        failpoints.reach(f"{name}.before")
        helper = self._suggester if type(command) is Suggest else None
        (helper or self.executor).execute(command)
        failpoints.reach(f"{name}.after")

    def _due(self, now: float) -> Iterator[Event]:
        timers = sorted(self._state.timers.items(), key=lambda item: item[1])
        return (TimerFired(at=now, timer=timer) for timer, at in timers if at <= now)

    # ------------------------------------------------------------ resume

    def resume(self, epoch: int, *, unusable: Mapping[str, str] | None = None) -> None:
        """Continue after ``replay``: ask the outside anew, and issue again what the state implies.

        All of the outside (see ``DaemonResumed``) is known before anything is begun, so that no trial starts on what is
        gone, and none is taken for one that the last daemon had begun.
        """
        found = self.executor.reconcile(list(live_trials(self.experiment)))
        changes = [event for event in found if type(event) is QuarantineChanged and event.reason]
        resumed = DaemonResumed(
            at=self.executor.now(),
            epoch=epoch,
            unusable={**(unusable or {}), **{lost.device: lost.reason for lost in changes}},
        )
        self.handle([resumed, *(event for event in found if event not in changes)])
        failpoints.reach("resume.reconciled")
        self._effects += outstanding(self.experiment)
        self._settle()

    def reopen(self, event: LimitsMoved) -> None:
        """Continue after the end, and issue again what was asked for before it and not answered."""
        self.handle([event])
        self._effects += outstanding(self.experiment)
        self._settle()


def _unbegun(at: float, launch: Launch) -> TrialExited:
    trial, number = launch.trial, launch.incarnation
    return TrialExited(at=at, trial=trial, incarnation=number, outcome="killed", unbegun=True)


def replay(experiment: Experiment, entries: Iterator[Entry]) -> int:
    """Feed journaled events through ``handle``; return how many.

    Raises DamagedState if an event does not cause the commands that the journal says it caused, or cannot even be
    what happened next.
    """
    count = 0
    for entry in entries:
        try:
            commands = experiment.handle(entry.event)
        except (InvalidTransition, AssertionError, ArithmeticError, LookupError) as error:
            raise _diverged(entry, f"cannot have happened: {error}") from error
        if commands != entry.commands:
            then_and_now = f"\n  then: {entry.commands}\n  now:  {commands}"
            raise _diverged(entry, f"caused other commands than the journal holds.{then_and_now}")
        count += 1
    return count


def _diverged(entry: Entry, what: str) -> DamagedState:
    event = f"event {entry.seq} ({type(entry.event).__name__} at {entry.event.at:.3f} s)"
    return DamagedState(
        f"{event} {what}\nThe journal was written by another version of gpusched or of a policy (policy.py in "
        "the search's folder is a copy of yours), or on a machine whose arithmetic differs: use that one, or begin "
        "another search with this one's folder as `after`; best/ is whole"
    )


def live_trials(experiment: Experiment) -> Iterator[LiveTrial]:
    """Yield the incarnations that should have processes."""
    for trial in experiment.state.live.values():
        if trial.has_processes:
            yield LiveTrial(trial.id, trial.incarnation, trial.devices, trial.seq, trial.saved_step)


def outstanding(experiment: Experiment) -> Iterator[Command]:
    """Yield commands that the state implies: a crash between journal and execution needs no case of its own."""
    state = experiment.state
    for trial in state.live.values():
        if trial.after is not None:
            yield Yield(trial.id, trial.incarnation, trial.after.save)
        if trial.doom is not None:
            yield Kill(trial.id, trial.incarnation, trial.doom.grace_s, trial.doom.hung)
    if state.devices.draining:
        yield ConfirmRelease(tuple(sorted(state.devices.draining)))
    if state.best is not None:
        yield state.best.command
    asked_for = state.configurations.asked_for
    if asked_for is not None and state.stopping is None:
        yield Suggest(asked_for)
