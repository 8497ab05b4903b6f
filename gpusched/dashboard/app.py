"""The dashboard as a Textual app: its widgets, keys, questions to the daemon, and the end."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Literal

from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, VerticalScroll
from textual.widgets import (
    DataTable,
    Footer,
    HelpPanel,
    RichLog,
    Static,
    TabbedContent,
    TabPane,
)

from gpusched.dashboard import panels
from gpusched.dashboard.feed import LINES, Answers, Feed, Frames, Source
from gpusched.dashboard.marks import QUIET, styled
from gpusched.dashboard.model import Standing
from gpusched.dashboard.widgets import TrialTable, YesOrNo
from gpusched.errors import GpuschedError
from gpusched.text import clean, show_duration

#: How watching ends. ``lost``: no daemon runs the experiment any more, and it is not over.
Why = Literal["over", "detached", "lost", "terminated"]
#: Asks the daemon for something; returns the answer in words. Raises GpuschedError.
Act = Callable[..., object]

#: A daemon sends twice a second; after this long without a word it is said to be away.
AWAY_AFTER_S = 2.5


class Dashboard(App[Why]):
    """One experiment on the screen, until it is over or the person leaves.

    ``on_interrupt``: called for Ctrl-C, returns a sentence; without it Ctrl-C detaches, and the app stays when the
    experiment is over. ``act``: asks the daemon for a change of the search.
    """

    ENABLE_COMMAND_PALETTE = False
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (120, "-wide")]  # noqa: RUF012
    CSS = """
    #head, #atoms, #remarks { height: auto; padding: 0 1; }
    #atoms { max-height: 40%; }
    #remarks { max-height: 6; }
    #body { height: 1fr; layout: vertical; }
    #trials { height: 3fr; }
    #side { height: 2fr; min-height: 5; }
    .-wide #body { layout: horizontal; }
    .-wide #trials { width: 3fr; height: 1fr; }
    .-wide #side { width: 2fr; height: 1fr; margin-left: 1; }
    Screen.-zoomed #trials { display: none; }
    DataTable > .datatable--header, DataTable > .datatable--fixed { background: transparent; }
    DataTable > .datatable--header { color: ansi_cyan; text-style: bold; }
    TabPane { padding: 0; }
    RichLog, #curves { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "detach", "detach"),
        Binding("question_mark", "help", "help", key_display="?"),
        Binding("enter", "enter", "details"),
        Binding("escape", "leave_panel", "back to the trials", show=False),
        *(
            Binding(str(number), f"open('{tab}')", tab, show=False)
            for number, tab in enumerate(("trial", "curves", "log", "decisions"), 1)
        ),
        Binding("p", "pause", "pause"),
        Binding("x", "stop_trial", "stop trial"),
        Binding("plus", "more_time", "10 min", key_display="+"),
        Binding("S", "stop_search", "stop search"),
        Binding("ctrl+c", "interrupt", show=False, priority=True),
        Binding("ctrl+z", "suspend_process", show=False, priority=True),
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
        self._answers = Answers(sources or {}, self._post)
        self.failure: BaseException | None = None
        #: The newest standing.
        self.view: Standing | None = None
        self._trials, self._tabs = TrialTable(), TabbedContent(id="side")
        self._is_stale = False
        self._heard_at = time.monotonic()
        self._logged: list[str] = []

    def compose(self) -> ComposeResult:
        yield Static(styled("waiting for the daemon ..", QUIET), id="head", markup=False)
        yield Static(id="atoms", markup=False)
        with Container(id="body"):
            yield self._trials
            with self._tabs:
                with TabPane("trial", id="trial"), VerticalScroll():
                    yield Static(id="detail", markup=False)
                with TabPane("curves", id="curves"):
                    yield Static(id="chart", markup=False)
                for tab, name in (("log", "output"), ("decisions", "told")):
                    with TabPane(tab, id=tab):
                        yield RichLog(id=name, wrap=True, min_width=1, max_lines=3 * LINES)
        yield Static(id="remarks", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self.action_interrupt)
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self.leave, "terminated")
        # After Ctrl-Z and fg the screen is empty, and Textual leaves that to the app.
        self.app_resume_signal.subscribe(self, lambda _: self.refresh(layout=True))
        self._trials.focus()
        self.set_interval(1.0, self._tick)
        self._feed.start()

    def leave(self, why: Why) -> None:
        """End the app."""
        self._feed.stop()
        self.exit(why)

    # ------------------------------------------------------------ what is heard

    def _post(self, kind: str, value: Any) -> None:
        """Take a message from any thread: a view, the content of a tab, a remark, a failure."""
        self.call_later(self._heard, kind, value)

    def _heard(self, kind: str, value: Any) -> None:
        match kind:
            case "view":
                self._show(value)
            case "failed":
                self.failure = value
                self.leave("lost")
            case "note":
                self.notify(clean(value), markup=False, timeout=8)
            case tab:
                self._answers.take(tab, value)
                self._fill_side()

    def _show(self, view: Standing) -> None:
        """Take the standing of the search; drawing that twice a second would cost a few percent of a core."""
        is_news = self.view is None or self.view.state != view.state
        self.view, self._heard_at, self._is_stale = view, time.monotonic(), True
        if is_news:
            self._draw()
            if view.is_over:
                self.bell()
        if self._on_interrupt is not None and view.state in ("finished", "interrupted"):
            self.leave("over" if view.is_over else "lost")

    def _tick(self) -> None:
        """Draw news, at most once a second, and the texts that time alone changes."""
        if self._is_stale or self._away_s is not None:
            self._draw()
        is_over = self.view is not None and self.view.is_over
        self._answers.fetch(self._tabs.active, self._trials.under, is_over=is_over)

    def on_resize(self, _event: events.Resize) -> None:
        self._logged = []  # a log is wrapped to the new width
        self.call_after_refresh(self._draw)

    @property
    def _away_s(self) -> float | None:
        silent_s = time.monotonic() - self._heard_at
        runs = self.view is not None and self.view.daemon_pid is not None
        return silent_s if runs and silent_s > AWAY_AFTER_S else None

    # ------------------------------------------------------------ drawing

    def _draw(self) -> None:
        view, self._is_stale = self.view, False
        if view is None or not self.is_running:
            return
        try:
            self._draw_view(view)
        # The caller words it; Textual would print a traceback with all locals.
        except Exception as error:
            self.failure = error
            self.leave("lost")

    def _draw_view(self, view: Standing) -> None:
        width = max(20, (self.query_one("#head").size.width or self.size.width) - 2)
        self.query_one("#head", Static).update(panels.head(view, width, self._away_s))
        rows = max(2, self.size.height // 4)
        self.query_one("#atoms", Static).update(panels.strip(view, width, rows))
        self.query_one("#remarks", Static).update(panels.remarks(view))
        self._trials.show(view)
        self._fill_side()

    def on_data_table_row_highlighted(self, _event: DataTable.RowHighlighted) -> None:
        self._fill_side()

    def on_data_table_row_selected(self, _event: DataTable.RowSelected) -> None:
        self.action_enter()

    def on_tabbed_content_tab_activated(self, _event: TabbedContent.TabActivated) -> None:
        self._fill_side()

    def _fill_side(self) -> None:
        """Show the open tab."""
        if (view := self.view) is None or not self.is_running:
            return
        tab, number = self._tabs.active, self._trials.under
        found = self._answers.about(tab, number)
        match tab:
            case "trial":
                text = panels.detail(view, view.trial(number), found or ())
                self.query_one("#detail", Static).update(text)
            case "curves":
                room = self.query_one("#curves", TabPane).size
                drawn = panels.curves(view, number, room.width, max(2, room.height))
                self.query_one("#chart", Static).update(drawn)
            case "log":
                self._write("#output", found or ["nothing was printed yet"])
            case "decisions":
                self._write("#told", found or ["nothing was decided yet"])
            case _:
                pass

    def _write(self, name: str, lines: Sequence[str]) -> None:
        """Have a log hold these lines: what is new is added, anything else is written anew.

        Its end is shown, unless a person is in it and has scrolled up half a page or more.
        """
        log, about = self.query_one(name, RichLog), f"{name} {self._trials.under}"
        behind = log.max_scroll_y - log.scroll_offset.y
        is_read = (log.has_focus or log.mouse_hover) and behind > log.size.height // 2
        follows = not is_read or self._logged[:1] != [about]
        if self._logged != [about, *lines[: len(self._logged) - 1]]:
            log.clear()
            self._logged = [about]
        for line in lines[len(self._logged) - 1 :]:
            log.write(Text(line), scroll_end=follows)
        self._logged = [about, *lines]

    # ------------------------------------------------------------ looking

    def action_open(self, tab: str) -> None:
        self._tabs.active = tab

    def action_enter(self) -> None:
        """Give the panel the keys, and on a narrow screen all the room."""
        pane = self.query_one(f"#{self._tabs.active}", TabPane)
        for widget in pane.query("RichLog, VerticalScroll"):
            widget.focus()
        self.screen.set_class(self.size.width < 120, "-zoomed")
        self.call_after_refresh(self._draw)

    def action_leave_panel(self) -> None:
        """From a panel back to the trials; there, the cursor at the top."""
        self.screen.remove_class("-zoomed")
        if self.focused is self._trials:
            self._trials.chosen = None
        self._trials.focus()
        self.call_after_refresh(self._draw)

    def action_help(self) -> None:
        """Show Textual's panel of keys, or hide it."""
        if self.screen.query(HelpPanel):
            self.action_hide_help_panel()
        else:
            self.action_show_help_panel()
        self.call_after_refresh(self._draw)

    # ------------------------------------------------------------ asking the daemon

    def action_pause(self) -> None:
        trial = self.view.trial(self._trials.under) if self.view is not None else None
        is_paused = trial is not None and (trial.state == "paused" or trial.held_by_user)
        verb = "unpause" if is_paused else "pause"
        self._ask_about(f"{verb} trial {self._trials.under}?", verb)

    def action_stop_trial(self) -> None:
        self._ask_about(f"stop trial {self._trials.under} for good?", "stop_trial")

    def action_more_time(self) -> None:
        self._ask("move the deadline by 10 minutes?", "deadline", add_s=600.0)

    def action_stop_search(self) -> None:
        self._ask("stop the search? every trial leaves at its next step", "stop")

    def _ask_about(self, question: str, verb: str) -> None:
        if self._trials.under is not None:
            self._ask(question, verb, trial=self._trials.under)

    def _ask(self, question: str, verb: str, **arguments: Any) -> None:
        """Ask the daemon once the person has agreed."""
        assert self._act is not None
        act = partial(self._act, verb, **arguments)
        self.push_screen(YesOrNo(question), lambda yes: self._in_thread(act) if yes else None)

    def action_detach(self) -> None:
        self.leave("over" if self.view is not None and self.view.is_over else "detached")

    def action_interrupt(self) -> None:
        """Ask in a thread: the daemon may be slow to answer, and a second Ctrl-C must get through meanwhile."""
        if self._on_interrupt is None:
            self.leave("detached")
        else:
            self._in_thread(self._on_interrupt)

    def _in_thread(self, act: Callable[[], object]) -> None:
        def ask() -> None:
            try:
                answer = act()
                if isinstance(answer, Mapping):
                    answer = f"the deadline is moved: {show_duration(answer['time_left_s'])} left"
                self._post("note", str(answer))
            except (GpuschedError, OSError) as error:
                self._post("note", f"the daemon refused: {error}")

        threading.Thread(target=ask, daemon=True).start()
