"""The dashboard as a person meets it: what is on the screen, keys, clicks, questions; driven without a terminal."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from textual.pilot import Pilot
from textual.widgets import Input

from gpusched.dashboard import frame
from gpusched.dashboard.app import Dashboard, Why
from gpusched.dashboard.frame import TABS
from gpusched.dashboard.model import DecisionRow, Standing
from gpusched.errors import InputError
from tests.dashboard.driving import Steps, drive, screen_of
from tests.dashboard.scene import recorded

GOLDEN = Path(__file__).with_name("golden")
EXPLORING = recorded("exploring")


def pressing(*keys: str) -> Steps:
    async def steps(pilot: Pilot[Why], _app: Dashboard) -> None:
        for key in keys:
            await pilot.press(key)
            await pilot.pause()

    return steps


def shown(view: Standing | None, *keys: str, **options: Any) -> str:
    """Return the screen after these keys."""
    found = ""

    async def steps(pilot: Pilot[Why], app: Dashboard) -> None:
        nonlocal found
        await pressing(*keys)(pilot, app)
        found = screen_of(app)

    drive(view, steps, **options)
    return found


# ---------------------------------------------------------------- pictures


@pytest.mark.parametrize(
    ("scene", "size", "keys"),
    [
        ("exploring", (160, 45), ()),
        ("exploring", (80, 24), ()),
        ("exploring", (40, 16), ()),
        ("exploring", (40, 8), ()),
        ("exploring", (100, 30), ("down", "2")),
        ("trouble", (160, 45), ("6",)),
        ("grown", (80, 24), ("down", "enter")),
        ("finished", (80, 24), ("5",)),
        ("many_atoms", (120, 30), ("question_mark",)),
    ],
)
def test_pictures(scene: str, size: tuple[int, int], keys: tuple[str, ...]) -> None:
    """``GOLDEN=write`` draws them anew; look at the difference afterwards."""
    found = shown(recorded(scene), *keys, size=size)
    assert max(map(cell_len, found.splitlines())) <= size[0]
    assert found.count("\n") == size[1]
    assert "…" not in found or size[0] < 60 or scene == "trouble", "there is room"
    path = GOLDEN / f"{'-'.join([scene, 'x'.join(map(str, size)), *keys])}.txt"
    if os.environ.get("GOLDEN") == "write":
        path.write_text(found)
    assert found == path.read_text(), f"{path.name} looks different now; GOLDEN=write makes it anew"


def test_before_the_first_view_it_waits() -> None:
    assert "waiting for the daemon .." in shown(None)


def test_warnings_and_a_missing_daemon_are_remarked() -> None:
    view = replace(EXPLORING, warnings=("the disk is full",), state="interrupted", daemon_pid=None)
    screen = shown(view)
    assert "! the disk is full" in screen
    assert "! no daemon runs this search; 'gpusched resume' goes on with the search" in screen


# ---------------------------------------------------------------- choosing


@pytest.mark.parametrize(
    ("keys", "selected"),
    [
        (("down",), 0),
        (("down", "j"), 1),
        (("down", "down", "k"), 0),
        (("end",), 24),
        (("G", "home"), 0),
        (("end", "escape"), None),
        (("s", "down"), 0),
        (("s", "r", "down"), 24),
    ],
)
def test_keys_move_the_selection(keys: Sequence[str], selected: int | None) -> None:
    assert drive(EXPLORING, pressing(*keys)).main.choice.selected == selected


def test_a_selection_stays_in_sight_and_on_its_trial() -> None:
    screen = shown(EXPLORING, "end", "s", "s", size=(80, 24))
    assert "▸   24" in screen


def test_tabs_go_round_and_by_number() -> None:
    assert drive(EXPLORING, pressing("tab")).main.open_tab == TABS[1]
    assert drive(EXPLORING, pressing("shift+tab")).main.open_tab == TABS[-1]
    assert drive(EXPLORING, pressing("5", "question_mark", "escape")).main.open_tab == "decisions"


def test_a_filter_of_states_and_words() -> None:
    screen = shown(EXPLORING, "f", *"running", "enter")
    assert "with running" in screen
    assert "4 of 25" in screen
    assert "paused  " not in screen
    assert "no trial is like this" in shown(EXPLORING, "f", *"zzz", "enter")
    assert "▪    0" in shown(EXPLORING, "f", *"zzz", "escape")


@pytest.mark.parametrize("size", [(40, 16), (80, 24)])
def test_what_is_typed_is_seen(size: tuple[int, int]) -> None:
    async def steps(pilot: Pilot[Why], app: Dashboard) -> None:
        await pressing("f", *"running")(pilot, app)
        field = app.screen.query_one(Input)
        assert field.content_region.height == 1
        assert app.screen.region.contains_region(field.content_region)
        assert "running" in field.render_line(0).text

    drive(EXPLORING, steps, size=size)


@pytest.mark.parametrize(("width", "steers"), [(38, True), (64, False), (78, True)])
def test_help_is_as_wide_as_its_panel_and_says_which_keys_are_refused(
    width: int, steers: bool
) -> None:
    meaning = "stop in good order; again: terminate; a third time: kill"
    lines = [line.plain for line in frame.help_lines(meaning, width, steers=steers)]
    assert [line for line in lines if len(line) > width] == []
    assert sum("needs --steer" in line for line in lines) == (0 if steers else 5)


# ---------------------------------------------------------------- the mouse


def test_a_click_selects_sorts_opens_and_filters() -> None:
    async def steps(pilot: Pilot[Why], app: Dashboard) -> None:
        await pilot.click("#trials", offset=(5, 4))
        assert app.main.choice.selected == 18
        await pilot.click("#trials", offset=(4, 1))
        assert app.main.choice.sort == "trial"
        await pilot.click("#tabs", offset=(10, 0))
        assert app.main.open_tab == "curves"
        await pilot.click("#top", offset=(92, 2))
        assert app.main.choice.wanted == "paused"
        await pilot.click("#top", offset=(10, 3))
        assert app.main.choice.selected == 0

    drive(EXPLORING, steps)


def test_the_wheel_and_search_reach_the_beginning() -> None:
    told = tuple(DecisionRow(at=float(n), trial=n, text=f"pauses: word{n}") for n in range(40))

    async def steps(pilot: Pilot[Why], app: Dashboard) -> None:
        await pressing("5")(pilot, app)
        panel = app.main.lines_of("decisions")
        assert panel.is_vertical_scroll_end, "the newest is shown first"
        panel.scroll_up(animate=False, immediate=True)
        await pressing("slash", *"word3", "enter")(pilot, app)
        assert "'word3': 11 of 11 lines" in screen_of(app)
        await pressing("n")(pilot, app)
        assert "0:03  trial 3 pauses: word3" in screen_of(app)
        await pressing("N")(pilot, app)
        assert "0:39  trial 39 pauses: word39" in screen_of(app)

    drive(replace(EXPLORING, decisions=told), steps)


# ---------------------------------------------------------------- asking the daemon


class Asked:
    """A daemon that is asked; ``error``: how it refuses."""

    def __init__(self, error: Exception | None = None) -> None:
        self.got: list[tuple[str, dict[str, Any]]] = []
        self._error = error

    def __call__(self, verb: str, **arguments: Any) -> str:
        self.got.append((verb, arguments))
        if self._error is not None:
            raise self._error
        return "as you wish"


@pytest.mark.parametrize(
    ("keys", "asked"),
    [
        (("down", "p", "y"), ("pause", {"trial": 0})),
        (("down", "down", "p", "y"), ("unpause", {"trial": 1})),
        (("down", "x", "enter"), ("stop_trial", {"trial": 0})),
        (("plus", "y"), ("deadline", {"add_s": 600.0})),
        (("c", *"lr=0.1", "enter", "y"), ("try", {"values": "lr=0.1"})),
        (("c", *"lr=0.1", "escape", "y"), None),
        (("S", "y"), ("stop", {})),
        (("S", "n"), None),
        (("down", "x", "escape"), None),
        (("p", "y"), None),
    ],
)
def test_actions_are_confirmed(keys: Sequence[str], asked: Any) -> None:
    act = Asked()
    drive(EXPLORING, pressing(*keys), act=act)
    assert act.got == ([] if asked is None else [asked])


def test_a_refusal_is_said_and_a_watcher_may_not_steer() -> None:
    refusing = Asked(InputError("trial 0 is final"))
    screen = shown(EXPLORING, "down", "x", "y", "down", act=refusing, size=(100, 30))
    assert "» the daemon refused: trial 0 is final" in screen
    assert "read-only: 'gpusched watch --steer'" in shown(EXPLORING, "down", "x")


def test_ctrl_c_is_the_callers() -> None:
    pressed: list[int] = []

    def interrupt() -> str:
        pressed.append(1)
        return f"pressed {len(pressed)}"

    screen = shown(EXPLORING, "ctrl+c", "ctrl+c", "down", on_interrupt=interrupt)
    assert "» pressed 2" in screen
    ended = drive(EXPLORING, pressing("ctrl+c")).return_value
    assert ended == "detached"


def test_a_failure_of_its_own_is_the_callers_to_word(capsys: pytest.CaptureFixture[str]) -> None:
    broken = replace(EXPLORING, trials=(None,))  # type: ignore[arg-type]
    app = Dashboard(lambda: iter([broken]))
    app.run(headless=True)
    assert isinstance(app.failure, AttributeError)
    assert capsys.readouterr() == ("", "")
