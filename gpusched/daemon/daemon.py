"""The daemon of one search: the lock, the loop, its end, and resume = replay + reconcile.

It is one thread: the driver waits in the executor's poll, which also serves the control socket; what people ask
(``clients``) is dealt with between two turns. Signals do the same: SIGTERM and SIGINT ask for a stop in good order, a
second one cancels. SIGHUP means nothing: a closed terminal ends nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpusched import failpoints
from gpusched.daemon import resuming
from gpusched.daemon.clients import Clients
from gpusched.daemon.provenance import Edits, keep_policy, recipe_edits, recorded
from gpusched.daemon.storage import Storage
from gpusched.driver.assemble import Assembled, Beginning, ExperimentClock, assemble, read_recipe
from gpusched.driver.loop import Driver, replay
from gpusched.driver.suggester import ChildSuggester
from gpusched.errors import DeviceError, GpuschedError, InputError
from gpusched.executors import live as executors
from gpusched.executors.hub import Hub
from gpusched.folder.files import write_durably
from gpusched.folder.lock import Epoch, Lock
from gpusched.folder.paths import ExperimentPaths
from gpusched.journal.local_disk import Home
from gpusched.journal.log import DiskFull, Journal
from gpusched.loggers.follow import Loggers
from gpusched.recipe.recipe import Recipe

#: How often it is looked whether another daemon has taken over.
FENCE_EVERY_S = 1.0
#: The newest remarks of the executor and the devices that the dashboard shows.
NOTES_SHOWN = 3
#: How long a daemon that is over waits until the last devices are confirmed to be free.
DRAIN_S = 10.0


class Daemon:
    """Process of one search, to its end."""

    def __init__(self, paths: ExperimentPaths, *, is_resume: bool, wish: resuming.Wish) -> None:
        self.paths = paths
        self._wish = wish
        self._lock = Lock.take(paths.lock)
        self._signals = 0
        self._notes: deque[str] = deque(maxlen=NOTES_SHOWN)
        #: Tells whoever starts this daemon what is said until it has begun.
        self._tell_starter: Callable[[dict[str, Any]], None] = lambda _message: None
        self._next_look_at = 0.0
        recipe = read_recipe(paths).with_environment()
        self.assembled: Assembled = assemble(recipe, paths)
        self.experiment = self.assembled.experiment
        self._began = Beginning(**json.loads(paths.began.read_bytes()))
        self._home = Home(paths.journal, is_wanted=recipe.cluster is not None)
        if is_resume:
            journal: Journal | None = self._replay()
        else:
            journal, self.epoch = None, Epoch(paths.root, 0)
        keep_policy(paths, recipe.policy_name)  # with which the journal agrees
        if self.experiment.state.finished:  # the time since its end does not count
            self._began = Beginning.ago(self.experiment.state.now)
        # After a reboot the wall clock may be wrong: time continues where the journal ends.
        self.clock = ExperimentClock(self._began, at_least_s=self.experiment.state.now)
        self.hub = Hub(paths.socket)
        self.storage = Storage(paths)
        self.clients = Clients(
            self.assembled,
            self.hub,
            self.clock,
            readings=lambda: self.executor.readings(),
            warnings=self._warnings,
        )
        kind = "cluster" if recipe.cluster is not None else "local"
        self.executor = executors.make(kind, self._setting(recipe))
        # The warm server imports torch by now: what syncs to disk comes after it.
        self.journal = journal or self._begin()
        self._edits = Edits(paths, recipe.preload)
        trials = self.experiment.state.trials
        self._suggester = ChildSuggester(recipe, trials) if recipe.has_memory else None
        source = recorded(paths).get("recipe")
        folder = Path(source).parent if source is not None else paths.root
        self._loggers = Loggers(paths, recipe.log_to, folder)
        self.driver = Driver(
            self.experiment,
            self.executor,
            self.journal,
            suggester=self._suggester,
            observer=self.clients.observe,
            fence=self.epoch.check,
            spare=self.storage.reserve.give,
        )

    # ------------------------------------------------------------ beginning

    def _setting(self, recipe: Recipe) -> executors.Setting:
        trials = self.experiment.state.trials
        return executors.Setting(
            paths=self.paths,
            recipe=recipe,
            hub=self.hub,
            clock=self.clock,
            epoch=self.epoch.number,
            say=self._say,
            seq_of=lambda trial: trials[trial].seq,
            spare=self.storage.reserve.give,
            refused=self.storage.refused,
            devices=tuple(self.experiment.state.devices.slots),
        )

    def _begin(self) -> Journal:
        self._home.move_in()
        return Journal.create(self.paths.journal, {"epoch": self.epoch.number})

    def _replay(self) -> Journal:
        """Return the journal of a search that is to continue. Raises InputError if it is over."""
        self._home.move_in()
        journal = Journal.open(self.paths.journal)
        self.epoch = Epoch(self.paths.root, int(journal.meta.get("epoch", 1)))
        journal.set_epoch(self.epoch.number)
        count = replay(self.experiment, journal.entries())
        print(f"replayed {count} events")
        failpoints.reach("resume.replayed")
        if self.experiment.state.finished:
            resuming.complete(self.assembled)
            try:
                resuming.require_reopenable(self.assembled, self._wish)
            except InputError:
                journal.close()
                self._home.move_out()
                raise
        return journal

    def _start(self) -> None:
        inventory = self.executor.inventory()
        if self.experiment.state.devices.total:  # replayed
            for text in recipe_edits(self.paths):
                self._tell_starter({"say": text})
            there = {device.id for device in inventory}
            for slot in self.experiment.state.devices.slots.values():
                if slot.reason and slot.id in there:
                    self.executor.keep_out(slot.id, slot.reason)
            lost = resuming.unusable(self.experiment.state, inventory)
            self.driver.resume(self.epoch.number, unusable=lost)
            try:
                self._go_on()
            except InputError:
                if self._wish:
                    raise
                # It died as it was about to end, and ends now.
            slots = self.experiment.state.devices.slots
            others = [device for device in inventory if device.id not in slots]
            if others and not self.assembled.recipe.cluster:
                self.driver.handle([executors.joined(others, self.clock())])
            return
        self.storage.require_room()
        if not any(device.usable for device in inventory):
            reasons = "; ".join(f"{device.label}: {device.why_not}" for device in inventory)
            raise DeviceError(f"no device can be used now: {reasons or 'none was found'}")
        islands = Counter(device.island for device in inventory)
        rules = self.experiment.state.rules
        widest = max(islands.values()) if rules.islands_apart else len(inventory)
        self.assembled.recipe.require_atoms(widest)
        self.assembled.require_policy(len(inventory))
        settings = self.assembled.recipe.worker_settings(len(inventory))
        write_durably(self.paths.worker, json.dumps(settings).encode())
        self.driver.handle([executors.joined(inventory, self.clock())])

    def _go_on(self) -> None:
        """Continue after the end, or with other limits, if that is wished; a search that is ending ends first."""
        state = self.experiment.state
        while self._wish and state.stopping is not None and not state.finished:
            self.driver.turn(self.clock() + FENCE_EVERY_S)
        if state.finished:
            event = resuming.reopened(self.assembled, self._wish)
            write_durably(self.paths.began, json.dumps(asdict(self._began)).encode())
            # Before the event: a daemon that dies now must not leave word of an end that never came.
            self.paths.final_view.unlink(missing_ok=True)
            failpoints.reach("final.removed")
            self.driver.reopen(event)
        elif self._wish:  # before the old deadline is noticed to be over
            self.driver.handle([resuming.changed(self.assembled, self._wish, self.clock())])

    # ------------------------------------------------------------ the loop

    def run(self, ready: Callable[[dict[str, Any]], None]) -> None:
        """Run until the search is over. ``ready`` is told once that it has begun, and before that what is said."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.set_wakeup_fd(self.hub.wake_descriptor, warn_on_full_buffer=False)
        self._tell_starter = ready
        try:
            self._start()
        except GpuschedError:
            if not self.experiment.state.devices.total:  # refused: nobody comes back to its nodes
                self.executor.close()
                self.hub.close()  # whoever asked takes the folder away
            raise
        self.paths.failure.unlink(missing_ok=True)
        ready({"ok": os.getpid()})
        while not self.experiment.state.finished or (
            self.driver.stalled and not self.clients.is_killed
        ):
            self.driver.turn(self._due_at())
            if self.clock() >= self._due_at():
                self._do_what_is_due()
        self._finish()

    def _due_at(self) -> float:
        """Time of the next work beside the trials; in the past: now."""
        return min(self.clients.due_at, self.storage.next_at, self._next_look_at)

    def _do_what_is_due(self) -> None:
        self._look_around()
        events = self.clients.asked()
        change = self.storage.look(self.clock(), self.experiment.state)
        if change is not None:
            events.append(change)
        if events:
            self.driver.handle(events)
        self.clients.show()

    def _finish(self) -> None:
        until = self.clock() + DRAIN_S
        while self.experiment.state.devices.draining and self.clock() < until:
            self.driver.turn(until)
        failpoints.reach("final.before")
        try:
            self.journal.commit()
        except DiskFull as error:
            raise GpuschedError(
                f"the end of the search cannot be written: {error}; make room, then 'gpusched resume'"
            ) from error
        view: dict[str, Any] = {"experiment": self.paths.root.name}
        with self.clients.unharmed("the last view"):
            view = self.clients.view(leaving=True)
        self.storage.release()  # what follows may need the room
        try:
            write_durably(self.paths.final_view, json.dumps(view).encode())
        except OSError as error:
            self._say(
                f"{self.paths.final_view}: cannot be written ({error}); the journal has it all"
            )
        failpoints.reach("final.after")
        self.clients.farewell(view)
        self.executor.close()
        self.hub.close()
        self.journal.close()
        self._loggers.finish()
        if complaints := [*self._loggers.complaints]:
            print(*complaints, sep="\n", flush=True)
            view["warnings"] = [*view.get("warnings", ()), *complaints]
            with contextlib.suppress(OSError):
                write_durably(self.paths.final_view, json.dumps(view).encode())
        with self.clients.unharmed("the journal's place in the folder"):
            self._home.move_out()

    # ------------------------------------------------------------ signals

    def _on_signal(self, number: int, _frame: object) -> None:
        """Ask at once, between two steps of the interpreter: requests that come later stay behind the signal."""
        self._signals = max(self._signals, bool(self.experiment.state.stopping)) + 1
        verb = ("stop", "cancel", "kill")[min(self._signals, 3) - 1]
        self.clients.ask(verb, by=f"{signal.Signals(number).name}: a 'kill', logout or shutdown")

    # ------------------------------------------------------------ remarks

    def _warnings(self) -> tuple[str, ...]:
        storage = (self.driver.stalled, self.storage.warning)
        return (*(text for text in storage if text), *self._notes)

    def _say(self, text: str) -> None:
        """Tell a remark of a trial, the executor or the devices: in the log, to followers, in the dashboard."""
        self.clients.remark(text)
        self._tell_starter({"say": text})
        if text in self._notes:  # a file that is saved again and again
            self._notes.remove(text)
        self._notes.append(text)

    def _look_around(self) -> None:
        """Now and then: has another daemon taken over (raises Fenced)? what went wrong beside the loop?"""
        now = self.clock()
        if now < self._next_look_at:
            return
        self._next_look_at = now + FENCE_EVERY_S
        self.epoch.check()
        self._loggers.look()
        if (edited := self._edits.look()) is not None:
            self._say(edited)
        for one in (self._suggester, self._loggers):
            while one is not None and one.complaints:
                self._say(one.complaints.popleft())
