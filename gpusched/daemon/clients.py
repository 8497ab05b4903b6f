"""People's requests of a running experiment, and the views and lines that they are sent.

Requests come in within the executor's poll. One that changes the search becomes an event, which the daemon takes
between two turns; every other is answered at once. Looking ends no search: what a policy raises when it is asked for
people becomes a note.
"""

from __future__ import annotations

import contextlib
import os
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from gpusched.core.commands import Command
from gpusched.core.events import Event, LimitsMoved, UserAsked, is_reopened
from gpusched.core.explain import explain as explained
from gpusched.dashboard import lines as plain
from gpusched.dashboard import model
from gpusched.dashboard import view as views
from gpusched.devices.base import Reading
from gpusched.driver.assemble import Assembled, ExperimentClock
from gpusched.errors import GpuschedError, InputError
from gpusched.executors.hub import Hub, Peer
from gpusched.protocol import Ask, Done, Lines, Refused, Shown, from_client
from gpusched.text import first_line, no_trial

#: How often watchers get a view.
VIEW_EVERY_S = 0.5
#: The past lines that a new follower gets.
PAST_LINES = 50
#: How long people have to take their last view of a search that is over.
FAREWELL_S = 1.0
#: Requests that change a search while it continues.
CHANGES = ("pause", "unpause", "stop_trial", "deadline", "try")


def standing(
    assembled: Assembled, *, daemon_pid: int | None = None, now: float | None = None, **more: Any
) -> dict[str, Any]:
    """Return the standing of the search as JSON; cheap enough for twice a second."""
    state, policy = assembled.experiment.state, assembled.experiment.policy
    try:
        notes = () if state.finished else tuple(policy.notes(state))
    except Exception as error:
        notes = (f"the policy cannot say its notes: {first_line(str(error))}",)
    built = views.build(
        state,
        name=assembled.paths.root.name,
        policy=assembled.recipe.policy_name.rpartition(":")[2],
        metric=assembled.recipe.metric,
        folder=str(assembled.paths.root),
        daemon_pid=daemon_pid,
        now=now,
        idle=assembled.experiment.idle,
        notes=notes,
        **more,
    )
    return model.to_json(built)


def moved_deadline(deadline_s: float, now: float, in_s: float | None, add_s: float | None) -> float:
    """Return the deadline ``in_s`` seconds from now, or ``add_s`` more than there were; without either as it is."""
    if in_s is not None:
        return now + in_s
    return deadline_s if add_s is None else max(deadline_s, now) + add_s


def explain(assembled: Assembled, trial: int) -> dict[str, Any]:
    """Return ``{"data": .., "lines": [..]}``. Raises InputError for an unknown trial."""
    state = assembled.experiment.state
    if trial not in state.trials:
        raise InputError(no_trial(trial, len(state.trials)))
    explanation = explained(state, assembled.experiment.policy, trial)
    return {"data": asdict(explanation), "lines": explanation.lines()}


