"""The screen of a search: the content of each widget, and choices by keys and clicks."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical
from textual.screen import Screen
from textual.widgets import ContentSwitcher

from gpusched.dashboard import devices, frame, marks, panels, table
from gpusched.dashboard.frame import LOOKING, STEERING, TABS
from gpusched.dashboard.marks import QUIET, styled
from gpusched.dashboard.model import Standing
from gpusched.dashboard.table import SORTS, TableChoice
from gpusched.dashboard.widgets import Line, LinesView, Prompt
from gpusched.text import clean

#: A daemon sends twice a second; after this long without a word it is said to be away.
AWAY_AFTER_S = 2.5
REMARK_S = 8.0
WIDE = 100


class SearchScreen(Screen[None]):
    """One search: header, trials, panels, remarks and keys.

    ``look(tab, trial)``: asks for the content of a tab about a trial. ``steers``: whether the daemon may be asked for
    changes. ``ctrl_c``: effect of Ctrl-C, for the help.
    """

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (WIDE, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-low"), (14, "-high")]  # noqa: RUF012
    SCOPED_CSS = False
    DEFAULT_CSS = """
    SearchScreen { layout: vertical; overflow: hidden; }
    LinesView { scrollbar-size: 1 1; scrollbar-gutter: stable; overflow-x: hidden; }
    #top, #remarks, #keys, #tabs { height: 1; overflow: hidden; scrollbar-gutter: auto; }
    #remarks { height: 0; }
    #body { height: 1fr; layout: vertical; }
    #trials { height: 2fr; }
    #side { height: 1fr; min-height: 3; }
    #panels, #panels LinesView { height: 1fr; }
    SearchScreen.-wide { padding: 0 1; }
    .-wide #body { layout: horizontal; }
    .-wide #trials { width: 59fr; height: 1fr; margin-right: 3; }
    .-wide #side { width: 41fr; max-width: 66; height: 1fr; }
    .-wide.-zoomed #side { width: 1fr; max-width: 100%; }
    .-wide.-high #top, .-wide.-high #body { margin-bottom: 1; }
    .-low #side { height: 0; min-height: 0; }
    .-zoomed #trials { height: 0; }
    .-zoomed #side { height: 1fr; }
    #log { overflow-x: auto; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(k.keys, k.action, priority=k.keys == "tab") for k in (*LOOKING[1:], *STEERING)),
        *(Binding(str(number + 1), f"open('{tab}')") for number, tab in enumerate(TABS)),
        Binding("shift+tab", "tab(-1)", priority=True),
        Binding("r", "reverse"),
        Binding("n", "search(False)"),
        Binding("N", "search(True)"),
    ]

    def __init__(
        self, look: Callable[[str, int | None], None], *, steers: bool, ctrl_c: str
    ) -> None:
        super().__init__()
        self._look_at, self._steers, self._ctrl_c = look, steers, ctrl_c
        self.view: Standing | None = None
        self.choice = TableChoice()
        self.open_tab = "search"
        self._tab_before = "search"
        self._heard_at = time.monotonic()
        self._is_stale = self._is_timed = False
        self._remark, self._remark_until = "", 0.0
        self._needle = ""
        self._ids: list[int] = []
        #: By tab: the trial, and its content.
        self._fetched: dict[str, tuple[int | None, Any]] = {}

    def compose(self) -> ComposeResult:
        yield LinesView(self._top, id="top", is_fitted=True)
        with Container(id="body"):
            yield Trials(self._table, id="trials", head=2)
            with Vertical(id="side"):
                yield LinesView(self._tabs, id="tabs", is_fitted=True)
                with ContentSwitcher(id="panels", initial=self.open_tab):
                    for tab in (*TABS, "help"):
                        follows = tab in ("log", "decisions")
                        panel = partial(self._panel, tab)
                        yield LinesView(panel, id=tab, follows=follows, is_wide=tab == "log")
        yield LinesView(self._remarks, id="remarks", is_fitted=True)
        yield LinesView(self._keys, id="keys", is_fitted=True)

    def on_mount(self) -> None:
        self._trials.focus()
        self.repaint()
        self.set_interval(1.0, self._tick)

    # ------------------------------------------------------------ what is heard

    def show(self, view: Standing) -> None:
        """Take the standing of the search; drawing that twice a second would cost a few percent of a core."""
        is_news = self.view is None or self.view.state != view.state
        self.view, self._heard_at, self._is_stale = view, time.monotonic(), True
        if is_news and self.is_mounted:
            self.repaint()

    def take(self, tab: str, trial: int | None, found: Any) -> None:
        """Take the content of a tab about a trial."""
        self._fetched[tab] = (trial, found)
        if tab == self.open_tab:
            self.lines_of(tab).repaint()

    def say(self, text: str) -> None:
        """Show a remark for a while."""
        self._remark, self._remark_until = clean(text), time.monotonic() + REMARK_S
        if self.is_mounted:
            self.lines_of("remarks").repaint()

    def _tick(self) -> None:
        """Draw news, at most once a second, and texts that time alone changes."""
        if self._remark and time.monotonic() > self._remark_until:
            self._remark, self._is_stale = "", True
        if self._is_stale:
            self.repaint()
        elif self._away_s is not None:
            self.lines_of("top").repaint()

    @property
    def _away_s(self) -> float | None:
        silent_s = time.monotonic() - self._heard_at
        runs = self.view is not None and self.view.daemon_pid is not None
        return silent_s if runs and silent_s > AWAY_AFTER_S else None

    # ------------------------------------------------------------ the widgets

    @property
    def _trials(self) -> LinesView:
        return self.lines_of("trials")

    def lines_of(self, name: str) -> LinesView:
        """Return the widget of this name."""
        return self.query_one(f"#{name}", LinesView)

    def repaint(self) -> None:
        """Show the last view in every widget that is seen."""
        self._is_stale = False
        for widget in self.query(LinesView):
            widget.repaint()

    def _top(self, width: int, _height: int) -> Sequence[Line]:
        if self.view is None:
            return [styled("waiting for the daemon ..", QUIET)]
        return frame.top(self.view, width, self.size.height, self._away_s)

    def _table(self, width: int, _height: int) -> Sequence[Line]:
        if self.view is None:
            return []
        titles, lines, self._ids = table.table(self.view, width, self.choice)
        rule = marks.rule(*table.title(self.view, self.choice, len(lines)), width)
        if not lines:
            filtered = "no trial is like this; f changes the filter" if self.view.trials else ""
            lines = [styled(filtered or "no trial has been drawn yet", QUIET)]
        return [rule, titles, *lines]

    def _tabs(self, width: int, _height: int) -> Sequence[Line]:
        return [frame.tabs(self.open_tab, width)]

    def _panel(self, tab: str, width: int, height: int) -> Sequence[Line]:
        view, selected = self.view, self.choice.selected
        match tab:
            case "help":
                return frame.help_lines(self._ctrl_c, width, steers=self._steers)
            case "log":
                return self._found("log") or ["nothing was printed yet"]
            case _ if view is None:
                return []
            case "curves":
                timed = self._fetched.get("curves", (None, {}))[1] if self._is_timed else None
                return panels.curves(view, selected, width, height, timed)
            case "trial":
                story = self._found("trial") or ()
                return panels.detail(view, view.trial(selected), story, width)
            case "decisions":
                history = self._fetched.get("decisions", (None, ()))[1]
                return panels.decisions(view, history, width)
            case "devices":
                return devices.lines(view, width)
            case _:
                return panels.overview(view, width, height)

    def _found(self, tab: str) -> Any:
        """Return the content fetched for this tab, if about the selected trial."""
        trial, found = self._fetched.get(tab, (None, None))
        return found if trial == self.choice.selected else None

    def _remarks(self, width: int, _height: int) -> Sequence[Line]:
        return frame.remarks(self.view, self._remark, width)[-max(1, self.size.height // 6) :]

    def _keys(self, width: int, _height: int) -> Sequence[Line]:
        hints = {"sort('')": f"sort: {self.choice.sort}"}
        if self.view is not None and self.view.is_over:
            hints["app.detach"] = "close"
        hints |= {"move(-1)": "scroll", "enter": ""} if self._is_inside else {"back": ""}
        return [frame.keys(hints, width, steers=self._steers)]

    # ------------------------------------------------------------ choosing

    def choose(self, **changes: Any) -> None:
        """Change the person's choice."""
        self.choice = dataclasses.replace(self.choice, **changes)
        self._trials.repaint()
        if (place := self.place) is not None:
            self._trials.bring_in_sight(place + 2)
        self._look()

    def _look(self) -> None:
        """Ask for the content of the open tab, and show what is known."""
        wants = self.open_tab != "curves" or self._is_timed
        self._look_at(self.open_tab if wants else "", self.choice.selected)
        for name in ("tabs", self.open_tab, "keys"):
            self.lines_of(name).repaint()

    @property
    def place(self) -> int | None:
        """Row of the selected trial."""
        selected = self.choice.selected
        return self._ids.index(selected) if selected in self._ids else None

    def action_move(self, by: int) -> None:
        """Move the selection; without one, or from a trial that is gone, begin at the top of the rows in sight."""
        if self._ids:
            place = self.place
            goal = self._trials.scroll_offset.y if place is None else place + by
            if place is None and abs(by) > 1:
                goal += by
            self.choose(selected=self._ids[max(0, min(goal, len(self._ids) - 1))])

    def action_page(self, by: int) -> None:
        self.action_move(by * max(1, self._trials.room.height - 2))

    def on_descendant_focus(self) -> None:
        self.lines_of("keys").repaint()

    def action_choose(self, trial: int) -> None:
        self.choose(selected=trial)

    def action_choose_row(self, row: int) -> None:
        if 0 <= row < len(self._ids):
            self.choose(selected=self._ids[row])

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

    # ------------------------------------------------------------ panels

    @property
    def _is_inside(self) -> bool:
        return self.focused is not self._trials

    def action_tab(self, by: int) -> None:
        place = TABS.index(self.open_tab) if self.open_tab in TABS else 0
        self.action_open(TABS[(place + by) % len(TABS)])

    def action_open(self, tab: str) -> None:
        if tab == self.open_tab == "help":
            tab = self._tab_before
        if self.open_tab != "help":
            self._tab_before = self.open_tab
        was_inside = self._is_inside
        self.open_tab = self.query_one(ContentSwitcher).current = tab
        if was_inside or tab == "help":
            self._enter()
        self.call_after_refresh(self._look)

    def action_enter(self) -> None:
        """Go into the panel; from the overview, into the selected trial."""
        if self.choice.selected is None and self._ids:
            self.action_move(0)
        if self.open_tab == "search":
            self.action_open("trial")
        self._enter()

    def _enter(self) -> None:
        """Give the panel the keys, and on a narrow screen all the room."""
        self.lines_of(self.open_tab).focus()
        self.set_class(self.size.width < WIDE, "-zoomed")

    def action_back(self) -> None:
        if self.open_tab == "help":
            self.action_open(self._tab_before)
        elif not self._is_inside:
            self.choose(selected=None)
        self.remove_class("-zoomed")
        self._trials.focus()

    def action_ask_filter(self) -> None:
        label = "words that a trial must have, states among them; Esc: all"
        asked = Prompt(label, self.action_filter)
        self.app.push_screen(asked, lambda text: self.action_filter(text or ""))

    def action_ask_search(self) -> None:
        self.app.push_screen(Prompt(f"search in {self.open_tab}"), self._search_for)

    def _search_for(self, needle: str | None) -> None:
        self._needle = needle or ""
        self.action_search(False)

    def action_search(self, back: bool) -> None:
        self.say(self.lines_of(self.open_tab).search(self._needle, back=back))


class Trials(LinesView):
    """The table of trials: the keys move a selection instead of the lines."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "screen.move(-1)"),
        Binding("down,j", "screen.move(1)"),
        Binding("home,g", "screen.move(-1000000)"),
        Binding("end,G", "screen.move(1000000)"),
        Binding("pageup", "screen.page(-1)"),
        Binding("pagedown,space", "screen.page(1)"),
    ]

    async def on_click(self, event: events.Click) -> None:
        await self.run_action(f"screen.choose_row({self.place_of(event.y) - 2})")
