"""The dashboard as a Textual app: threads and signals, requests to the daemon, and the end."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, Literal

from textual.app import App
from textual.binding import Binding, BindingType
from textual.screen import Screen

from gpusched.dashboard.live import Feed, Frames, Loupe, Source
from gpusched.dashboard.screen import SearchScreen
from gpusched.dashboard.widgets import Prompt, YesOrNo
from gpusched.errors import GpuschedError
from gpusched.text import show_duration, show_hparams

#: How watching ends. ``lost``: no daemon runs the experiment any more, and it is not over.
Why = Literal["over", "detached", "lost", "terminated"]
#: Asks the daemon for something; returns the answer in words. Raises GpuschedError.
Act = Callable[..., object]

MORE_S = 600.0


class Dashboard(App[Why]):
    """One experiment on the screen, until it is over or the person leaves.

    ``on_interrupt``: called for Ctrl-C, returns a sentence; without it Ctrl-C detaches, and the app stays when the
    experiment is over. ``act`` None: the daemon is asked for views alone.
    """

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    YesOrNo, Prompt { background: transparent; align: center middle; }
    YesOrNo Static { width: auto; max-width: 90%; border: round $primary; padding: 0 2; }
    Prompt { align: left bottom; }
    Prompt Input { height: 2; border-top: solid $primary; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c", "interrupt", priority=True),
        Binding("ctrl+z", "suspend_process", priority=True),
    ]

    def __init__(
        self,
        frames: Frames,
        *,
        sources: Mapping[str, Source] | None = None,
        on_interrupt: Callable[[], str] | None = None,
        act: Act | None = None,
    ) -> None:
        super().__init__(ansi_color=True)
        self.theme = "ansi-dark"
        self.animation_level = "none"
        self._on_interrupt, self._act = on_interrupt, act
        self._feed = Feed(frames, self._post)
        self._loupe = Loupe(self._post, sources or {})
        stops = "stop in good order; again: terminate; a third time: kill"
        ctrl_c = "detach" if on_interrupt is None else stops
        self.main = SearchScreen(self._loupe.look, steers=act is not None, ctrl_c=ctrl_c)
        self.failure: BaseException | None = None

    def get_default_screen(self) -> Screen[None]:
        return self.main

    def on_mount(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self.action_interrupt)
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self.leave, "terminated")
        # After Ctrl-Z and fg the screen is empty, and Textual leaves that to the app.
        self.app_resume_signal.subscribe(self, lambda _: self.refresh(layout=True))
        self._feed.start()
        self._loupe.start()

    def leave(self, why: Why) -> None:
        """End the app."""
        self._feed.stop()
        self._loupe.stop()
        self.exit(why)

    def _handle_exception(self, error: Exception) -> None:
        """Keep the error for the caller to word; Textual would print a traceback with all locals."""
        super()._handle_exception(error)
        self._exit_renderables.clear()
        self.failure = error

    def _post(self, kind: str, value: Any) -> None:
        """Take a message from any thread: a view, the content of a tab, a remark, a failure."""
        self.call_later(self._heard, kind, value)

    def _heard(self, kind: str, value: Any) -> None:
        match kind:
            case "view":
                self.main.show(value)
                if self._on_interrupt is not None and value.is_over:
                    self.leave("over")
                elif self._on_interrupt is not None and value.state == "interrupted":
                    self.leave("lost")
            case "failed":
                self.failure = value
                self.leave("lost")
            case "note":
                self.main.say(value)
            case tab:
                self.main.take(tab, *value)

    # ------------------------------------------------------------ asking the daemon

    def action_pause(self) -> None:
        view, selected = self.main.view, self.main.choice.selected
        trial = view.trial(selected) if view is not None else None
        is_paused = trial is not None and (trial.state == "paused" or trial.held_by_user)
        verb = "unpause" if is_paused else "pause"
        self._ask_about(selected, f"{verb} trial {selected}?", verb)

    def action_stop_trial(self) -> None:
        selected = self.main.choice.selected
        self._ask_about(selected, f"stop trial {selected} for good?", "stop_trial")

    def action_more_time(self) -> None:
        self._ask("move the deadline by 10 minutes?", "deadline", add_s=MORE_S)

    def action_try_configuration(self) -> None:
        def ask(values: str | None) -> None:
            if values:
                self._ask(f"try {values}?", "try", values=values)

        label = "a configuration to try next: lr=0.1 width=64; the rest is drawn at random"
        if self._may_steer():
            self.push_screen(Prompt(label), ask)

    def action_stop_search(self) -> None:
        self._ask("stop the search? every trial leaves at its next step", "stop")

    def _ask_about(self, trial: int | None, question: str, verb: str) -> None:
        if trial is None:
            self.main.say("select a trial first")
        else:
            self._ask(question, verb, trial=trial)

    def _ask(self, question: str, verb: str, **arguments: Any) -> None:
        """Ask the daemon once the person has agreed."""
        if self._may_steer():
            assert self._act is not None
            act = partial(self._act, verb, **arguments)
            self.push_screen(YesOrNo(question), lambda yes: self._in_thread(act) if yes else None)

    def _may_steer(self) -> bool:
        if self._act is None:
            self.main.say("read-only: 'gpusched watch --steer' lets you change the search")
        return self._act is not None

    def action_detach(self) -> None:
        self.leave("over" if self.main.view is not None and self.main.view.is_over else "detached")

    def action_interrupt(self) -> None:
        """Ask in a thread: the daemon may be slow to answer, and a second Ctrl-C must get through meanwhile."""
        if self._on_interrupt is None:
            self.leave("detached")
        else:
            self.main.say("Ctrl-C ..")
            self._in_thread(self._on_interrupt)

    def _in_thread(self, act: Callable[[], object]) -> None:
        def ask() -> None:
            try:
                self._post("note", _worded(act()))
            except (GpuschedError, OSError) as error:
                self._post("note", f"the daemon refused: {error}")

        threading.Thread(target=ask, daemon=True).start()


def _worded(answer: object) -> str:
    match answer:
        case {"time_left_s": float() | int() as left_s}:
            return f"the deadline is moved: {show_duration(left_s)} left"
        case {"hparams": hparams}:
            return f"{show_hparams(hparams)} starts as soon as an atom is free"
        case _:
            return str(answer)
