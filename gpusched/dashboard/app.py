"""The dashboard as a Textual app: which widget shows what, and the effect of each key and click."""

from __future__ import annotations

import asyncio
import dataclasses
import signal
import textwrap
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Literal

from rich.segment import Segment
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.color import Color
from textual.containers import Container, Vertical
from textual.filter import LineFilter
from textual.message import Message

from gpusched.dashboard import header, marks, panels, table
from gpusched.dashboard.detail import detail, help_lines
from gpusched.dashboard.feed import Feed, Frames, Loupe, Source
from gpusched.dashboard.marks import QUIET, clicking, styled
from gpusched.dashboard.model import View
from gpusched.dashboard.table import SORTS, Choice
from gpusched.dashboard.widgets import Lines, Prompt, Question
from gpusched.errors import GpuschedError
from gpusched.text import clean, show_duration, show_hparams, show_metric

Why = Literal["over", "detached", "lost", "terminated"]
#: Asks the daemon for something; returns the answer in words. Raises GpuschedError.
Act = Callable[..., object]

TABS = ("search", "curves", "trial", "log", "decisions", "devices")
#: A daemon sends twice a second; after this long without a word it is said to be away.
AWAY_AFTER_S = 2.5
NOTE_S = 8.0
#: Drawing every trial twice a second costs a few percent of a core; once a second is enough to follow.
PAINT_EVERY_S = 0.8
LEAST_WIDTH, LEAST_HEIGHT = 40, 8
WIDE = 100
MORE_S = 600.0

