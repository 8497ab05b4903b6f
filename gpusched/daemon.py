"""The daemon of one experiment: the lock, the loop, people's requests, and resume = replay + reconcile.

``python -m gpusched.daemon FOLDER [--resume]``. It is one thread: the driver waits in the executor's poll, which also
serves the control socket; requests become events in ``_inbox`` and are dealt with between two turns. Signals do the
same: SIGTERM and SIGINT ask for a stop in good order, a second one cancels. SIGHUP means nothing: a closed terminal
ends nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpusched import failpoints, recovery
from gpusched.assemble import Assembled, assemble, read_recipe
from gpusched.clock import Beginning, Clock
from gpusched.config_env import filled_in
from gpusched.core.decisions import Command, Kill
from gpusched.core.events import Event, ExperimentStarted, UserAsked
from gpusched.daemon_equipment import devices_of, launch_settings, quarantined_device
from gpusched.daemon_storage import Storage, checksums, require_unchanged
from gpusched.dashboard import lines as plain
from gpusched.dashboard import view as views
from gpusched.driver import Driver, replay
from gpusched.epoch import Epoch
from gpusched.errors import (
    DamagedState,
    DeviceError,
    Fenced,
    GpuschedError,
    InputError,
    ReplayDiverged,
)
from gpusched.executors.base import Device, Release
from gpusched.executors.torchrun import TorchrunExecutor
from gpusched.forecaster import make_forecaster
from gpusched.journal import Journal
from gpusched.lock import Lock
from gpusched.paths import ExperimentPaths

#: How often watchers get a view.
VIEW_EVERY_S = 0.5
#: How often it is looked whether another daemon has taken over.
FENCE_EVERY_S = 1.0
#: How long a daemon that is over waits until the last devices are confirmed to be free.
DRAIN_S = 10.0
#: How long a daemon that is over waits for watchers to take their last view.
FAREWELL_S = 1.0
#: The report of an experiment with more steps takes longer than its end should; ``gpusched report`` writes it then.
REPORT_STEPS_MAX = 20_000


class Daemon:
    """Runs one experiment to its end."""

    def __init__(
        self,
        paths: ExperimentPaths,
        *,
        resuming: bool,
        salvage: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.paths = paths
        self._lock = Lock.take(paths.lock)
        self._inbox: list[Event] = []
        self._signals: list[int] = []
        self._watchers: list[Any] = []
        self._followers: list[Any] = []
        self._notes: list[str] = []
        self._foreword: list[str] = []
        self._next_view_at = self._next_look_at = 0.0
        recipe = read_recipe(paths)
        recipe = replace(recipe, env=filled_in(recipe.env, environment or {}))
        self.assembled: Assembled = assemble(recipe, paths)
        self.experiment = self.assembled.experiment
        began = json.loads(paths.began.read_bytes())
        self._salvaged = False
        if resuming:
            journal: Journal | None = self._replay(salvage)
        else:
            journal, self.epoch = None, Epoch(paths.root, 0)
        # After a reboot the wall clock may be wrong: time goes on where the journal ends.
        self.clock = Clock(Beginning.from_json(began), at_least_s=self.experiment.state.now)
        self.devices = devices_of(recipe, paths.root, tuple(self.experiment.state.devices.slots))
        self.executor = TorchrunExecutor(
            paths,
            self.devices,
            launch_settings(recipe),
            clock=self.clock,
            epoch=self.epoch.number,
            on_client=self._serve,
            say=self._say,
        )
        # The warm server imports torch by now: what syncs to disk comes after it.
        self.journal = journal or Journal.create(
            paths.journal, {"epoch": self.epoch.number, "checksums": checksums(paths)}
        )
        self.storage = Storage(paths)
        self.executor.spare = self.storage.reserve.give
        self.executor.seq_of = lambda trial: self.experiment.state.trials[trial].seq
        self._forecaster = make_forecaster(recipe)
        self.driver = Driver(
            self.experiment,
            self.executor,
            self.journal,
            forecaster=self._forecaster,
            observer=self._observe,
            fence=self.epoch.check,
            spare=self.storage.reserve,
        )

    # ------------------------------------------------------------ beginning

    def _replay(self, salvage: bool) -> Journal:
        """The journal of an experiment that is to go on. Raises InputError if it is over."""
        journal = Journal.open(self.paths.journal)
        self.epoch = Epoch(self.paths.root, int(journal.meta.get("epoch", 1)))
        journal.set_epoch(self.epoch.number)
        require_unchanged(self.paths, journal.meta)
        try:
            count = replay(self.experiment, journal.entries())
        except ReplayDiverged:
            raise  # the journal is whole; it is this version that does not fit
        except DamagedState:
            if not salvage:
                raise
            self._salvaged = True
            dropped = journal.drop_after_last_good()
            print(f"salvage: {dropped} damaged events dropped; trials' own files are read again")
        else:
            print(f"replayed {count} events")
        failpoints.reach("resume.replayed")
        if self.experiment.finished:
            recovery.complete(self.assembled)
            journal.close()
            raise InputError(
                f"{self.paths.root.name} is over ({self.experiment.state.stopping}); "
                "'gpusched best' shows its model, 'gpusched run' starts another"
            )
        return journal

    def _start(self, resuming: bool) -> None:
        inventory = self.executor.inventory()
        if resuming and self.experiment.state.devices.total:
            for slot in self.experiment.state.devices.slots.values():
                if slot.passing:
                    self.devices.keep_out(slot.id, slot.reason)
            self._resume(inventory)
            return
        self.storage.require_room()
        if not any(device.usable for device in inventory):
            reasons = "; ".join(f"{device.label}: {device.why_not}" for device in inventory)
            raise DeviceError(f"no device can be used now: {reasons or 'there is none'}")
        self.assembled.recipe.require_atoms(len(inventory))
        self.assembled.require_policy(len(inventory))
        self._foreword = list(self.assembled.foreword(len(inventory)))
        self.devices.check_sizes(self.experiment.state.rules.fit(len(inventory)))
        self.driver.handle(
            [
                ExperimentStarted(
                    at=self.clock(),
                    devices=tuple(device.id for device in inventory),
                    islands={device.id: device.island for device in inventory},
                    unusable={d.id: d.why_not for d in inventory if not d.usable},
                )
            ]
        )

    def _resume(self, inventory: Sequence[Device]) -> None:
        state = self.experiment.state
        launched: dict[int, int] = {}
        if self._salvaged:
            unknown = recovery.forget_the_unknown(state, self.paths)
            launched = unknown.launched
            self._say(
                f"salvage: {unknown.killed} processes that the journal knows nothing of were ended; "
                f"{len(unknown.aside)} folders of unknown trials were put aside"
            )
        lost = list(recovery.lost_devices(state, inventory, self.clock()))
        self.driver.resume(self.epoch.number, launched=launched, lost=lost)

    # ------------------------------------------------------------ the loop

    def run(self, *, resuming: bool, ready: Any = None) -> None:
        """Until the experiment is over."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.set_wakeup_fd(self.executor.hub.wake_descriptor, warn_on_full_buffer=False)
        self._start(resuming)
        if ready is not None:
            ready({"ok": os.getpid(), "foreword": self._foreword})
        while not self.experiment.finished or self.driver.stalled:
            self.driver.turn(min(self._limit(), self._next_look_at))
            self._look_around()
            self._take_signals()
            change = self.storage.look(self.clock(), self.experiment.state)
            if change is not None:
                self._inbox.append(change)
            if self._inbox:
                events, self._inbox = self._inbox, []
                self.driver.handle(events)
            self._show()
        self._finish()

    def _limit(self) -> float:
        if self._inbox or self._signals:
            return self.clock()
        next_view_at = self._next_view_at if self._watchers else float("inf")
        return min(next_view_at, self.storage.next_at)

    def _finish(self) -> None:
        until = self.clock() + DRAIN_S
        while self.experiment.state.devices.draining and self.clock() < until:
            self.driver.turn(until)
        failpoints.reach("final.before")
        self.journal.commit()
        view = views.to_json(self._view(leaving=True))
        try:
            self.storage.write(self.paths.final_view, json.dumps(view).encode())
        except OSError as error:
            self._say(
                f"{self.paths.final_view}: cannot be written ({error}); the journal has it all"
            )
        self.storage.release()
        failpoints.reach("final.after")
        for client in (*self._watchers, *self._followers):
            client.send({"view": view, "over": True})
        until = self.clock() + FAREWELL_S
        while self.clock() < until and any(
            not c.closed for c in (*self._watchers, *self._followers)
        ):
            self.executor.hub.turn(until - self.clock())
        self.executor.close()
        self.journal.close()
        self._report(view)

    def _report(self, view: dict[str, Any]) -> None:
        """``report.html``, where that takes no noticeable time; nothing depends on it."""
        if sum(t.seq for t in self.experiment.state.trials.values()) > REPORT_STEPS_MAX:
            return
        from gpusched.report import data, page

        with contextlib.suppress(OSError, DamagedState):
            page.write(self.paths.report, view, data.read(self.paths.journal))

    # ------------------------------------------------------------ signals

    def _on_signal(self, number: int, _frame: object) -> None:
        self._signals.append(number)

    def _take_signals(self) -> None:
        while self._signals:
            self._signals.pop()
            stopping = self.experiment.state.stopping is not None
            self._ask("cancel" if stopping else "stop")

    # ------------------------------------------------------------ people

    def _ask(self, verb: Any, trial: int | None = None) -> None:
        self._inbox.append(UserAsked(at=self.clock(), verb=verb, trial=trial))

    def _serve(self, request: dict[str, Any], client: Any) -> None:
        """Answer one request of a client; called from within the executor's poll."""
        try:
            if request.get("ask") == "readmit":
                self._readmit(str(request.get("device")), client)
            else:
                client.send({"ok": self._answer(request, client)})
        except GpuschedError as error:
            client.send({"error": str(error), "exit_code": error.exit_code})
        except Exception as error:
            # A question that we cannot answer must not end the search of the one who asks.
            traceback.print_exc()
            client.send(
                {"error": f"internal error: {type(error).__name__}: {error}", "exit_code": 1}
            )

    def _answer(self, request: dict[str, Any], client: Any) -> Any:
        match request.get("ask"):
            case "view":
                return views.to_json(self._view())
            case "watch":
                self._watchers.append(client)
                self._next_view_at = 0.0
                return "watching"
            case "follow":
                self._followers.append(client)
                return "following"
            case "explain":
                return self.assembled.explain(_trial(request))
            case "pause" | "unpause" | "stop_trial" as verb:
                return self._ask_of_trial(verb, _trial(request))
            case "stop" | "cancel" as verb:
                self._ask(verb)
                return f"{self.paths.root.name} is asked to {verb}"
            case "kill":
                self._ask("cancel")
                for trial in self.experiment.state.live.values():
                    self.executor.execute(Kill(trial.id, trial.incarnation, 0.0))
                return "killed"
            case other:
                raise InputError(f"the daemon knows no request {other!r}")

    def _ask_of_trial(self, verb: str, number: int) -> str:
        trials = self.experiment.state.trials
        if number not in trials:
            raise InputError(f"there is no trial {number}; there are {len(trials)} so far")
        trial = trials[number]
        if trial.is_final:
            raise InputError(f"trial {number} is {trial.state.value} and stays so")
        if verb == "unpause" and not (trial.held_by_user or trial.state.value == "paused"):
            raise InputError(f"trial {number} is {trial.state.value}, not paused")
        self._ask(verb, number)
        words = {
            "pause": "pauses at its next step",
            "unpause": "goes on as soon as an atom is free",
            "stop_trial": "stops at its next step",
        }
        return f"trial {number} {words[verb]}"

    def _readmit(self, wanted: str, client: Any) -> None:
        """Answered when the device has proven that it is clean and well, or has not within seconds."""
        device = quarantined_device(
            wanted, self.experiment.state.devices, self.executor.inventory()
        )

        def answer(release: Release) -> None:
            if release.released:
                client.send({"ok": f"{device} is in use again"})
                return
            error = f"{device} cannot be used yet: {release.holder}"
            client.send({"error": error, "exit_code": DeviceError.exit_code})

        self.executor.readmit(device, answer)

    # ------------------------------------------------------------ views and lines

    def _view(self, *, leaving: bool = False) -> views.View:
        return self.assembled.view(
            daemon_pid=None if leaving else os.getpid(),
            now=self.clock(),
            readings=self.devices.readings(),
            warnings=self._warnings(),
        )

    def _warnings(self) -> tuple[str, ...]:
        storage = (self.driver.stalled, self.storage.warning)
        return (*(text for text in storage if text), *self._notes[-3:])

    def _say(self, text: str) -> None:
        """A remark of the executor or the devices: into the log, and shown in the dashboard."""
        print(text, flush=True)
        self._notes.append(text)

    def _look_around(self) -> None:
        """Now and then: has another daemon taken over (raises Fenced)? what went wrong with forecasts?"""
        now = self.clock()
        if now < self._next_look_at:
            return
        self._next_look_at = now + FENCE_EVERY_S
        self.epoch.check()
        complaints = self._forecaster.complaints if self._forecaster is not None else ()
        while complaints:
            self._say(complaints.popleft())

    def _show(self) -> None:
        now = self.clock()
        if not self._watchers or now < self._next_view_at:
            return
        self._next_view_at = now + VIEW_EVERY_S
        self._watchers = [client for client in self._watchers if not client.closed]
        if self._watchers:
            frame = {"view": views.to_json(self._view())}
            for client in self._watchers:
                client.send(frame)

    def _observe(self, event: Event, commands: Sequence[Command]) -> None:
        records = plain.records(
            event, commands, self.experiment.state, self.assembled.recipe.metric
        )
        if not records:
            return
        lines = [plain.line(record) for record in records]
        print("\n".join(lines), flush=True)
        self._followers = [client for client in self._followers if not client.closed]
        for client in self._followers:
            client.send({"lines": lines, "records": records})