class Clients:
    """The clients of one daemon: those who ask, those who watch (views) and those who follow (lines)."""

    def __init__(
        self,
        assembled: Assembled,
        hub: Hub,
        clock: ExperimentClock,
        readings: Callable[[], Sequence[Reading]],
        warnings: Callable[[], Sequence[str]],
    ) -> None:
        self._assembled = assembled
        self._hub = hub
        self._clock = clock
        self._readings = readings
        self._warnings = warnings
        self._asked: list[Event] = []
        #: Whether a person has ended the search for the third time: it does not wait for a full disk any more.
        self.is_killed = False
        self._watchers: list[Peer] = []
        self._followers: list[Peer] = []
        self._past: deque[plain.Record] = deque(maxlen=PAST_LINES)
        self._next_view_at = 0.0
        self._is_over = assembled.experiment.state.finished
        self._unshown: set[str] = set()
        hub.register(Ask, self._take)

    @property
    def due_at(self) -> float:
        """The time of the next work here: at once if something was asked, else when the next view is due."""
        if self._asked:
            return 0.0
        return self._next_view_at if self._watchers else float("inf")

    # ------------------------------------------------------------ what they ask

    def asked(self) -> list[Event]:
        """Return what was asked since the last call."""
        events, self._asked = self._asked, []
        return events

    def ask(self, verb: Any, trial: int | None = None, by: str = "the user") -> None:
        """Put a wish to the search, as if a client had."""
        self.is_killed = self.is_killed or verb == "kill"
        self._asked.append(UserAsked(at=self._clock(), verb=verb, trial=trial, by=by))

    def _take(self, request: Ask, peer: Peer) -> bool:
        """Serve a client, which begins with a request."""

        def ask(request: Ask) -> None:
            self._hub.wake()
            self.serve(request, peer)

        peer.hear(from_client, ask)
        ask(request)
        return True

    def serve(self, request: Ask, client: Peer) -> None:
        """Answer one request of a client; called from within the executor's poll."""
        try:
            client.send(Done(self._answer(request, client)))
            if request.verb == "follow" and self._past:
                client.send(Lines(list(self._past)))
        except GpuschedError as error:
            client.send(Refused(str(error), error.exit_code))
        except Exception as error:
            # A question that we cannot answer must not end the search of the one who asks.
            traceback.print_exc()
            client.send(Refused(f"internal error: {type(error).__name__}: {error}"))

    def _answer(self, request: Ask, client: Peer) -> Any:
        state, name = self._assembled.experiment.state, self._assembled.paths.root.name
        if request.verb in CHANGES and state.stopping is not None:
            raise InputError(
                f"{name} is ending ({state.stopping}); once it is over, 'gpusched resume {name} --deadline +20m' "
                "continues with it"
            )
        number = -1 if request.trial is None else request.trial
        match request.verb:
            case "view":
                return self.view()
            case "watch":
                self._watchers.append(client)
                self._next_view_at = 0.0
                return "watching"
            case "follow":
                self._followers.append(client)
                return "following"
            case "explain":
                return explain(self._assembled, number)
            case "pause" | "unpause" | "stop_trial" as verb:
                return self._ask_of_trial(verb, number)
            case "stop" | "cancel" | "kill" as verb:
                self.ask(verb)
                how = "; every trial leaves at its next step" if verb == "stop" else ""
                return f"{name} is asked to {verb}{how}"
            case "deadline":
                now = self._clock()
                to_s = moved_deadline(state.rules.deadline_s, now, request.in_s, request.add_s)
                self._asked.append(LimitsMoved(at=now, deadline_s=to_s))
                return {"deadline_s": to_s, "time_left_s": to_s - now}
            case "try" if request.hparams:  # which the client has checked
                given = state.configurations.given
                self._asked.append(UserAsked(at=self._clock(), verb="try", hparams=request.hparams))
                return {"hparams": request.hparams, "before": len(given)}
            case other:
                raise InputError(f"the daemon knows no request {other!r}")

    def _ask_of_trial(self, verb: str, number: int) -> str:
        trials = self._assembled.experiment.state.trials
        if number not in trials:
            raise InputError(no_trial(number, len(trials)))
        trial = trials[number]
        if trial.is_final:
            raise InputError(f"trial {number} is {trial.state.value} and stays so")
        if verb == "unpause" and not (trial.held_by_user or trial.state.value == "paused"):
            raise InputError(f"trial {number} is {trial.state.value}, not paused")
        self.ask(verb, number)
        rests = trial.state.value == "paused"
        words = {
            "pause": "stays paused until it is unpaused" if rests else "pauses at its next step",
            "unpause": "continues as soon as an atom is free; the policy decides again at its next report",
            "stop_trial": "is stopped" if rests else "stops at its next step",
        }
        return f"trial {number} {words[verb]}"

    # ------------------------------------------------------------ what they are shown

    def view(self, *, leaving: bool = False) -> dict[str, Any]:
        """Return the standing of the search as JSON. ``leaving``: as it will be without its daemon."""
        return standing(
            self._assembled,
            daemon_pid=None if leaving else os.getpid(),
            now=self._clock(),
            readings=self._readings(),
            warnings=tuple(self._warnings()),
        )

    def show(self) -> None:
        """Send the watchers a view if one is due."""
        now = self._clock()
        if not self._watchers or now < self._next_view_at:
            return
        self._next_view_at = now + VIEW_EVERY_S
        self._watchers = [client for client in self._watchers if not client.closed]
        with self.unharmed("the view"):
            if self._watchers:
                frame = Shown(self.view())
                for client in self._watchers:
                    client.send(frame)

    def observe(self, event: Event, commands: Sequence[Command]) -> Callable[[], None] | None:
        """Word a line for each thing worth one; the call prints them and sends them to followers."""
        state, metric = self._assembled.experiment.state, self._assembled.recipe.metric
        is_over, self._is_over = self._is_over, state.finished
        is_end = state.finished and (not is_over or is_reopened(event))
        try:
            records = plain.records(event, commands, state, metric, is_end=is_end)
        except Exception as error:
            self._cannot_show("a line", error)
            return None
        return partial(self._tell, records) if records else None

    @contextlib.contextmanager
    def unharmed(self, what: str) -> Iterator[None]:
        """Have the search survive a failure to show something."""
        try:
            yield
        except Exception as error:
            self._cannot_show(what, error)

    def _cannot_show(self, what: str, error: Exception) -> None:
        """Write the traceback of an error into the log, once for each place."""
        if what not in self._unshown:
            self._unshown.add(what)
            traceback.print_exc()
            self.remark(f"{what} cannot be shown ({type(error).__name__}: {error})")

    def remark(self, text: str) -> None:
        """Print a remark of a trial, an executor or a device, and send it to followers."""
        self._tell([plain.remark(self._clock(), text)])

    def _tell(self, records: list[plain.Record]) -> None:
        with contextlib.suppress(OSError):  # a full disk
            print(*map(plain.line, records), sep="\n", flush=True)
        self._past.extend(records)
        self._followers = [client for client in self._followers if not client.closed]
        for client in self._followers:
            client.send(Lines(records))

    def farewell(self, view: dict[str, Any]) -> None:
        """Send the last view, and wait a little until all have taken it."""
        clients = (*self._watchers, *self._followers)
        for client in clients:
            client.send(Shown(view, over=True))
        until = self._clock() + FAREWELL_S
        while self._clock() < until and not all(client.closed for client in clients):
            self._hub.turn(until - self._clock())
