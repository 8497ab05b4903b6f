"""The dashboard as a person meets it: what is on the screen, keys, clicks, questions; driven without a terminal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from rich.cells import cell_len
from textual.pilot import Pilot
from textual.widgets import DataTable, TabbedContent

from gpusched.dashboard import panels, widgets
from gpusched.dashboard.app import Dashboard, Why
from gpusched.dashboard.model import DeviceRow, IdleRow, Standing
from gpusched.dashboard.widgets import TrialTable
from gpusched.errors import InputError
from tests.dashboard.driving import Steps, drive, screen_of
from tests.dashboard.scene import recorded

EXPLORING = recorded("exploring")


def pressing(*keys: str) -> Steps:
    async def steps(pilot: Pilot[Why], _app: Dashboard) -> None:
        await pilot.press(*keys)
        await pilot.pause()

    return steps


async def press_until(pilot: Pilot[Why], app: Dashboard, word: str, *keys: str) -> str:
    """Press these keys; return the screen once this word is on it."""
    await pressing(*keys)(pilot, app)
    while word not in (screen := screen_of(app)):
        await pilot.pause(0.02)
    return screen


def shown(view: Standing | None, *keys: str, until: str = "", **options: Any) -> str:
    """Return the screen after these keys, once ``until`` is on it."""
    found = ""

    async def steps(pilot: Pilot[Why], app: Dashboard) -> None:
        nonlocal found
        found = await press_until(pilot, app, until, *keys)

    drive(view, steps, **options)
    return found


# ---------------------------------------------------------------- what is seen


@pytest.mark.parametrize(
    ("scene", "size"),
    [
        ("exploring", (160, 45)),
        ("exploring", (80, 24)),
        ("exploring", (40, 16)),
        ("trouble", (100, 30)),
        ("finished", (80, 24)),
        ("many_atoms", (120, 30)),
    ],
)
def test_any_size_has_what_is_looked_at_first(scene: str, size: tuple[int, int]) -> None:
    view = recorded(scene)
    screen = shown(view, size=size)
    assert max(map(cell_len, screen.splitlines())) <= size[0]
    assert screen.count("\n") == size[1]
    wanted = [view.experiment[:10]]
    if size[0] >= 80:
        wanted += [
            f"best {view.metric}",
            *["trial", "state", "curves", "decisions", "lr", "width", "detach"],
        ]
    assert [word for word in wanted if word not in screen] == []


def test_each_gpu_has_its_figures_and_what_is_wrong_with_it() -> None:
    screen = shown(recorded("trouble"), size=(160, 40))
    line = next(line for line in screen.splitlines() if "gpu5 idle for" in line)
    assert "quarantined (4.1 GiB still held by python (pid 8812) after 30 s)" in line
    assert "31.2/80 GiB" in screen
    assert "527 W" in screen
    assert "! the journal cannot be written" in screen
    busy = DeviceRow(id="GPU-1", label="GPU 0", state="quarantined", reason="held by pid 7")
    idle = IdleRow(
        devices=("GPU-1",), idle_s=7.0, reason="quarantined", detail="GPU 0: held by pid 7"
    )
    hot = DeviceRow(id="GPU-2", label="GPU 1", state="held", notes=("slowed by heat",))
    screen = shown(replace(EXPLORING, devices=(busy, hot), idle=(idle,)))
    assert "! GPU 1: slowed by heat" in screen
    assert "GPU 0 idle for 7 s: quarantined (held by pid 7)" in screen
    far = DeviceRow(id="GPU-3", label="workstation-12/GPU 3", utilisation=0.5)
    assert "GPU 3" in panels.strip(replace(EXPLORING, devices=(far,)), 80, 4).plain


def test_before_the_first_view_and_without_a_daemon() -> None:
    assert "waiting for the daemon .." in shown(None)
    view = replace(EXPLORING, notes=("entrance is closed",), state="interrupted", daemon_pid=None)
    screen = shown(view)
    how = f"'gpusched resume {view.experiment}' continues it"
    assert f"! no daemon runs this search; {how}" in screen
    assert "entrance is closed" in screen


def test_the_tabs_show_a_trial_its_log_and_the_decisions() -> None:
    sources = {"trial": lambda n: [f"the story of {n}"], "log": lambda n: [f"printed by {n}"]}
    sources["decisions"] = lambda _: ["trial 18 pauses"]
    told = {
        "trial": "the story of 0",
        "curves": "accuracy over steps",
        "log": "printed by 0",
        "decisions": "trial 18 pauses",
    }

    async def steps(pilot: Pilot[Why], app: Dashboard) -> None:
        for key, (tab, words) in zip("1234", told.items(), strict=True):
            await press_until(pilot, app, words, key)
            assert app.query_one(TabbedContent).active == tab

    drive(EXPLORING, steps, sources=sources)


@pytest.mark.parametrize(
    ("size", "word", "keys", "seen"),
    [
        ((80, 24), "trial  state", ("enter", "escape"), [True, False, True]),
        ((160, 45), "back to", ("question_mark", "question_mark"), [False, True, False]),
    ],
    ids=["a panel has the whole of a narrow screen", "help"],
)
def test_what_is_opened_is_closed(
    size: tuple[int, int], word: str, keys: tuple[str, ...], seen: list[bool]
) -> None:
    found = []

    async def steps(pilot: Pilot[Why], app: Dashboard) -> None:
        found.append(word in screen_of(app))
        for key in keys:
            await pressing(key)(pilot, app)
            found.append(word in screen_of(app))

    drive(EXPLORING, steps, size=size)
    assert found == seen


def test_at_80_columns_every_key_that_is_shown_is_shown_in_whole_words() -> None:
    keys = shown(EXPLORING, size=(80, 24), act=Asked()).splitlines()[-1].split()
    assert " ".join(keys) == "q detach ? help p pause x stop trial + 10 min S stop search"


def test_what_has_no_room_is_reached_by_scrolling_sideways() -> None:
    async def steps(pilot: Pilot[Why], app: Dashboard) -> None:
        assert "launches" not in screen_of(app)
        while "launches" not in (screen := screen_of(app)):
            await pilot.press(*["right"] * 10)
        head = next(line for line in screen.splitlines() if "launches" in line)
        assert head.split()[0] == "trial", "the numbers of the trials stay"

    drive(EXPLORING, steps, size=(80, 24))


@pytest.mark.parametrize("size", [(80, 40), (160, 40)])
def test_a_log_is_wrapped(size: tuple[int, int]) -> None:
    """Beside the trials, on less than 78 columns, the ends of its lines were cut off."""
    line = f"begin {'word ' * 12}the-end"
    screen = shown(EXPLORING, "3", until="begin", sources={"log": lambda _: [line]}, size=size)
    assert "the-end" in screen


def test_a_log_that_grows_is_added_to_and_another_trials_takes_its_place() -> None:
    """Whoever had scrolled up to read was taken to the end again by the next line."""
    printed = {0: ["the first", *(f"line {n}" for n in range(90))], 1: ["other"]}

    async def steps(pilot: Pilot[Why], app: Dashboard) -> None:
        await press_until(pilot, app, "line 89", "3")
        printed[0].append("line 90")
        await press_until(pilot, app, "line 90")
        await press_until(pilot, app, "the first", "enter", "home")
        printed[0].insert(45, "of another rank")
        printed[0] += ["line 91", "line 92"]
        while "line 92" not in app._logged:
            await pilot.pause(0.02)
        await pilot.pause()
        assert "the first" in screen_of(app)
        await pressing("escape")(pilot, app)
        printed[0].append("line 93")
        await press_until(pilot, app, "line 93")
        assert "line 9" not in await press_until(pilot, app, "other", "down")

    drive(EXPLORING, steps, sources={"log": lambda trial: list(printed[trial or 0])})


# ---------------------------------------------------------------- choosing


def under(app: Dashboard) -> int:
    grid = app.query_one(DataTable)
    return int(grid.get_row_at(grid.cursor_row)[0].plain)


def test_the_cursor_stays_on_the_chosen_trial_whatever_the_order() -> None:
    async def steps(pilot: Pilot[Why], app: Dashboard) -> None:
        grid = app.query_one(TrialTable)
        assert under(app) == 0
        await pressing("down", "down")(pilot, app)
        assert under(app) == grid.chosen == 18
        grid.scroll_end(animate=False)
        await pilot.pause()
        grid.show(EXPLORING)
        await pilot.pause()
        assert grid.scroll_y > 0, "whoever looks at other trials was taken back each second"
        grid.show(replace(EXPLORING, trials=EXPLORING.trials[::-1]))
        await pilot.pause()
        assert under(app) == 18
        await pressing("escape")(pilot, app)
        assert grid.chosen is None
        await pilot.click("#trials", offset=(3, 4))
        await pilot.pause()
        assert grid.chosen == under(app)

    drive(EXPLORING, steps)


def test_hyperparameters_stand_before_launches_and_keep_their_names() -> None:
    assert widgets.columns(EXPLORING)[-1] == "launches"
    trial = replace(EXPLORING.trials[0], hparams={"step": 7, "lr": 0.5})
    view = replace(EXPLORING, trials=(trial,))
    assert widgets.columns(view)[6:8] == ["hparams.step", "lr"]
    adam = replace(trial, id=99, hparams={"lr": 0.5, "beta": 0.9, "step": 8})
    both = [replace(view, trials=order) for order in ((trial, adam), (adam, trial))]
    assert widgets.columns(both[0]) == widgets.columns(both[1]), (
        "a table made anew is scrolled back"
    )
    assert "hparams.step" in shown(view, size=(160, 30))


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


def test_actions_are_confirmed() -> None:
    act = Asked()
    refused = ("S", "n", "down", "x", "escape", "up")
    keys = ("p", "y", "x", "enter", "plus", "y", "S", "y", "down", "p", "y")
    drive(EXPLORING, pressing(*refused, *keys), act=act)
    assert act.got == [
        ("pause", {"trial": 0}),
        ("stop_trial", {"trial": 0}),
        ("deadline", {"add_s": 600.0}),
        ("stop", {}),
        ("unpause", {"trial": 1}),
    ]


def test_a_refusal_is_said() -> None:
    refusing = Asked(InputError("trial 0 is final"))
    screen = shown(EXPLORING, "x", "y", until="the daemon refused", act=refusing)
    assert "trial 0 is final" in screen


def test_ctrl_c_is_the_callers() -> None:
    pressed: list[int] = []

    def interrupt() -> str:
        pressed.append(1)
        return f"pressed {len(pressed)}"

    assert shown(EXPLORING, "ctrl+c", "ctrl+c", until="pressed 2", on_interrupt=interrupt)
    assert pressed == [1, 1]
    assert drive(EXPLORING, pressing("ctrl+c")).return_value == "detached"


def test_a_failure_of_its_own_is_the_callers_to_word(capsys: pytest.CaptureFixture[str]) -> None:
    broken = replace(EXPLORING, trials=(None,))  # type: ignore[arg-type]
    app = Dashboard(lambda: iter([broken]))
    app.run(headless=True)
    assert isinstance(app.failure, AttributeError)
    assert capsys.readouterr() == ("", "")