KEYS = (
    ("↑ ↓  j k", "select a trial, or scroll where Enter or a click has led"),
    ("PgUp PgDn Home End", "move faster"),
    ("Enter  l", "into the panel: all of its lines, from the first"),
    ("Esc  h", "back to the trials"),
    ("Tab  1 to 6", "next panel: search, curves, trial, log, decisions, devices"),
    ("/  n N", "search the panel; next, previous"),
    ("f", "filter the trials: words, states among them ('paused lr=0.1')"),
    ("s  r", "sort by the next column; reverse"),
    ("t", "curves over steps, or over time"),
    ("p  x", "pause or unpause the trial; stop it"),
    ("+  c  S", "ten minutes more; try a configuration; stop the search"),
    ("q", "detach; the experiment goes on"),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Watched:
    """The end of watching. ``lost``: no daemon runs the experiment any more, and it is not over."""

    view: View | None
    why: Why


class Heard(Message):
    """Word from a thread: a view, a silence, what a tab shows, a remark."""

    def __init__(self, kind: str, value: Any) -> None:
        super().__init__()
        self.kind, self.value = kind, value


class _Ascii(LineFilter):
    """Replaces each glyph by a stand-in as wide, for terminals that have no more."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [Segment(marks.to_ascii(text), style, control) for text, style, control in segments]


class Dashboard(App[Watched]):
    """One experiment on the screen, until it is over or the person leaves.

    ``act`` None: the daemon is asked for nothing but views. ``stay``: remain when the experiment is over.
    """

    ENABLE_COMMAND_PALETTE = False
    HORIZONTAL_BREAKPOINTS = [(0, "-tiny"), (LEAST_WIDTH, "-narrow"), (WIDE, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (LEAST_HEIGHT, "-low"), (14, "-high")]  # noqa: RUF012
    CSS = """
    Screen { layout: vertical; overflow: hidden; }
    Lines { scrollbar-size: 1 1; scrollbar-gutter: stable; overflow-x: hidden; }
    #top, #remarks, #keys, #tabs { height: 1; overflow: hidden; scrollbar-gutter: auto; }
    #remarks { height: 0; }
    #body { height: 1fr; layout: vertical; }
    #trials { height: 2fr; }
    #side { height: 1fr; min-height: 3; }
    .panel { display: none; }
    .-wide { padding: 0 1; }
    .-wide #body { layout: horizontal; }
    .-wide #trials { width: 59fr; height: 1fr; margin-right: 3; }
    .-wide #side { width: 41fr; max-width: 66; height: 1fr; }
    .-wide.-zoomed #side { width: 1fr; max-width: 100%; }
    .-wide.-high #top, .-wide.-high #body { margin-bottom: 1; }
    .-flat #side, .-low #side, .-tiny #side { height: 0; min-height: 0; }
    .-tiny #keys { display: none; }
    .-zoomed #trials { height: 0; }
    .-zoomed #side { height: 1fr; }
    #log { overflow-x: auto; }
    Question, Prompt { background: transparent; align: center middle; padding: 0; }
    Question.-wide, Prompt.-wide { padding: 0; }
    Question Static { width: auto; max-width: 90%; border: round $primary; padding: 0 2; }
    Prompt { align: left bottom; }
    Prompt Input { border-top: solid $primary; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c", "interrupt", priority=True),
        Binding("ctrl+z", "suspend_process", priority=True),
        Binding("q,Q", "detach"),
        Binding("tab", "tab(1)", priority=True),
        Binding("shift+tab", "tab(-1)", priority=True),
        *(Binding(str(number + 1), f"open('{tab}')") for number, tab in enumerate(TABS)),
        Binding("question_mark", "open('help')"),
        Binding("enter,l", "enter"),
        Binding("escape,h,backspace", "leave_panel"),
        Binding("s", "sort('')"),
        Binding("r", "reverse"),
        Binding("t", "time"),
        Binding("f", "ask_filter"),
        Binding("slash", "ask_search"),
        Binding("n", "search(False)"),
        Binding("N", "search(True)"),
        Binding("p", "pause"),
        Binding("x", "stop_trial"),
        Binding("plus", "more_time"),
        Binding("c", "ask_configuration"),
        Binding("S", "stop_search"),
    ]

    def __init__(
        self,
        frames: Frames,
        *,
        sources: Mapping[str, Source] | None = None,
        on_interrupt: Callable[[], str] | None = None,
        act: Act | None = None,
        stay: bool = True,
        ascii_only: bool = False,
    ) -> None:
        super().__init__(ansi_color=True)
        self.theme = "ansi-dark"
        self.animation_level = "none"
        self._on_interrupt, self._act, self._stay = on_interrupt, act, stay
        self._ascii = [_Ascii()] if ascii_only else []
        self._feed = Feed(frames, self._post)
        self._loupe = Loupe(self._post, sources or {})
        self._view: View | None = None
        self._heard_at = time.monotonic()
        self._painted_at, self._is_stale = 0.0, False
        self.choice = Choice()
        self.open_tab = "search"
        self._tab_before = "search"
        self._is_timed = False
        self._needle = ""
        self._note, self._note_until = "", 0.0
        self._ids: list[int] = []
        #: By tab: the trial it is about, and what its source found.
        self._fetched: dict[str, tuple[int | None, Any]] = {}
        self.failure: BaseException | None = None
        #: Set once the person or the experiment has ended it.
        self.done = threading.Event()

    def get_line_filters(self) -> Sequence[LineFilter]:
        return [*super().get_line_filters(), *self._ascii]

    def compose(self) -> ComposeResult:
        yield Lines(id="top", can_focus=False)
        with Container(id="body"):
            yield Trials(id="trials")
            with Vertical(id="side"):
                yield Lines(id="tabs", can_focus=False)
                for tab in (*TABS, "help"):
                    panel = Lines(id=tab, follows=tab in ("log", "decisions"), is_wide=tab == "log")
                    panel.add_class("panel")
                    panel.display = tab == self.open_tab
                    yield panel
        yield Lines(id="remarks", can_focus=False)
        yield Lines(id="keys", can_focus=False)

    def on_mount(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self.action_interrupt)
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self.leave, "terminated")
        # After Ctrl-Z and fg the screen is empty; nobody tells the widgets.
        self.app_resume_signal.subscribe(self, lambda _: self.refresh(layout=True))
        self._trials.focus()
        self._feed.start()
        self._loupe.start()
        self.set_interval(1.0, self._tick)
        self._paint()

    @property
    def seen(self) -> View | None:
        """The last view."""
        return self._view

    def leave(self, why: Why) -> None:
        """End the app."""
        self._feed.stop()
        self._loupe.stop()
        self.done.set()
        self.exit(Watched(self._view, why))

    def _handle_exception(self, error: Exception) -> None:
        """Keep the error for the caller, who words it; Textual would print a traceback with all locals."""
        super()._handle_exception(error)
        self._exit_renderables.clear()
        self.failure = error

    # ------------------------------------------------------------ what is heard

    def _post(self, kind: str, value: Any) -> None:
        """Take word from any thread."""
        self.post_message(Heard(kind, value))

    def on_heard(self, heard: Heard) -> None:
        match heard.kind:
            case "view":
                self._show(heard.value)
            case "failed":
                self.failure = heard.value
                self.leave("lost")
            case "silence" | "note":
                if heard.value:
                    self._say(heard.value)
            case tab:
                self._fetched[tab] = heard.value
                if tab == self.open_tab:
                    self._paint_panel()

    def _show(self, view: View) -> None:
        is_news = self._view is None or self._view.state != view.state
        self._view, self._heard_at = view, time.monotonic()
        self._is_stale = True
        if is_news or self._heard_at - self._painted_at > PAINT_EVERY_S:
            self._paint()
        if not self._stay and view.is_over:
            self.leave("over")
        elif not self._stay and view.state == "interrupted":
            self.leave("lost")

    def _say(self, text: str) -> None:
        self._note, self._note_until = clean(text), time.monotonic() + NOTE_S
        self._paint_remarks()

    def _tick(self) -> None:
        """Look at the clock once a second, for what nobody tells."""
        if self._note and time.monotonic() > self._note_until:
            self._note = ""
            self._paint_remarks()
        if self._is_stale:
            self._paint()
        elif self._away_s is not None:
            self._paint_top()

    @property
    def _away_s(self) -> float | None:
        silent_s = time.monotonic() - self._heard_at
        runs = self._view is not None and self._view.daemon_pid is not None
        return silent_s if runs and silent_s > AWAY_AFTER_S else None

    # ------------------------------------------------------------ painting

    @property
    def _trials(self) -> Trials:
        return self.screen_stack[0].query_one("#trials", Trials)

    def lines_of(self, name: str) -> Lines:
        """Return the widget of this name."""
        return self.screen_stack[0].query_one(f"#{name}", Lines)

    def on_resize(self) -> None:
        self._paint_top()
        self._paint_remarks()
        self._paint_keys()

    def on_lines_resized(self, resized: Lines.Resized) -> None:
        if resized.source is self._trials:
            self._paint_trials()
        elif resized.source.id in ("tabs", self.open_tab):
            self._paint_panel()

    def _paint(self) -> None:
        self._painted_at, self._is_stale = time.monotonic(), False
        self._paint_top()
        self._paint_trials()
        if self.open_tab != "log":  # which comes from its file
            self._paint_panel()
        self._paint_remarks()
        self._paint_keys()

    def _set(self, name: str, lines: Sequence[Text]) -> None:
        """Show lines in a widget that is as high as they are many."""
        widget = self.lines_of(name)
        if widget.styles.height is None or widget.styles.height.value != len(lines):
            widget.styles.height = len(lines)
        widget.show(lines)

    def _inner_width(self) -> int:
        return max(1, self.size.width - (2 if self.size.width >= WIDE else 0))

    def _paint_top(self) -> None:
        width, view = self._inner_width(), self._view
        if view is None:
            self._set("top", [styled("waiting for the daemon ..", QUIET)])
        elif width < LEAST_WIDTH or self.size.height < LEAST_HEIGHT:
            best = view.best
            left = header.clock_left(view, self._away_s)
            lines = [
                styled(f"{view.state} {left}", "bold"),
                Text(f"best {show_metric(best.metric)} trial {best.trial}" if best else "no model"),
            ]
            if width < LEAST_WIDTH:
                lines.append(styled(f"{width} of {LEAST_WIDTH} columns", "yellow"))
            self._set("top", [marks.fit(line, width) for line in lines])
        else:
            self._set("top", header.top(view, width, self.size.height, self._away_s))

    def _paint_trials(self) -> None:
        view, widget = self._view, self._trials
        if view is None:
            return
        width = max(1, widget.room.width)
        titles, lines, self._ids = table.table(view, width, self.choice)
        left, right = table.title(view, self.choice, len(lines))
        if not lines:
            why = "no trial is like this; f changes the filter" if view.trials else ""
            lines = [styled(why or "no trial has been drawn yet", QUIET)]
        widget.show(lines, [marks.rule(left, right, width), titles])

    def _paint_panel(self) -> None:
        tabs, room = Text(), self.lines_of("tabs").room.width
        letters = 9 if room >= sum(len(tab) + 2 for tab in TABS) else 4
        for tab in TABS:
            style = "bold reverse" if tab == self.open_tab else QUIET
            tabs.append_text(clicking(styled(f" {tab[:letters]} ", style), f"open('{tab}')"))
        self.lines_of("tabs").show([tabs])
        panel = self.lines_of(self.open_tab)
        width, height = panel.room
        if self._view is None or not width:
            return
        if self.open_tab == "log":
            panel.show(self._found("log") or ["nothing was printed yet"])
        else:
            panel.show(self._panel_lines(self._view, width, height))

    def _panel_lines(self, view: View, width: int, height: int) -> Sequence[Text]:
        match self.open_tab:
            case "curves":
                timed = self._fetched.get("curves", (None, {}))[1] if self._is_timed else None
                return panels.curves(view, self.choice.selected, width, height, timed)
            case "trial":
                trial = view.trial(self.choice.selected)
                return detail(view, trial, self._found("trial") or (), width)
            case "decisions":
                history = self._fetched.get("decisions", (None, ()))[1]
                return panels.decisions(view, history, width)
            case "devices":
                return panels.devices(view, width, len(view.devices))
            case "help":
                last = (
                    "stop in good order; again: terminate; a third time: kill"
                    if self._on_interrupt
                    else "detach"
                )
                return help_lines([*KEYS, ("Ctrl-C", last)], width)
            case _:
                return panels.overview(view, width, height)

    def _found(self, tab: str) -> Any:
        """Return what was fetched for this tab, if it is about the selected trial."""
        trial, found = self._fetched.get(tab, (None, None))
        return found if trial == self.choice.selected else None

    def _paint_remarks(self) -> None:
        view, width = self._view, self._inner_width()
        told = [(f"! {warning}", "bold yellow") for warning in view.warnings] if view else []
        if view is not None and view.state == "interrupted":
            told.append(("! no daemon runs it; 'gpusched resume' goes on with it", "bold yellow"))
        if self._note:
            told.append((f"» {self._note}", "bold cyan"))
        lines = [
            styled(part, style)
            for text, style in told
            for part in textwrap.wrap(text, max(20, width), subsequent_indent="  ")
        ]
        self._set("remarks", lines[-max(1, self.size.height // 6) :])

    def _paint_keys(self) -> None:
        leave = "close" if self._view is not None and self._view.is_over else "detach"
        hints = [
            ("↑↓", "select", ""),
            ("Enter", "details", "enter"),
            ("q", leave, "detach"),
            ("?", "help", "open('help')"),
            ("Tab", "panels", "tab(1)"),
            ("f", "filter", "ask_filter"),
            ("/", "search", "ask_search"),
            ("s", f"sort: {self.choice.sort}", "sort('')"),
        ]
        if self._is_inside:
            hints[:2] = [("↑↓", "scroll", ""), ("Esc", "back", "leave_panel")]
        if self._act is not None:
            hints += [("p", "pause", "pause"), ("x", "stop trial", "stop_trial")]
            hints += [("+", "10 min", "more_time"), ("c", "try", "ask_configuration")]
            hints.append(("S", "stop search", "stop_search"))
        line, width = Text(), self._inner_width()
        for key, what, action in hints:
            if line.cell_len + len(key) + len(what) + 4 <= width:
                hint = styled(key, "bold cyan").append(f" {what}", QUIET)
                line.append("   " if line else "")
                line.append_text(clicking(hint, action) if action else hint)
        self.lines_of("keys").show([line])

    # ------------------------------------------------------------ choosing

    def choose(self, **changes: Any) -> None:
        """Change what the person has chosen."""
        self.choice = dataclasses.replace(self.choice, **changes)
        self._paint_trials()
        self._trials.keep_in_sight(self.place)
        self._look()

    def _look(self) -> None:
        """Have fetched what the open tab shows, and show what is known."""
        wants = self.open_tab != "curves" or self._is_timed
        self._loupe.look(self.open_tab if wants else "", self.choice.selected)
        self._paint_panel()
        self._paint_keys()

    @property
    def place(self) -> int | None:
        """Row of the selected trial."""
        selected = self.choice.selected
        return self._ids.index(selected) if selected in self._ids else None

    def move(self, by: int) -> None:
        """Move the selection; the first move, and one from a trial that is gone, begins at the top of what is seen."""
        if self._ids:
            place = self.place
            goal = self._trials.scroll_offset.y if place is None else place + by
            if place is None and abs(by) > 1:
                goal += by
            self.choose(selected=self._ids[max(0, min(goal, len(self._ids) - 1))])

    def on_lines_clicked(self, clicked: Lines.Clicked) -> None:
        if clicked.source is self._trials and clicked.place < len(self._ids):
            self.choose(selected=self._ids[clicked.place])

    def on_descendant_focus(self) -> None:
        self._paint_keys()

    def action_choose(self, trial: int) -> None:
        self.choose(selected=trial)

    def action_filter(self, wanted: str) -> None:
        self.choose(wanted=wanted)

    def action_sort(self, sort: str) -> None:
        following = SORTS[(SORTS.index(self.choice.sort) + 1) % len(SORTS)]
        same = sort == self.choice.sort
        self.choose(sort=sort or following, is_reversed=same and not self.choice.is_reversed)

    def action_reverse(self) -> None:
        self.choose(is_reversed=not self.choice.is_reversed)

    def action_time(self) -> None:
        self._is_timed = not self._is_timed
        self.action_open("curves")

    @property
    def _is_inside(self) -> bool:
        return self.screen_stack[0].focused is not self._trials

    def action_tab(self, by: int) -> None:
        place = TABS.index(self.open_tab) if self.open_tab in TABS else 0
        self.action_open(TABS[(place + by) % len(TABS)])

    def action_open(self, tab: str) -> None:
        if tab == self.open_tab and tab != "curves":
            tab = self._tab_before if tab == "help" else tab
        if self.open_tab != "help":
            self._tab_before = self.open_tab
        was_inside = self._is_inside
        self.lines_of(self.open_tab).display = False
        self.open_tab = tab
        self.lines_of(tab).display = True
        if was_inside or tab == "help":
            self._enter()
        self.call_after_refresh(self._look)

    def action_enter(self) -> None:
        """Go into the panel; from the overview, into the selected trial."""
        if self.choice.selected is None and self._ids:
            self.move(0)
        if self.open_tab == "search":
            self.action_open("trial")
        self._enter()

    def _enter(self) -> None:
        """Give the panel the keys, and on a narrow screen all the room."""
        self.lines_of(self.open_tab).focus()
        self.screen_stack[0].set_class(self.size.width < WIDE, "-zoomed")

    def action_leave_panel(self) -> None:
        if self.open_tab == "help":
            self.action_open(self._tab_before)
        elif not self._is_inside:
            self.choose(selected=None)
        self.screen_stack[0].remove_class("-zoomed")
        self._trials.focus()

    def action_ask_filter(self) -> None:
        label = "words that a trial must have, states among them; Esc: all"
        asked = Prompt(label, lambda text: self.choose(wanted=text))
        self.push_screen(asked, lambda text: self.choose(wanted=text or ""))

    def action_ask_search(self) -> None:
        self.push_screen(Prompt(f"search in {self.open_tab}"), self._search_for)

    def _search_for(self, needle: str | None) -> None:
        self._needle = needle or ""
        self.action_search(False)

    def action_search(self, back: bool) -> None:
        self._say(self.lines_of(self.open_tab).search(self._needle, back=back))

    # ------------------------------------------------------------ asking the daemon

    def action_pause(self) -> None:
        trial = self._view.trial(self.choice.selected) if self._view is not None else None
        if trial is not None:
            verb = "unpause" if trial.state == "paused" or trial.held_by_user else "pause"
            self._ask(f"{verb} trial {trial.id}?", verb, trial=trial.id)
        else:
            self._say("select a trial first")

    def action_stop_trial(self) -> None:
        if (trial := self.choice.selected) is not None:
            self._ask(f"stop trial {trial} for good?", "stop_trial", trial=trial)
        else:
            self._say("select a trial first")

    def action_more_time(self) -> None:
        self._ask("move the deadline by 10 minutes?", "deadline", add_s=MORE_S)

    def action_ask_configuration(self) -> None:
        def ask(values: str | None) -> None:
            if values:
                self._ask(f"try {values}?", "try", values=values)

        if self._act is None:
            self._ask("", "try")
        else:
            label = "a configuration to try next: lr=0.1 width=64; the rest is drawn at random"
            self.push_screen(Prompt(label), ask)

    def action_stop_search(self) -> None:
        self._ask("stop the search? every trial leaves at its next step", "stop")

    def _ask(self, question: str, verb: str, **arguments: Any) -> None:
        """Ask the daemon once the person has agreed."""
        if self._act is None:
            self._say("read-only: 'gpusched watch --steer' lets you change the search")
            return
        act = partial(self._act, verb, **arguments)
        self.push_screen(Question(question), lambda yes: self._in_thread(act) if yes else None)

    def action_detach(self) -> None:
        self.leave("over" if self._view is not None and self._view.is_over else "detached")

    def action_interrupt(self) -> None:
        """Ask in a thread: the daemon may be slow to answer, and a second Ctrl-C must get through meanwhile."""
        if self._on_interrupt is None:
            self.leave("detached")
            return
        self._say("Ctrl-C ..")
        self._in_thread(self._on_interrupt)

    def _in_thread(self, act: Callable[[], object]) -> None:
        def ask() -> None:
            try:
                self._post("note", _worded(act()))
            except (GpuschedError, OSError) as error:
                self._post("note", f"the daemon did not take it: {error}")

        threading.Thread(target=ask, daemon=True).start()


def _worded(answer: object) -> str:
    if isinstance(answer, Mapping) and "time_left_s" in answer:
        return f"the deadline is moved: {show_duration(answer['time_left_s'])} left"
    if isinstance(answer, Mapping) and "hparams" in answer:
        return f"{show_hparams(answer['hparams'])} starts as soon as an atom is free"
    return str(answer)


class Trials(Lines):
    """The table of trials: the keys move a selection instead of the lines."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)"),
        Binding("down,j", "move(1)"),
        Binding("home,g", "move(-1000000)"),
        Binding("end,G", "move(1000000)"),
        Binding("pageup", "page(-1)"),
        Binding("pagedown,space", "page(1)"),
    ]

    def action_move(self, by: int) -> None:
        assert isinstance(self.app, Dashboard)
        self.app.move(by)

    def action_page(self, by: int) -> None:
        self.action_move(by * max(1, self.room.height - 2))

    def keep_in_sight(self, place: int | None) -> None:
        """Scroll no more than it takes to show this row."""
        rows, y = max(1, self.room.height - 2), self.scroll_offset.y
        if place is not None and not y <= place < y + rows:
            goal = place if place < y else place - rows + 1
            self.scroll_to(y=goal, animate=False, immediate=True)