def _trial(request: dict[str, Any]) -> int:
    number = request.get("trial")
    if not isinstance(number, int):
        raise InputError("which trial? give its number")
    return number


# ---------------------------------------------------------------- start


def _given_environment(descriptor: int | None) -> dict[str, str]:
    """Values of the recipe's ``env`` that are not on the disk."""
    if descriptor is None:
        return {}
    with os.fdopen(descriptor, "rb") as memory:
        given: dict[str, str] = json.loads(memory.read())
    return given


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the daemon's process. Tells its fate at the start through ``--ready-fd``."""
    parser = argparse.ArgumentParser(prog="python -m gpusched.daemon")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--salvage", action="store_true")
    parser.add_argument("--ready-fd", type=int)
    parser.add_argument("--env-fd", type=int)
    args = parser.parse_args(argv)
    os.umask(0o077)

    def ready(message: dict[str, Any]) -> None:
        if args.ready_fd is not None:
            with contextlib.suppress(OSError):
                os.write(args.ready_fd, json.dumps(message).encode() + b"\n")
                os.close(args.ready_fd)
            args.ready_fd = None

    try:
        daemon = Daemon(
            ExperimentPaths(args.folder.resolve()),
            resuming=args.resume,
            salvage=args.salvage,
            environment=_given_environment(args.env_fd),
        )
        daemon.run(resuming=args.resume, ready=ready)
    except Fenced as error:
        # Not even its socket is ours any more. Descriptors end with the process; nothing is closed in good order.
        print(f"{time.strftime('%F %T')} {error}", file=sys.stderr, flush=True)
        os._exit(error.exit_code)
    except GpuschedError as error:
        print(f"{time.strftime('%F %T')} {error}", file=sys.stderr, flush=True)
        ready({"error": str(error), "exit_code": error.exit_code})
        return error.exit_code
    except BaseException as error:
        traceback.print_exc()
        ready({"error": f"the daemon failed: {type(error).__name__}: {error}", "exit_code": 1})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
